// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Products: every kernel that this CPU runs against one element at a time.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/products.h"
#include "tests/kernels/matrices.h"

namespace dmuon::kernels {
namespace {

constexpr Precision kPrecisions[] = {Precision::kFloat32, Precision::kBFloat16};

struct Shape {
  int64_t rows, cols, depth;
};
// Around the edges of tiles (6 x 16, 14 x 32), of vectors, of stretches (256, 512) and of chunks (2048).
constexpr Shape kShapes[] = {{1, 1, 1},    {1, 40, 3},    {13, 31, 2},    {14, 32, 256},  {15, 33, 257},
                             {6, 16, 513}, {100, 7, 512}, {29, 65, 1000}, {17, 19, 2049}, {130, 300, 40}};

// How operands lie: lines one after the other, or depths.
enum class Lie : uint8_t { kLines, kDepths };

// The bf16 that is nearest, ties to even; what is below 2^-55 is zero.
float ToBf16(float value) {
  if (std::abs(value) < 0x1p-55F) return 0.0F;
  const auto bits = std::bit_cast<uint32_t>(value);
  return std::bit_cast<float>((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000U);
}

// One element as products.h and micro_kernels.h say it is summed.
float Element(Precision precision, const std::vector<float>& left, const std::vector<float>& right) {
  const auto depth = static_cast<int64_t>(left.size());
  float total = 0.0F;
  for (int64_t stretch = 0; stretch < depth; stretch += Stretch(precision)) {
    float sum = 0.0F;
    const int64_t length = std::min(Stretch(precision), depth - stretch);
    for (int64_t i = 0; i < (length + 1) / 2 * 2; ++i) {
      const int64_t k = stretch + (precision == Precision::kBFloat16 ? i ^ 1 : i);
      if (k >= stretch + length) continue;
      const float a = left[static_cast<size_t>(k)];
      const float b = right[static_cast<size_t>(k)];
      sum = precision == Precision::kBFloat16 ? std::fma(ToBf16(a), ToBf16(b), sum) : std::fma(a, b, sum);
    }
    total = stretch == 0 ? sum : total + sum;
  }
  return total;
}

// A matrix whose lines are the operand's.
struct Lines {
  Lines(int64_t lines, int64_t depth, uint32_t seed, Lie lie)
      : matrix(Gaussian(lines, depth, seed)), stored(lie == Lie::kLines ? matrix : Transposed(matrix)),
        operand(lie == Lie::kLines ? Operand{stored.values.data(), depth, 1}
                                   : Operand{stored.values.data(), 1, lines}) {}
  [[nodiscard]] std::vector<float> line(int64_t i) const {
    const auto first = matrix.values.begin() + i * matrix.cols;
    return {first, first + matrix.cols};
  }

  Matrix matrix, stored;
  Operand operand;
};

TEST(ProductsTest, EveryKernelGivesTheBitsOfOneChainAnElement) {
  for (const Precision precision : kPrecisions) {
    for (const auto& [rows, cols, depth] : kShapes) {
      for (const Lie lie : {Lie::kLines, Lie::kDepths}) {
        const Lines left(rows, depth, 1, lie);
        const Lines right(cols, depth, 2, lie);
        std::vector<float> expected;
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t j = 0; j < cols; ++j) expected.push_back(Element(precision, left.line(i), right.line(j)));
        }
        for (const MicroKernel* kernel : MicroKernels(precision)) {
          Scratch scratch;
          std::vector<float> out(expected.size(), NAN);
          Compute({.rows = rows, .cols = cols, .depth = depth, .left = left.operand, .right = right.operand,
                   .out = out.data()},
                  *kernel, scratch, 0);
          EXPECT_EQ(out, expected) << kernel->name << " " << rows << " x " << cols << " x " << depth;
        }
      }
    }
  }
}

TEST(ProductsTest, ASymmetricResultHasTheBitsOfItsUpperHalfOnBothSides) {
  for (const Precision precision : kPrecisions) {
    for (const int64_t s : {1, 14, 33, 130, 257}) {
      const Lines lines(s, 70, 3, Lie::kLines);
      for (const MicroKernel* kernel : MicroKernels(precision)) {
        Scratch scratch;
        std::vector<float> half(static_cast<size_t>(s * s), NAN);
        std::vector<float> full = half;
        Product product{.rows = s, .cols = s, .depth = 70, .left = lines.operand, .right = lines.operand,
                        .out = full.data()};
        Compute(product, *kernel, scratch, 0);
        product.symmetric = true;
        product.out = half.data();
        Compute(product, *kernel, scratch, 0);
        EXPECT_EQ(half, full) << kernel->name << " " << s;
      }
    }
  }
}

TEST(ProductsTest, ABaseIsAddedOnceHoweverManyStretchesThereAre) {
  const Lines left(20, 600, 1, Lie::kLines);
  const Lines right(40, 600, 2, Lie::kLines);
  const Matrix base = Gaussian(20, 40, 3);
  for (const MicroKernel* kernel : MicroKernels(Precision::kFloat32)) {
    Scratch scratch;
    Matrix out{20, 40, std::vector<float>(800, NAN)};
    Compute({.rows = 20, .cols = 40, .depth = 600, .left = left.operand, .right = right.operand,
             .out = out.values.data(), .alpha = 0.5F, .base = base.values.data(), .beta = -2.0F},
            *kernel, scratch, 0);
    for (int64_t i = 0; i < 20; ++i) {
      for (int64_t j = 0; j < 40; ++j) {
        const auto at = static_cast<size_t>(i * 40 + j);
        const float product = Element(Precision::kFloat32, left.line(i), right.line(j));
        EXPECT_NEAR(out.values[at], 0.5F * product - 2.0F * base.values[at], 1e-4F) << kernel->name;
      }
    }
  }
}

TEST(ProductsTest, NumbersThatBf16CannotTellFromZeroAreZeroOnEveryKernel) {
  // Products of these would be subnormal, which VDPBF16PS flushes and others do not.
  const std::vector<float> tiny(64, 0x1.8p-60F);
  for (const MicroKernel* kernel : MicroKernels(Precision::kBFloat16)) {
    Scratch scratch;
    float out = NAN;
    const Operand line{tiny.data(), 64, 1};
    Compute({.rows = 1, .cols = 1, .depth = 64, .left = line, .right = line, .out = &out}, *kernel, scratch, 0);
    EXPECT_EQ(out, 0.0F) << kernel->name;
  }
}

TEST(ProductsTest, ThePlainKernelsAreThereOnEveryCpu) {
  EXPECT_EQ(MicroKernels(Precision::kFloat32).back()->name, "plain");
  EXPECT_EQ(MicroKernels(Precision::kBFloat16).back()->name, "plain_bf16");
}

}  // namespace
}  // namespace dmuon::kernels
