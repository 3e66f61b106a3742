// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The polar factor of the largest singular values, on every backend.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/matrices.h"
#include "tests/kernels/spectra.h"

namespace dmuon::kernels {
namespace {

// Rounding of fp32 products; measured <= 3e-7 in the shapes below.
constexpr double kSingularTolerance = 2e-6;
// Against the exact factor, where there is a gap behind the k-th value; measured <= 9e-7.
constexpr double kExact = 5e-6;

using Shape = std::pair<int64_t, int64_t>;
constexpr Shape kShapes[] = {{96, 150}, {150, 96}, {100, 100}};

// A share that gives `rank` of `s`.
TopK Rank(int64_t rank, int64_t s) {
  const double share = static_cast<double>(rank) / static_cast<double>(s);
  return {.rank_start = share, .rank_end = share};
}

// `s` values that fall from 1 to 0.5 over the first `rank`, and go on from `next`.
std::vector<double> Gap(int64_t rank, int64_t s, double next) {
  std::vector<double> values;
  for (int64_t i = 0; i < s; ++i) {
    const double way = static_cast<double>(i) / static_cast<double>(s);
    values.push_back(i < rank ? 1.0 - 0.5 * way * static_cast<double>(s) / static_cast<double>(rank) : next * (1.0 - way));
  }
  return values;
}

Matrix Of(const SpectralMatrix& m) { return {m.rows, m.cols, m.x}; }

// U_k V_k^T of WithSpectrum(rows, cols, values, seed).
std::vector<float> ExactTopK(int64_t rank, int64_t rows, int64_t cols, std::vector<double> values, uint32_t seed) {
  std::fill(values.begin() + rank, values.end(), 0.0);
  const SpectralMatrix m = WithSpectrum(rows, cols, values, seed);
  return {m.polar.begin(), m.polar.end()};
}

class TopKTest : public BackendTest {
 protected:
  // `basis`: what the last step left, and what this one leaves.
  Matrix Run(const TopK& top_k, Matrix x, std::vector<float>& basis, int64_t step = 0) {
    Optimizer row = NuMuon();
    row.top_k = top_k;
    const auto [rows, cols] = BasisShape(row, x.rows, x.cols);
    basis.resize(static_cast<size_t>(rows * cols));
    Scratch scratch;
    const absl::Status status = backend().OrthogonalizeTopK(top_k, step, x.view(), {basis.data(), rows, cols}, scratch);
    EXPECT_TRUE(status.ok()) << status;
    return x;
  }
  Matrix Run(const TopK& top_k, const Matrix& x) {
    std::vector<float> basis;
    return Run(top_k, x, basis);
  }
};

DMUON_INSTANTIATE_BACKENDS(TopKTest);

void ExpectSingularValues(const Matrix& m, int64_t ones) {
  const std::vector<double> values = SingularValues(m);
  for (size_t i = 0; i < values.size(); ++i) {
    const double expected = static_cast<int64_t>(i) < ones ? 1.0 : 0.0;
    // The judge squares: what it takes for zero is the root of 1e-15 and of fp32 noise.
    EXPECT_NEAR(values[i], expected, expected == 1.0 ? kSingularTolerance : 1e-4) << i;
  }
}

TEST_P(TopKTest, KSingularValuesBecomeOneAndTheOthersZero) {
  for (const auto& [rows, cols] : kShapes) {
    for (const int64_t rank : {1, 12, 60}) {  // 60: the whole space
      SCOPED_TRACE(std::to_string(rows) + " rank " + std::to_string(rank));
      ExpectSingularValues(Run(Rank(rank, std::min(rows, cols)), Gaussian(rows, cols, 3)), rank);
    }
  }
}

TEST_P(TopKTest, AllOfTheSpaceIsThePolarFactor) {
  for (const auto& [rows, cols] : {Shape{40, 64}, {64, 40}, {1, 30}, {30, 1}, {1, 1}}) {
    const std::vector<double> values = Spectrum("log 1e-3", rows, cols);
    const SpectralMatrix m = WithSpectrum(rows, cols, values, 7);
    const std::vector<float> polar(m.polar.begin(), m.polar.end());
    // The smallest direction's own rounding in the fp32 input: 6e-8 / 1e-3.
    EXPECT_LE(RelativeError(Run({.rank_start = 1.0}, Of(m)).values, polar), 1e-4) << rows;
  }
}

TEST_P(TopKTest, BlockKrylovFindsTheLargestDirectionsBehindAGap) {
  for (const auto& [rows, cols] : kShapes) {
    const int64_t s = std::min(rows, cols);
    ASSERT_LT(KrylovWidth(12, s), s);
    const std::vector<double> values = Gap(12, s, 0.02);
    const Matrix got = Run(Rank(12, s), Of(WithSpectrum(rows, cols, values, 11)));
    EXPECT_LE(RelativeError(got.values, ExactTopK(12, rows, cols, values, 11)), kExact) << rows;
  }
}

TEST_P(TopKTest, OneDirectionIsThatOfPowerIteration) {
  const Matrix x = Of(WithSpectrum(60, 90, Gap(1, 60, 0.05), 5));
  std::vector<double> right(90, 1.0);
  std::vector<double> left(60);
  for (int i = 0; i < 60; ++i) {
    double norm = 0.0;
    for (size_t r = 0; r < 60; ++r) {
      left[r] = 0.0;
      for (size_t c = 0; c < 90; ++c) left[r] += static_cast<double>(x.values[r * 90 + c]) * right[c];
      norm += left[r] * left[r];
    }
    for (double& value : left) value /= std::sqrt(norm);
    norm = 0.0;
    for (size_t c = 0; c < 90; ++c) {
      right[c] = 0.0;
      for (size_t r = 0; r < 60; ++r) right[c] += static_cast<double>(x.values[r * 90 + c]) * left[r];
      norm += right[c] * right[c];
    }
    for (double& value : right) value /= std::sqrt(norm);
  }
  const Matrix got = Run(Rank(1, 60), x);
  for (size_t i = 0; i < got.values.size(); ++i) EXPECT_NEAR(got.values[i], left[i / 90] * right[i % 90], 1e-6) << i;
}

TEST_P(TopKTest, TheLastBasisIsAStartThatComesCloser) {
  // No gap to speak of: two iterations from noise do not find the directions.
  const std::vector<double> values = Spectrum("log 1e-3", 120, 150);
  const Matrix x = Of(WithSpectrum(120, 150, values, 13));
  const std::vector<float> exact = ExactTopK(12, 120, 150, values, 13);
  std::vector<float> basis;
  const double first = RelativeError(Run(Rank(12, 120), x, basis, 0).values, exact);
  double last = first;
  for (int64_t step = 1; step < 8; ++step) last = RelativeError(Run(Rank(12, 120), x, basis, step).values, exact);
  EXPECT_LE(last, 1e-4);
  if (GetParam() != std::string("reference")) {
    EXPECT_GT(first, 10 * last);
  }
}

TEST_P(TopKTest, DirectionsThatAreNotThereAreDropped) {
  for (const auto& [rows, cols] : kShapes) {
    const int64_t s = std::min(rows, cols);
    std::vector<double> values(static_cast<size_t>(s));
    values[0] = 1.0;
    values[1] = 0.3;
    values[2] = 0.01;
    const SpectralMatrix m = WithSpectrum(rows, cols, values, 17);
    for (const int64_t rank : {12, 60}) {
      std::vector<float> basis;
      const Matrix got = Run(Rank(rank, s), Of(m), basis);
      ExpectSingularValues(got, 3);
      EXPECT_LE(RelativeError(got.values, {m.polar.begin(), m.polar.end()}), kExact);
      for (size_t i = 3 * static_cast<size_t>(s); i < basis.size(); ++i) EXPECT_EQ(basis[i], 0.0F) << i;
    }
  }
}

TEST_P(TopKTest, AZeroMatrixStaysZeroAndKeepsTheBasis) {
  std::vector<float> basis;
  Run(Rank(12, 96), Gaussian(96, 150, 3), basis);
  const std::vector<float> before = basis;
  const Matrix zero = Times(0.0, Gaussian(96, 150, 3));
  EXPECT_EQ(Run(Rank(12, 96), zero, basis, 1).values, zero.values);
  EXPECT_EQ(basis, before);
}

TEST_P(TopKTest, ScaleDoesNotMatter) {
  const std::vector<double> values = Gap(12, 96, 0.02);
  const Matrix x = Of(WithSpectrum(96, 150, values, 19));
  const Matrix got = Run(Rank(12, 96), x);
  for (const double factor : {1e-30, 1e-9, 1e9, 1e30}) {
    EXPECT_LE(RelativeError(Run(Rank(12, 96), Times(factor, x)).values, got.values), kExact) << factor;
  }
  EXPECT_EQ(Run(Rank(12, 96), Times(0x1p-90, x)).values, got.values);
}

TEST_P(TopKTest, TransposingTheInputTransposesTheResult) {
  for (const int64_t rank : {12, 60}) {
    const Matrix x = Of(WithSpectrum(96, 150, Gap(rank, 96, 0.02), 23));
    const Matrix wide = Run(Rank(rank, 96), x);
    EXPECT_LE(RelativeError(Run(Rank(rank, 96), Transposed(x)).values, Transposed(wide).values), kExact) << rank;
  }
}

TEST_P(TopKTest, BitsDependOnStepAndShapeButNotOnThreads) {
  const Matrix x = Gaussian(150, 96, 29);
  std::vector<float> one;
  std::vector<float> three;
  const Matrix alone = Run(Rank(12, 96), x, one, 5);
  backend().BindThread(3);
  EXPECT_EQ(Run(Rank(12, 96), x, three, 5).values, alone.values);
  EXPECT_EQ(one, three);
}

TEST_P(TopKTest, WhatIsNotFiniteIsRefusedAndLeftAlone) {
  Matrix x = Gaussian(8, 9, 1);
  x.values[5] = std::nanf("");
  const Matrix before = x;
  Scratch scratch;
  const absl::Status status = backend().OrthogonalizeTopK({}, 0, x.view(), {nullptr, 0, 8}, scratch);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "input of top-k is not finite (8 x 9)");
  EXPECT_EQ(x.values[4], before.values[4]);
}

// A unit whose rank falls from the whole space into block Krylov, saved and restored on the way.
TEST_P(TopKTest, AUnitRestoredByNameGoesOnWithTheSameBits) {
  Optimizer row = NuMuon();
  row.top_k = {.rank_start = 0.8, .rank_end = 0.125, .rank_steps = 8, .schedule = RankSchedule::kLinear};
  constexpr Hyper kHyper = {.lr = 0.1, .weight_decay = 0.1};
  Unit whole(backend(), row, kHyper, Gaussian(64, 80, 1));
  for (uint32_t step = 0; step < 8; ++step) {
    if (step == 6) {
      Unit second(backend(), row, kHyper, whole.weight());
      second.tensors()[0] = whole.state("momentum");
      second.tensors()[1] = whole.state("basis");
      second.set_step(whole.step());
      for (uint32_t later = 6; later < 8; ++later) second.Step(Gaussian(64, 80, 10 + later));
      for (uint32_t later = 6; later < 8; ++later) whole.Step(Gaussian(64, 80, 10 + later));
      EXPECT_EQ(second.weight().values, whole.weight().values);
      EXPECT_EQ(second.tensors(), whole.tensors());
      break;
    }
    whole.Step(Gaussian(64, 80, 10 + step));
  }
  EXPECT_GT(Norm(whole.state("basis")), 0.0);
}

TEST(RankSchedule, HoldsFallsAndHolds) {
  const TopK cosine = {.rank_start = 1.0, .rank_end = 0.25, .rank_steps = 1000};
  TopK linear = cosine;
  linear.schedule = RankSchedule::kLinear;
  for (const int64_t step : {0, 50, 100}) EXPECT_EQ(RankAt(cosine, step, 400), 400) << step;
  for (const int64_t step : {800, 1000, 1'000'000}) EXPECT_EQ(RankAt(cosine, step, 400), 100) << step;
  EXPECT_EQ(RankAt(cosine, 450, 400), 250);
  EXPECT_EQ(RankAt(linear, 450, 400), 250);
  // 400 (1 - 0.75 (1 - cos(pi / 4)) / 2) = 356.07, and 400 (1 - 0.75 / 4) = 325, a quarter of the way.
  EXPECT_EQ(RankAt(cosine, 275, 400), 357);
  EXPECT_EQ(RankAt(linear, 275, 400), 325);
  EXPECT_EQ(RankAt({.rank_start = 0.3}, 12345, 10), 3);
  EXPECT_EQ(RankAt({.rank_start = 1e-9}, 0, 10), 1);
}

TEST(RankSchedule, TheBasisHasRoomForTheLargestRankThatStartsFromIt) {
  Optimizer row = NuMuon();
  const auto rows = [&](const TopK& top_k, int64_t m, int64_t n) {
    row.top_k = top_k;
    return BasisShape(row, m, n).rows;
  };
  EXPECT_EQ(rows({.rank_start = 0.25}, 768, 3072), 192);
  EXPECT_EQ(rows({.rank_start = 0.1, .rank_end = 0.2, .rank_steps = 10}, 1000, 100), 20);
  EXPECT_EQ(rows({.rank_start = 1.0}, 100, 100), 41);  // 2 (41 + 8) < 100
  EXPECT_EQ(rows({.rank_start = 0.5}, 17, 17), 0);
  EXPECT_EQ(BasisShape(Muon(), 768, 768).rows, 0);
  EXPECT_EQ(UpdateSize(Muon(), 3, 4), 12U);
}

}  // namespace
}  // namespace dmuon::kernels
