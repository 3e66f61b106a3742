// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What each optimizer of the family promises beside its golden vectors, on every backend.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/family.h"
#include "tests/kernels/matrices.h"

namespace dmuon::kernels {
namespace {

constexpr Hyper kHyper = {.lr = 0.1, .weight_decay = 0.1, .momentum = 0.95, .beta2 = 0.95};

std::vector<double> Difference(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<double> out(a.size());
  for (size_t i = 0; i < a.size(); ++i) out[i] = static_cast<double>(a[i]) - static_cast<double>(b[i]);
  return out;
}

double Rms(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum / static_cast<double>(values.size()));
}

class FamilyTest : public BackendTest {
 protected:
  // Those that orthogonalise.
  std::vector<Named> Matrices() {
    std::vector<Named> family = FamilyOf(backend());
    std::erase_if(family, [](const Named& row) { return !row.optimizer.needs_whole_matrix(); });
    return family;
  }
  // The unit after `steps` steps of different gradients.
  Unit After(const Optimizer& optimizer, int steps, Hyper hyper = kHyper, double factor = 1.0) {
    Unit unit(backend(), optimizer, hyper, Gaussian(8, 20, 100));
    for (int i = 0; i < steps; ++i) unit.Step(Gaussian(8, 20, static_cast<uint32_t>(i), factor));
    return unit;
  }
  // What the step with `gradient` takes from the weight, without decay, over the learning rate.
  std::vector<double> Moved(Unit& unit, const Matrix& gradient) {
    unit.hyper().weight_decay = 0.0;
    const std::vector<float> before = unit.weight().values;
    unit.Step(gradient);
    std::vector<double> moved = Difference(before, unit.weight().values);
    for (double& value : moved) value /= unit.hyper().lr;
    return moved;
  }
};

DMUON_INSTANTIATE_BACKENDS(FamilyTest);

TEST_P(FamilyTest, AZeroGradientFromTheStartOnlyDecays) {
  for (const auto& [name, optimizer] : Matrices()) {
    Unit unit(backend(), optimizer, kHyper, Gaussian(8, 20, 1));
    unit.Step(Matrix{8, 20, std::vector<float>(160)});
    const Matrix decayed = Times(1.0 - kHyper.lr * kHyper.weight_decay, Gaussian(8, 20, 1));
    EXPECT_EQ(unit.weight().values, decayed.values) << name;
    for (const std::vector<float>& tensor : unit.tensors()) EXPECT_EQ(Norm(tensor), 0.0) << name;
  }
}

TEST_P(FamilyTest, StateThatIsSavedAndRestoredByNameGoesOnWithTheSameBits) {
  for (const auto& [name, optimizer] : Matrices()) {
    Unit whole = After(optimizer, 5);
    Unit first = After(optimizer, 3);
    Unit second(backend(), optimizer, kHyper, first.weight());
    size_t i = 0;
    for (const StateTensor& tensor : StateTensors(optimizer, 8, 20)) {
      const std::vector<float>& saved = first.state(tensor.name);
      ASSERT_EQ(saved.size(), static_cast<size_t>(tensor.rows * tensor.cols)) << name;
      second.tensors()[i++] = saved;
    }
    second.set_step(first.step());
    for (uint32_t step = 3; step < 5; ++step) second.Step(Gaussian(8, 20, step));
    EXPECT_EQ(second.weight().values, whole.weight().values) << name;
    EXPECT_EQ(second.tensors(), whole.tensors()) << name;
  }
}

// But for the eps of second moments, 1e-8 beside roots of 1e-3.
TEST_P(FamilyTest, AConstantScaleOfAllGradientsDoesNotMatter) {
  for (const auto& [name, optimizer] : Matrices()) {
    for (const double factor : {0x1p-6, 0x1p6}) {
      const Unit scaled = After(optimizer, 3, kHyper, factor);
      EXPECT_LE(RelativeError(scaled.weight().values, After(optimizer, 3).weight().values), 2e-5) << name << factor;
    }
  }
}

TEST_P(FamilyTest, ClippingIsScalingTheGradient) {
  for (const auto& [name, optimizer] : Matrices()) {
    Unit clipped = After(optimizer, 2);
    Unit scaled = After(optimizer, 2);
    clipped.Step(Gaussian(8, 20, 50), 0.25);
    scaled.Step(Times(0.25, Gaussian(8, 20, 50)));
    EXPECT_LE(RelativeError(clipped.weight().values, scaled.weight().values), 1e-6) << name;
    for (size_t i = 0; i < clipped.tensors().size(); ++i) {
      EXPECT_LE(RelativeError(clipped.tensors()[i], scaled.tensors()[i]), 1e-6) << name << i;
    }
  }
}

TEST_P(FamilyTest, CautiousDecayActsOnlyWhereTheUpdateShrinksTheWeight) {
  for (const auto& [name, row] : Matrices()) {
    Optimizer cautious = row;
    cautious.weight_decay = WeightDecay::kCautious;
    Unit plain(backend(), row, {.lr = 0.1, .weight_decay = 0.0}, Gaussian(8, 20, 1));
    Unit unit(backend(), cautious, {.lr = 0.1, .weight_decay = 0.5}, Gaussian(8, 20, 1));
    plain.Step(Gaussian(8, 20, 2));
    unit.Step(Gaussian(8, 20, 2));
    const std::vector<float> before = Gaussian(8, 20, 1).values;
    for (size_t i = 0; i < before.size(); ++i) {
      const double update = static_cast<double>(before[i]) - static_cast<double>(plain.weight().values[i]);
      const double decay = update * static_cast<double>(before[i]) >= 0.0 ? 0.05 * static_cast<double>(before[i]) : 0.0;
      EXPECT_NEAR(unit.weight().values[i], static_cast<double>(plain.weight().values[i]) - decay, 1e-6) << name << i;
    }
  }
}

TEST_P(FamilyTest, NorMuonLevelsRowsAndKeepsTheNorm) {
  Unit unit = After(NorMuon(), 0);
  Unit muon = After(Muon(), 0);
  const std::vector<double> moved = Moved(unit, Gaussian(8, 20, 2));
  for (size_t r = 0; r < 8; ++r) {
    const std::vector<double> row(moved.begin() + static_cast<int64_t>(r * 20), moved.begin() + static_cast<int64_t>(r * 20 + 20));
    EXPECT_NEAR(Rms(row), Rms(moved), 1e-5) << r;
  }
  EXPECT_NEAR(Rms(moved), Rms(Moved(muon, Gaussian(8, 20, 2))), 1e-5);
  EXPECT_EQ(unit.state("second_moment").size(), 8U);
}

TEST_P(FamilyTest, AdaMuonMovesByTheSameRmsEveryStepAndFirstByTheSign) {
  Unit unit = After(AdaMuon(), 0);
  for (const double value : Moved(unit, Gaussian(8, 20, 2))) EXPECT_NEAR(std::abs(value), 0.2, 1e-5);
  for (uint32_t step = 3; step < 6; ++step) EXPECT_NEAR(Rms(Moved(unit, Gaussian(8, 20, step))), 0.2, 1e-5);
  // Positive factors on single elements do not change the sign of the first momentum.
  Matrix stretched = Gaussian(8, 20, 2);
  for (size_t i = 0; i < stretched.values.size(); ++i) stretched.values[i] *= static_cast<float>(1 + i % 5);
  Unit a = After(AdaMuon(), 0);
  Unit b = After(AdaMuon(), 0);
  a.Step(Gaussian(8, 20, 2));
  b.Step(stretched);
  EXPECT_EQ(a.weight().values, b.weight().values);
}

TEST_P(FamilyTest, Muon2StartsWithTheOrthogonalizedSign) {
  Unit unit = After(Muon2(), 0);
  Matrix sign = Gaussian(8, 20, 2);
  for (float& value : sign.values) value = value > 0.0F ? 1.0F : -1.0F;
  const Matrix expected = Orthogonal(backend(), {.iterations = 3}, sign);
  const std::vector<double> moved = Moved(unit, Gaussian(8, 20, 2));
  const double scale = Scale(ScaleRule::kSpectral, 8, 20);
  for (size_t i = 0; i < moved.size(); ++i) EXPECT_NEAR(moved[i], scale * static_cast<double>(expected.values[i]), 2e-5);
}

TEST_P(FamilyTest, FactoredMomentsAreExactWhereSquaresHaveRankOne) {
  const Matrix column = Gaussian(8, 1, 3);
  const Matrix row = Gaussian(1, 20, 4);
  Matrix outer{8, 20, {}};
  for (const float a : column.values) {
    for (const float b : row.values) outer.values.push_back(a * b);
  }
  // The signs of another matrix, so that the momentum itself is not of rank one.
  const Matrix signs = Gaussian(8, 20, 5);
  for (size_t i = 0; i < outer.values.size(); ++i) outer.values[i] = std::copysign(outer.values[i], signs.values[i]);
  Unit full = After(Muon2(), 0);
  Unit factored = After(Muon2Factored(), 0);
  full.Step(outer);
  factored.Step(outer);
  EXPECT_LE(RelativeError(factored.weight().values, full.weight().values), 1e-5);
  double total = 0.0;
  for (const float value : factored.state("second_moment")) total += static_cast<double>(value);
  EXPECT_NEAR(total, 0.05 * Norm(outer.values) * Norm(outer.values), 1e-4 * total);
}

TEST_P(FamilyTest, MonaTakesAConstantGradientAsItIs) {
  Optimizer plain = Mona();
  plain.slow_beta = 0.0;
  plain.acceleration = 0.0;
  Unit mona(backend(), Mona(), kHyper, Gaussian(8, 20, 1));
  Unit muon(backend(), plain, kHyper, Gaussian(8, 20, 1));
  for (int i = 0; i < 5; ++i) {
    mona.Step(Gaussian(8, 20, 2));
    muon.Step(Gaussian(8, 20, 2));
    EXPECT_LE(RelativeError(mona.weight().values, muon.weight().values), 1e-6) << i;
  }
}

// The published form keeps the last gradient and a mean of differences: A <- b*A + (1-b)*(G - last), G + a*A.
TEST_P(FamilyTest, MonaWithOneBufferIsThePublishedFormWithTwo) {
  constexpr double kBeta = 0.9;
  Optimizer row = Mona();
  row.slow_beta = kBeta;
  row.acceleration = -1.0 / (2.0 * (1.0 - kBeta));
  Optimizer plain = row;
  plain.slow_beta = 0.0;
  plain.acceleration = 0.0;
  Unit mona(backend(), row, kHyper, Gaussian(8, 20, 1));
  Unit muon(backend(), plain, kHyper, Gaussian(8, 20, 1));
  std::vector<double> mean(160);
  Matrix last = Gaussian(8, 20, 10);
  for (uint32_t step = 0; step < 6; ++step) {
    const Matrix gradient = Gaussian(8, 20, 10 + step);
    Matrix accelerated = gradient;
    for (size_t i = 0; i < mean.size(); ++i) {
      const double difference = static_cast<double>(gradient.values[i]) - static_cast<double>(last.values[i]);
      mean[i] = kBeta * mean[i] + (1.0 - kBeta) * difference;
      accelerated.values[i] = static_cast<float>(static_cast<double>(gradient.values[i]) + row.acceleration * mean[i]);
    }
    last = gradient;
    mona.Step(gradient);
    muon.Step(accelerated);
    EXPECT_LE(RelativeError(mona.weight().values, muon.weight().values), 1e-5) << step;
  }
}

TEST_P(FamilyTest, Dion2MovesTheLargestLinesAndOnlyDecaysTheOthers) {
  for (const bool tall : {false, true}) {
    Matrix gradient = Times(0.01, Gaussian(8, 20, 2));
    for (const size_t line : {1U, 6U}) {
      for (size_t c = 0; c < 20; ++c) gradient.values[line * 20 + c] *= 1000.0F;
    }
    const Matrix start = Gaussian(8, 20, 1);
    Unit unit(backend(), Dion2(), kHyper, tall ? Transposed(start) : start);
    unit.Step(tall ? Transposed(gradient) : gradient);
    const Matrix got = tall ? Transposed(unit.weight()) : unit.weight();
    const Matrix momentum = tall ? Transposed(Matrix{20, 8, unit.state("momentum")}) : Matrix{8, 20, unit.state("momentum")};
    for (size_t i = 0; i < got.values.size(); ++i) {
      const bool selected = i / 20 == 1 || i / 20 == 6;
      const float decayed = static_cast<float>(0.99 * static_cast<double>(start.values[i]));
      EXPECT_EQ(got.values[i] == decayed, !selected) << i;
      EXPECT_EQ(momentum.values[i], selected ? static_cast<float>(0.95 * static_cast<double>(gradient.values[i]))
                                             : gradient.values[i]) << i;
    }
  }
}

TEST_P(FamilyTest, Dion2SelectsAtLeastOneLineAndTheFirstOfEqualOnes) {
  Optimizer row = Dion2();
  row.selected = 1e-9;
  Unit unit(backend(), row, kHyper, Matrix{3, 4, std::vector<float>(12)});
  unit.Step(Matrix{3, 4, std::vector<float>(12, 1.0F)});
  EXPECT_NE(unit.weight().values[0], 0.0F);
  for (size_t i = 4; i < 12; ++i) EXPECT_EQ(unit.weight().values[i], 0.0F);
}

}  // namespace
}  // namespace dmuon::kernels
