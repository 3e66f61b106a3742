// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Whole steps of one unit, over every backend.
#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/matrices.h"

namespace dmuon::kernels {
namespace {

// A direction that differs by fp32 rounding before Newton-Schulz differs by about this after it;
// measured <= 2e-6 on the Gaussian inputs below.
constexpr double kSameDirection = 2e-5;
// Two ways to the same fp32 number: the last bit may differ.
constexpr double kOneRounding = 2.4e-7;
// Five quintic steps of Jordan's polynomial aim near 1, not at 1: the band belongs to the
// coefficients. Normalised singular values of the inputs here are above 1e-3.
constexpr double kSingularLow = 0.65, kSingularHigh = 1.20;
constexpr double kJordanOfOne = 0.696436409470;

class StepTest : public BackendTest {
 protected:
  // The weight change of a first step from weight zero, over lr: scale * orthogonal direction.
  Matrix FirstUpdate(const Optimizer& optimizer, const Matrix& gradient, double clip = 1.0) {
    const Matrix zero = Times(0.0, gradient);
    Unit unit(backend(), optimizer, {.lr = 1.0}, zero);
    unit.Step(gradient, clip);
    return Times(-1.0, unit.weight());
  }
};

DMUON_INSTANTIATE_BACKENDS(StepTest);

TEST_P(StepTest, ScaleOfTheGradientDoesNotMatter) {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{24, 40}, {40, 24}, {32, 32}}) {
    const Matrix gradient = Gaussian(rows, cols, 11);
    const Matrix update = FirstUpdate(Muon(), gradient);
    // cases row 39 (1 to 1e-30), and the same upwards.
    for (const double k :
         {1e-3, 1e3, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-20, 1e-30, 1e10, 1e20, 1e30}) {
      const Matrix scaled = FirstUpdate(Muon(), Times(k, gradient));
      EXPECT_LE(RelativeError(scaled.values, update.values), kSameDirection) << "factor " << k;
    }
    // A power of two changes no digit of the input, hence none of the result.
    EXPECT_EQ(FirstUpdate(Muon(), Times(std::ldexp(1.0, -90), gradient)).values, update.values);
  }
}

TEST_P(StepTest, AddedEpsShrinksTinyGradientsAndSaysSo) {
  Optimizer added = Muon();
  added.newton_schulz.eps_mode = EpsMode::kAdd;
  const Matrix gradient = Gaussian(16, 16, 12);
  const double whole = Norm(FirstUpdate(added, gradient).values);
  EXPECT_LT(Norm(FirstUpdate(added, Times(1e-12, gradient)).values), 0.5 * whole);
}

TEST_P(StepTest, UpdateIsOrthogonalisedNotProportional) {  // cases row 24
  const Matrix gradient = Gaussian(32, 32, 24);
  const std::vector<double> before = SingularValues(gradient);
  const std::vector<double> after = SingularValues(FirstUpdate(Muon(), gradient));
  EXPECT_GT(before.front() / before.back(), 20.0);
  EXPECT_LE(after.front(), kSingularHigh);
  EXPECT_GE(after.back(), kSingularLow);
}

TEST_P(StepTest, ZeroGradientLeavesOnlyDecay) {  // cases row 40
  const Matrix weight = Gaussian(64, 32, 40);
  constexpr double kLr = 0.02, kDecay = 0.1;
  for (const EpsMode mode : {EpsMode::kNone, EpsMode::kAdd, EpsMode::kClamp}) {
    Optimizer optimizer = Muon();
    optimizer.newton_schulz.eps_mode = mode;
    Unit unit(backend(), optimizer, {.lr = kLr, .weight_decay = kDecay}, weight);
    unit.Step(Times(0.0, weight));
    for (size_t i = 0; i < weight.values.size(); ++i) {
      const double decayed = (1.0 - kLr * kDecay) * static_cast<double>(weight.values[i]);
      ASSERT_EQ(unit.weight().values[i], static_cast<float>(decayed)) << i;
      ASSERT_EQ(unit.state("momentum")[i], 0.0F) << i;
    }
    EXPECT_EQ(unit.step(), 1);
  }
}

