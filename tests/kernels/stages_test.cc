// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Stages on units of many blocks: the formulas written out one element at a time, and teams of several threads.
#include "kernels/cpu/stages.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/blocks.h"
#include "tests/kernels/family.h"
#include "tests/kernels/matrices.h"

namespace dmuon::kernels {
namespace {

// More lines than one tile of line sums has, and more elements in a line than one of its stripes.
constexpr int64_t kShort = 70, kLong = 9001;
constexpr Hyper kHyper = {.lr = 0.1, .weight_decay = 0.1, .momentum = 0.9, .beta2 = 0.75};
constexpr double kRoundings = 1e-6;  // relative; fp32 results of sums in double

std::vector<Named> WithCautious() {
  std::vector<Named> family = Family();
  for (Named cautious : {Named{"cautious Muon", Muon()}, Named{"cautious AdamW", AdamW()}}) {
    cautious.optimizer.weight_decay = WeightDecay::kCautious;
    family.push_back(cautious);
  }
  return family;
}

// A unit in the middle of training, and what its next step leaves. The update is not orthogonalized: Newton-Schulz
// is another matter.
struct Trained {
  Trained(const Optimizer& row, int64_t rows, int64_t cols, double clip = 0.5)
      : optimizer(row), gradient(Gaussian(rows, cols, 1)), weight(Gaussian(rows, cols, 2)),
        update(UpdateSize(row, rows, cols)) {
    uint32_t seed = 3;
    for (const StateTensor& tensor : StateTensors(row, rows, cols)) {
      tensors.push_back(Gaussian(tensor.rows, tensor.cols, seed++).values);
      if (tensor.name == "second_moment" || tensor.name == "column_moment") {
        for (float& value : tensors.back()) value *= value;
      }
    }
    before = tensors;
    const auto backend = MustMake("cpu");
    UnitState state = BindState(row, rows, cols, weight.values, tensors, 7);
    std::span<float> used;
    if (row.needs_whole_matrix()) {
      const MatrixView x = backend->Direction(row, kHyper, clip, gradient.values, state, update);
      used = update;
      direction.assign(x.data, x.data + x.rows * x.cols);
    }
    backend->Apply(row, kHyper, clip, gradient.values, used, state);
  }

  const Optimizer optimizer;
  const Matrix gradient;
  Matrix weight;
  std::vector<std::vector<float>> before, tensors;  // of the state
  std::vector<float> update, direction;
};

TEST(StagesTest, ATeamOfAnySizeGivesTheSameBits) {
  for (const auto& [name, optimizer] : WithCautious()) {
    for (const auto& [rows, cols] : {std::pair{kShort, int64_t{2500}}, {int64_t{2500}, kShort}}) {
      BindTeam(1);
      const Trained alone(optimizer, rows, cols);
      BindTeam(5);
      const Trained together(optimizer, rows, cols);
      EXPECT_EQ(together.direction, alone.direction) << name;
      EXPECT_EQ(together.tensors, alone.tensors) << name;
      EXPECT_EQ(together.weight.values, alone.weight.values) << name;
    }
  }
  BindTeam(1);
}

TEST(StagesTest, ATeamOfAnySizeMeasuresAndCastsTheSame) {
  const std::vector<float> values = Gaussian(5, static_cast<int64_t>(kGrain), 1).values;
  std::vector<double> sums;
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 2, 5}) {
    const auto backend = MustMake("cpu");
    backend->BindThread(threads);
    // From an odd place on: neither blocks nor vectors begin where the buffer does.
    const std::span<const float> part = std::span(values).subspan(3);
    sums.push_back(backend->Measure(part).sum_squares);
    std::vector<uint16_t> halves(part.size());
    backend->CastFromFloat(part, DType::kBFloat16, halves.data());
    std::vector<float> wide(part.size());
    backend->CastToFloat(DType::kBFloat16, halves.data(), wide);
    backend->AddToFloat(DType::kBFloat16, halves.data(), wide);
    backend->AddToFloat(DType::kFloat32, part.data(), wide);
    backend->Multiply(0.3, wide);
    std::vector<float> copy(part.size());
    backend->CastToFloat(DType::kFloat32, wide.data(), copy);
    results.push_back(copy);
  }
  BindTeam(1);
  for (size_t i = 1; i < sums.size(); ++i) {
    EXPECT_EQ(sums[i], sums[0]);
    EXPECT_EQ(results[i], results[0]);
  }
  for (size_t i = 0; i < 100; ++i) EXPECT_NEAR(results[0][i], 0.9F * values[i + 3], 0.01F) << i;
}

TEST(StagesTest, AMatrixOfManyBlocksFollowsTheFormulaInEveryElement) {
  const Trained unit(Muon(), kShort, kLong, 0.5);
  const std::vector<float> start = Gaussian(kShort, kLong, 2).values;
  const double scale = Scale(ScaleRule::kOriginal, kShort, kLong);
  for (size_t i = 0; i < start.size(); ++i) {
    const double g = 0.5 * static_cast<double>(unit.gradient.values[i]);
    const double m = unit.before[0][i];
    ASSERT_NEAR(unit.tensors[0][i], 0.9 * m + 0.1 * g, 1e-6) << i;
    ASSERT_NEAR(unit.direction[i], 0.1 * g + 0.9 * (0.9 * m + 0.1 * g), 1e-6) << i;
    const double expected = 0.99 * static_cast<double>(start[i]) - 0.1 * scale * static_cast<double>(unit.direction[i]);
    ASSERT_NEAR(unit.weight.values[i], expected, 1e-6) << i;
  }
}

