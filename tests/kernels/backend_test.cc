// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Choosing a backend, scratch memory, measuring and multiplying.
#include "kernels/backend.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/matrices.h"

namespace dmuon::kernels {
namespace {

using testing::HasSubstr;

TEST(MakeBackend, UnknownNameListsTheKnownOnes) {
  const auto backend = MakeBackend("gpu");
  EXPECT_EQ(backend.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(backend.status().message()),
            "kernels backend is \"gpu\"; must be one of: reference, cpu, cuda");
}

TEST(Scratch, BuffersGrowAndDoNotDisturbOneAnother) {
  Scratch scratch;
  const std::span<float> first = scratch.Get(0, 4);
  first[3] = 7.0F;
  scratch.Get(5, 1000)[999] = 1.0F;
  EXPECT_EQ(first[3], 7.0F);
  EXPECT_EQ(scratch.Get(0, 4).data(), first.data());
  EXPECT_EQ(scratch.Get(0, 100).size(), 100U);
  EXPECT_EQ(scratch.Get(5, 1000)[999], 1.0F);
}

class MeasureTest : public BackendTest {};

DMUON_INSTANTIATE_BACKENDS(MeasureTest);

TEST_P(MeasureTest, BackendSaysItsName) { EXPECT_EQ(backend().name(), GetParam()); }

TEST_P(MeasureTest, SumAndMaximumAreRight) {
  // Small whole numbers, so the sum is exact in any order; more of them than one block holds.
  std::vector<float> values(10007);
  double sum = 0.0;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i % 13) - 6.0F;
    sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  }
  values[10000] = -40.0F;
  sum += 1600.0 - std::pow(static_cast<double>(10000 % 13) - 6.0, 2.0);
  const GradientStats stats = backend().Measure(values);
  EXPECT_EQ(stats.sum_squares, sum);
  EXPECT_EQ(stats.max_abs, 40.0);
  EXPECT_TRUE(stats.finite);
}

TEST_P(MeasureTest, HugeAndTinyElementsKeepTheirSquares) {
  constexpr double kSumInDouble = 1e-12;  // relative; fp32 inputs are not exactly 1e30
  for (const float size : {1e30F, 3.4e38F, 1e-30F, 1e-42F}) {
    const GradientStats stats = backend().Measure(std::vector<float>(100, size));
    const double expected = 100.0 * static_cast<double>(size) * static_cast<double>(size);
    EXPECT_NEAR(stats.sum_squares / expected, 1.0, kSumInDouble) << size;
    EXPECT_TRUE(stats.finite) << size;
  }
}

TEST_P(MeasureTest, OneBadElementAnywhereIsFound) {
  for (const size_t size : {size_t{1}, size_t{19}, size_t{4097}}) {
    for (size_t at = 0; at < size; at += (size > 100 ? 512 : 1)) {
      for (const float bad : {std::numeric_limits<float>::infinity(),
                              -std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN(),
                              -std::numeric_limits<float>::quiet_NaN()}) {
        std::vector<float> values(size, 1.0F);
        values[at] = bad;
        ASSERT_FALSE(backend().Measure(values).finite) << bad << " at " << at << " of " << size;
      }
    }
  }
}

TEST_P(MeasureTest, SameBitsOnEveryRun) {
  const Matrix m = Gaussian(97, 101, 1);
  const double first = backend().Measure(m.values).sum_squares;
  for (int run = 0; run < 20; ++run) EXPECT_EQ(backend().Measure(m.values).sum_squares, first);
}

TEST_P(MeasureTest, MultiplyRoundsOnceAndOneLeavesTheBits) {
  const Matrix m = Gaussian(9, 11, 2);
  Matrix same = m;
  backend().Multiply(1.0, same.values);
  EXPECT_EQ(same.values, m.values);
  Matrix third = m;
  backend().Multiply(1.0 / 3.0, third.values);
  for (size_t i = 0; i < m.values.size(); ++i) {
    EXPECT_EQ(third.values[i], static_cast<float>(static_cast<double>(m.values[i]) / 3.0)) << i;
  }
}

}  // namespace
}  // namespace dmuon::kernels
