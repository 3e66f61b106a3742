// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace dmuon::node {
namespace {

using testing::Each;

v1::Tensor Fused(int64_t cols, const std::vector<int64_t>& blocks, int64_t repeats) {
  v1::Tensor tensor;
  int64_t period = 0;
  for (const int64_t rows : blocks) {
    tensor.add_row_blocks(rows);
    period += rows;
  }
  tensor.set_row_repeats(repeats);
  tensor.add_shape(period * repeats);
  tensor.add_shape(cols);
  return tensor;
}

wire::Box WholeOf(const v1::Tensor& tensor) {
  return wire::WholeBox({tensor.shape().data(), static_cast<size_t>(tensor.shape_size())});
}

// By place in the layout: which element of the tensor lies there, block by block as tensor.proto says it.
std::vector<int64_t> Sectioned(const v1::Tensor& tensor) {
  const int64_t cols = tensor.shape(1);
  const int64_t period = tensor.shape(0) / tensor.row_repeats();
  std::vector<int64_t> elements;
  int64_t begin = 0;
  for (const int64_t block : tensor.row_blocks()) {
    for (int64_t row = 0; row < tensor.shape(0); ++row) {
      if (row % period < begin || row % period >= begin + block) continue;
      for (int64_t col = 0; col < cols; ++col) elements.push_back(row * cols + col);
    }
    begin += block;
  }
  return elements;
}

wire::Box RandomPiece(const wire::Box& whole, std::mt19937& random) {
  wire::Box piece = whole;
  for (size_t d = 0; d < 2; ++d) {
    piece.offset[d] = std::uniform_int_distribution<int64_t>(0, whole.length[d] - 1)(random);
    piece.length[d] = std::uniform_int_distribution<int64_t>(1, whole.length[d] - piece.offset[d])(random);
  }
  return piece;
}

TEST(LayoutTest, EveryElementOfAnyPieceHasItsPlaceInTheMatrices) {
  constexpr uint32_t kSeed = 59;
  std::mt19937 random(kSeed);
  const auto upTo = [&](int64_t most) { return std::uniform_int_distribution<int64_t>(1, most)(random); };
  for (int turn = 0; turn < 300; ++turn) {
    std::vector<int64_t> blocks(static_cast<size_t>(upTo(4)));
    for (int64_t& rows : blocks) rows = upTo(5);
    const v1::Tensor tensor = Fused(upTo(5), blocks, 1 + upTo(4));
    const wire::Box whole = WholeOf(tensor);
    const wire::Box piece = RandomPiece(whole, random);
    const std::vector<int64_t> sectioned = Sectioned(tensor);
    std::vector<int> seen(static_cast<size_t>(piece.elements()), 0);
    Layout(tensor, whole).ForEachRun(piece, [&](const wire::Run& run) {
      for (int64_t i = 0; i < run.count; ++i) {
        const int64_t row = piece.offset[0] + (run.b + i) / piece.length[1];
        const int64_t col = piece.offset[1] + (run.b + i) % piece.length[1];
        ASSERT_EQ(sectioned[static_cast<size_t>(run.a + i)], row * whole.length[1] + col)
            << "seed " << kSeed << ", turn " << turn;
        ++seen[static_cast<size_t>(run.b + i)];
      }
    });
    ASSERT_THAT(seen, Each(1)) << "seed " << kSeed << ", turn " << turn;
  }
}

TEST(LayoutTest, WholeBlocksMoveInOneRun) {
  const v1::Tensor tensor = Fused(7, {4, 2, 2}, 3);
  std::vector<int64_t> counts;
  Layout(tensor, WholeOf(tensor)).ForEachRun(WholeOf(tensor), [&](const wire::Run& run) { counts.push_back(run.count); });
  EXPECT_THAT(counts, testing::ElementsAre(28, 14, 14, 28, 14, 14, 28, 14, 14));
}

TEST(LayoutTest, WhatIsNotInterleavedIsRowMajor) {
  const v1::Tensor tensor = Fused(7, {4, 2, 2}, 1);
  int runs = 0;
  Layout(tensor, WholeOf(tensor)).ForEachRun(WholeOf(tensor), [&](const wire::Run& run) {
    ++runs;
    EXPECT_EQ(run.a, run.b);
    EXPECT_EQ(run.count, 56);
  });
  EXPECT_EQ(runs, 1);
}

}  // namespace
}  // namespace dmuon::node