TEST(StagesTest, FactoredMomentsAreSumsOfWholeLines) {
  const Trained unit(Muon2Factored(), kShort, kLong, 0.5);
  std::vector<double> rows(kShort), columns(kLong);
  for (size_t i = 0; i < unit.gradient.values.size(); ++i) {
    const double g = 0.5 * static_cast<double>(unit.gradient.values[i]);
    rows[i / kLong] += g * g;
    columns[i % kLong] += g * g;
  }
  const auto next = [&](size_t tensor, size_t i, double sum) {
    return 0.75 * static_cast<double>(unit.before[tensor][i]) + 0.25 * sum;
  };
  for (size_t r = 0; r < rows.size(); ++r) {
    rows[r] = next(1, r, rows[r]);
    EXPECT_NEAR(unit.tensors[1][r], rows[r], kRoundings * rows[r]) << r;
  }
  for (size_t c = 0; c < columns.size(); ++c) {
    columns[c] = next(2, c, columns[c]);
    ASSERT_NEAR(unit.tensors[2][c], columns[c], kRoundings * columns[c]) << c;
  }
  const double total = std::accumulate(columns.begin(), columns.end(), 0.0);
  for (size_t i = 0; i < unit.direction.size(); ++i) {
    const double momentum = unit.tensors[0][i];
    const double divisor = std::sqrt(rows[i / kLong] * columns[i % kLong] / total);
    ASSERT_NEAR(unit.direction[i], momentum / divisor, kRoundings * (1.0 + std::abs(momentum / divisor))) << i;
  }
}

TEST(StagesTest, MomentsOfTheUpdateAreOfWholeRowsAndOfEveryElement) {
  const Trained by_rows(NorMuon(), kShort, kLong);
  const Trained by_elements(AdaMuon(), kShort, kLong);
  for (size_t r = 0; r < kShort; ++r) {
    double sum = 0.0;
    for (size_t i = r * kLong; i < (r + 1) * kLong; ++i) {
      const double u = by_rows.direction[i];
      sum += u * u;
      const double element = by_elements.direction[i];
      const double moment = by_elements.before[1][i];
      ASSERT_NEAR(by_elements.tensors[1][i], 0.75 * moment + 0.25 * element * element, 1e-6) << i;
    }
    const double next = 0.75 * static_cast<double>(by_rows.before[1][r]) + 0.25 * sum / kLong;
    EXPECT_NEAR(by_rows.tensors[1][r], next, kRoundings * next) << r;
  }
}

TEST(StagesTest, Dion2SelectsByTheSumsOfWholeLinesInBothOrientations) {
  for (const bool tall : {false, true}) {
    const auto [rows, cols] = tall ? std::pair{kLong, kShort} : std::pair{kShort, kLong};
    const Trained unit(Dion2(), rows, cols, 0.5);
    const auto line = [tall, width = static_cast<size_t>(cols)](size_t i) { return tall ? i % width : i / width; };
    std::vector<double> momentum(unit.gradient.values.size()), sums(kShort);
    for (size_t i = 0; i < momentum.size(); ++i) {
      momentum[i] = static_cast<double>(unit.before[0][i]) + 0.5 * static_cast<double>(unit.gradient.values[i]);
      sums[line(i)] += std::abs(momentum[i]);
    }
    std::vector<double> sorted = sums;
    std::sort(sorted.rbegin(), sorted.rend());
    const double least = sorted[17];  // ceil(0.25 * 70) lines
    size_t at = 0;
    for (size_t i = 0; i < momentum.size(); ++i) {
      const bool selected = sums[line(i)] >= least;
      ASSERT_NEAR(unit.tensors[0][i], (selected ? 0.9 : 1.0) * momentum[i], 1e-6) << i;
      if (!selected) continue;
      ASSERT_NEAR(unit.direction[at++], momentum[i], 1e-6) << i;
    }
    EXPECT_EQ(at, unit.direction.size());
  }
}

TEST(StagesTest, BiasCorrectionHoldsAtAnyStep) {
  for (const int64_t step : {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{1000}, int64_t{123457}, int64_t{1} << 40}) {
    const auto backend = MustMake("cpu");
    Unit unit(*backend, AdamW(), {.lr = 1.0, .momentum = 0.9, .beta2 = 0.9999}, Matrix{1, 1, {0.0F}});
    unit.set_step(step - 1);
    unit.Step(Matrix{1, 1, {2.0F}});
    const auto t = static_cast<double>(step);
    const double m = 0.1 * 2.0 / -std::expm1(t * std::log(0.9));
    const double v = 1e-4 * 4.0 / -std::expm1(t * std::log(0.9999));
    const double expected = -m / (std::sqrt(v) + 1e-8);
    EXPECT_NEAR(unit.weight().values[0], expected, 2e-7 * std::abs(expected)) << step;
  }
}

}  // namespace
}  // namespace dmuon::kernels