TEST_P(StepTest, ClipActsOnTheRawGradient) {  // cases row 42, at the kernel
  const Matrix gradient = Gaussian(256, 256, 42);
  const double clip = 1.0 / Norm(gradient.values);
  Unit unit(backend(), Muon(), {.lr = 1.0, .momentum = 0.9}, Times(0.0, gradient));
  unit.Step(gradient, clip);
  EXPECT_NEAR(Norm(unit.state("momentum")), 0.1, 1e-6);  // (1 - mu) * |clip*G|
  // The update keeps the size that 256 singular values near 1 give it.
  EXPECT_GT(Norm(unit.weight().values), kSingularLow * 16.0);
  EXPECT_LT(Norm(unit.weight().values), kSingularHigh * 16.0);

  Unit adam(backend(), AdamW(), {.lr = 1e-3, .momentum = 0.9}, Gaussian(4, 4, 1));
  Unit same(backend(), AdamW(), {.lr = 1e-3, .momentum = 0.9}, Gaussian(4, 4, 1));
  adam.Step(Gaussian(4, 4, 2), 0.25);
  same.Step(Times(0.25, Gaussian(4, 4, 2)));
  EXPECT_EQ(adam.weight().values, same.weight().values);
  EXPECT_EQ(adam.state("second_moment"), same.state("second_moment"));
}

TEST_P(StepTest, ClipDoesNotTurnTheDirection) {
  const Matrix gradient = Gaussian(48, 80, 43);
  EXPECT_LE(RelativeError(FirstUpdate(Muon(), gradient, 0.013).values,
                          FirstUpdate(Muon(), gradient).values),
            kSameDirection);
}

// cases row 53: both conventions, written out for two steps.
TEST_P(StepTest, MomentumFollowsTheDeclaredConvention) {
  constexpr double kMu = 0.95;
  const Matrix first = Gaussian(10, 10, 1);
  const Matrix second = Gaussian(10, 10, 2);
  const Hyper hyper{.lr = 1e-3, .weight_decay = 0.1, .momentum = kMu};
  for (const Momentum form : {Momentum::kEma, Momentum::kAccumulate}) {
    for (const bool nesterov : {true, false}) {
      Optimizer optimizer = Muon();
      optimizer.momentum = form;
      optimizer.nesterov = nesterov;
      const double share = form == Momentum::kEma ? 1.0 - kMu : 1.0;
      Unit unit(backend(), optimizer, hyper, Gaussian(10, 10, 3));
      std::vector<double> momentum(100);
      for (const Matrix* gradient : {&first, &second}) {
        Matrix direction = *gradient;
        for (size_t i = 0; i < momentum.size(); ++i) {
          const double g = gradient->values[i];
          momentum[i] = kMu * momentum[i] + share * g;
          direction.values[i] =
              static_cast<float>(nesterov ? share * g + kMu * momentum[i] : momentum[i]);
        }
        const Matrix update = Orthogonal(backend(), optimizer.newton_schulz, direction);
        std::vector<float> expected = unit.weight().values;
        for (size_t i = 0; i < expected.size(); ++i) {
          expected[i] = static_cast<float>((1.0 - 1e-4) * static_cast<double>(expected[i]) -
                                           1e-3 * static_cast<double>(update.values[i]));
        }
        unit.Step(*gradient);
        EXPECT_LE(RelativeError(unit.weight().values, expected), kOneRounding);
      }
      EXPECT_EQ(unit.step(), 2);
    }
  }
}

TEST_P(StepTest, RowAndColumnVectorsAreNormalised) {  // cases row 61, at the kernel
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 64}, {64, 1}}) {
    const Matrix gradient = Gaussian(rows, cols, 61);
    Optimizer optimizer = Muon();
    optimizer.scale = ScaleRule::kMatchRmsAdamw;
    const Matrix update = FirstUpdate(optimizer, gradient);
    const double size = 0.2 * std::sqrt(64.0) * kJordanOfOne;
    EXPECT_NEAR(Norm(update.values), size, 1e-5 * size);
    EXPECT_LE(RelativeError(update.values, Times(size / Norm(gradient.values), gradient).values),
              kSameDirection);
  }
}

TEST_P(StepTest, DirectionAndZeroStepsChangeNoState) {
  const Matrix gradient = Gaussian(8, 8, 5);
  Matrix weight = Gaussian(8, 8, 6);
  const Matrix momentum = Gaussian(8, 8, 7);
  std::vector<std::vector<float>> tensors = {momentum.values};
  const UnitState state = BindState(Muon(), 8, 8, weight.values, tensors, 3);
  Matrix update = gradient;
  backend().Direction(Muon(), {}, 1.0, gradient.values, state, update.values);
  EXPECT_EQ(weight.values, Gaussian(8, 8, 6).values);
  EXPECT_EQ(tensors[0], Gaussian(8, 8, 7).values);
  EXPECT_EQ(state.step, 3);
}

// cases row 80: a counter kept in bf16 would stop at 256, where 1 - 0.999^t is 13% too small.
TEST_P(StepTest, BiasCorrectionIsExactAtStep300) {
  constexpr int kSteps = 300;
  constexpr double kLr = 1e-2;
  const Matrix gradient = Gaussian(5, 7, 80);
  Optimizer optimizer = AdamW();
  Unit unit(backend(), optimizer, {.lr = kLr, .momentum = 0.9, .beta2 = 0.999},
            Times(0.0, gradient));
  std::vector<double> weight(gradient.values.size());
  for (int step = 1; step <= kSteps; ++step) {
    unit.Step(gradient);
    // For a constant gradient the corrected moments are g and g^2, whatever the step.
    for (size_t i = 0; i < weight.size(); ++i) {
      const double g = gradient.values[i];
      weight[i] -= kLr * g / (std::abs(g) + optimizer.second_moment_eps);
    }
  }
  EXPECT_EQ(unit.step(), kSteps);
  for (size_t i = 0; i < weight.size(); ++i) {
    // 300 roundings of the fp32 weight, near 3, and of the moments.
    EXPECT_NEAR(unit.weight().values[i], weight[i], 1e-4) << i;
  }
  std::vector<uint16_t> params(weight.size());
  backend().CastFromFloat(unit.weight().values, DType::kBFloat16, params.data());
  std::vector<float> back(weight.size());
  backend().CastToFloat(DType::kBFloat16, params.data(), back);
  constexpr double kHalfUlpOfBf16 = 1.0 / 256.0;
  EXPECT_LE(RelativeError(back, unit.weight().values), kHalfUlpOfBf16);
}

TEST_P(StepTest, AdamWWithoutBiasCorrectionUsesTheRawMoments) {
  Optimizer optimizer = AdamW();
  optimizer.bias_correction = false;
  Unit unit(backend(), optimizer, {.lr = 1.0, .momentum = 0.9, .beta2 = 0.99},
            Matrix{1, 1, {0.0F}});
  unit.Step(Matrix{1, 1, {2.0F}});
  EXPECT_NEAR(unit.weight().values[0], -0.2 / std::sqrt(0.04), 1e-6);
}

TEST_P(StepTest, AdamWBitsDoNotDependOnTheBoxes) {
  constexpr int64_t kSize = 101;
  Unit whole(backend(), AdamW(), {.lr = 1e-2, .weight_decay = 0.1}, Gaussian(1, kSize, 1));
  for (uint32_t step = 0; step < 4; ++step) whole.Step(Gaussian(1, kSize, 100 + step));
  for (int64_t begin = 0, length = 1; begin < kSize; begin += length, length += 4) {
    const int64_t end = std::min(begin + length, kSize);
    const auto piece = [&](const Matrix& m) {
      return Matrix{1, end - begin, {m.values.begin() + begin, m.values.begin() + end}};
    };
    Unit box(backend(), AdamW(), {.lr = 1e-2, .weight_decay = 0.1}, piece(Gaussian(1, kSize, 1)));
    for (uint32_t step = 0; step < 4; ++step) box.Step(piece(Gaussian(1, kSize, 100 + step)));
    EXPECT_EQ(box.weight().values, piece(whole.weight()).values) << begin;
  }
}

TEST_P(StepTest, LearningRateMayChangeBetweenSteps) {
  Unit unit(backend(), Muon(), {.lr = 0.1}, Gaussian(6, 6, 1));
  unit.Step(Gaussian(6, 6, 2));
  const std::vector<float> before = unit.weight().values;
  unit.hyper().lr = 0.0;
  unit.Step(Gaussian(6, 6, 3));
  EXPECT_EQ(unit.weight().values, before);
  EXPECT_EQ(unit.step(), 2);
}

}  // namespace
}  // namespace dmuon::kernels
