// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/optimizer.h"

#include <cmath>
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/matrices.h"

namespace dmuon::kernels {
namespace {

using testing::HasSubstr;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinite = std::numeric_limits<double>::infinity();

// The message of the refusal, or "accepted".
template <typename T>
std::string Verdict(const T& value) {
  const absl::Status status = Validate(value);
  if (status.ok()) return "accepted";
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(Validate, AcceptsTheRowsOfTheTable) {
  EXPECT_EQ(Verdict(Muon()), "accepted");
  EXPECT_EQ(Verdict(AdamW()), "accepted");
  EXPECT_EQ(Verdict(Hyper{}), "accepted");
}

TEST(Validate, HyperNamesFieldValueAndBound) {
  EXPECT_EQ(Verdict(Hyper{.lr = -0.5}), "lr is -0.5; must be finite and at least 0");
  EXPECT_THAT(Verdict(Hyper{.lr = kNaN}), HasSubstr("lr is nan"));
  EXPECT_THAT(Verdict(Hyper{.lr = kInfinite}), HasSubstr("lr is inf"));
  EXPECT_THAT(Verdict(Hyper{.weight_decay = -1.0}), HasSubstr("weight_decay is -1"));
  EXPECT_EQ(Verdict(Hyper{.momentum = 1.0}), "momentum is 1; must be in [0, 1)");
  EXPECT_THAT(Verdict(Hyper{.momentum = kNaN}), HasSubstr("momentum is nan"));
  EXPECT_THAT(Verdict(Hyper{.beta2 = -0.1}), HasSubstr("beta2 is -0.1"));
}

TEST(Validate, NewtonSchulzIsBounded) {
  Optimizer row = Muon();
  row.newton_schulz.iterations = 0;
  EXPECT_EQ(Verdict(row), "newton_schulz.iterations is 0; must be in [1, 99]");
  row.newton_schulz.iterations = 100;
  EXPECT_THAT(Verdict(row), HasSubstr("iterations is 100"));
  row = Muon();
  row.newton_schulz.eps = kNaN;
  EXPECT_THAT(Verdict(row), HasSubstr("newton_schulz.eps is nan"));
}

TEST(Validate, UnknownEnumeratorsAreRefused) {
  Optimizer row = Muon();
  row.scale = static_cast<ScaleRule>(200);
  EXPECT_EQ(Verdict(row), "scale is 200; must be at most 3");
  row = NuMuon();
  row.top_k.schedule = static_cast<RankSchedule>(2);
  EXPECT_EQ(Verdict(row), "rank_schedule is 2; must be at most 1");
  row = Muon();
  row.momentum = static_cast<Momentum>(2);
  EXPECT_THAT(Verdict(row), HasSubstr("momentum is 2"));
}

TEST(Validate, StagesThatMeanNothingTogetherAreRefused) {
  Optimizer row = Muon();
  row.second_moment = SecondMoment::kRows;
  EXPECT_THAT(Verdict(row), HasSubstr("second_moment is of rows"));
  row = NorMuon();
  row.rescale = Rescale::kNone;
  EXPECT_THAT(Verdict(row), HasSubstr("rescale"));
  row = AdaMuon();
  row.scale = ScaleRule::kOriginal;
  EXPECT_THAT(Verdict(row), HasSubstr("scale must be none"));
  row = Muon2Factored();
  row.moment_of = MomentOf::kUpdate;
  EXPECT_THAT(Verdict(row), HasSubstr("second_moment is factored"));
  row = Dion2();
  row.nesterov = true;
  EXPECT_THAT(Verdict(row), HasSubstr("selected is below 1"));
  row.nesterov = false;
  row.selected = 0.0;
  EXPECT_EQ(Verdict(row), "selected is 0; must be in (0, 1]");
  row = Mona();
  row.slow_beta = 1.0;
  EXPECT_EQ(Verdict(row), "slow_beta is 1; must be in [0, 1)");
  row = Muon();
  row.bias_correction = true;
  EXPECT_THAT(Verdict(row), HasSubstr("bias_correction"));
  row = AdamW();
  row.second_moment = SecondMoment::kNone;
  EXPECT_THAT(Verdict(row), HasSubstr("second_moment"));
  row = AdamW();
  row.nesterov = true;
  EXPECT_THAT(Verdict(row), HasSubstr("nesterov"));
  row = AdamW();
  row.scale = ScaleRule::kSpectral;
  EXPECT_THAT(Verdict(row), HasSubstr("scale"));
  row = AdamW();
  row.second_moment_eps = 0.0;
  EXPECT_EQ(Verdict(row), "second_moment_eps is 0; must be finite and above 0");
}

TEST(Scale, FollowsTheFlattenedMatrix) {
  constexpr double kPrinted = 5e-4;  // the expected numbers carry four digits
  // cases row 50: a (256, 16, 3, 3) convolution is 256 x 144.
  EXPECT_NEAR(Scale(ScaleRule::kOriginal, 256, 144), 1.3333, kPrinted);
  // cases row 51: a (64, 32, 3, 3) convolution is 64 x 288.
  EXPECT_NEAR(Scale(ScaleRule::kMatchRmsAdamw, 64, 288), 3.394, kPrinted);
  EXPECT_EQ(Scale(ScaleRule::kOriginal, 128, 512), 1.0);
  EXPECT_EQ(Scale(ScaleRule::kOriginal, 512, 128), 2.0);
  EXPECT_EQ(Scale(ScaleRule::kSpectral, 128, 512), 0.5);
  EXPECT_EQ(Scale(ScaleRule::kNone, 128, 512), 1.0);
}

Optimizer WithPolynomials(std::vector<Quintic> list, int iterations = 5) {
  Optimizer row = Muon();
  row.newton_schulz.coefficients = Polynomials(list);
  row.newton_schulz.iterations = iterations;
  return row;
}

TEST(Validate, PolynomialsOfOnesOwnMustKeepSingularValuesInRange) {
  EXPECT_EQ(Verdict(WithPolynomials({{2.0, -1.5, 0.5}}, 12)), "accepted");
  EXPECT_EQ(Verdict(WithPolynomials({kYou.begin(), kYou.end()}, 20)), "accepted");
  // 3 s leaves [-2, 2] behind s = 2/3; the grid's next point is 0.669.
  EXPECT_THAT(Verdict(WithPolynomials({{3.0, 0.0, 0.0}}, 1)),
              HasSubstr("coefficients take the singular value 0.669"));
  EXPECT_THAT(Verdict(WithPolynomials({{1.0, 0.0, 0.0}, {1.0, 0.0, 5.0}}, 2)), HasSubstr("in iteration 2; must stay"));
  // Sound up to 1, but not for what bf16 makes of it: hence the safety factor.
  EXPECT_THAT(Verdict(WithPolynomials({kPolarExpressRaw.begin(), kPolarExpressRaw.end()})),
              HasSubstr("take the singular value 1.00391"));
  EXPECT_EQ(Verdict(WithPolynomials({{2.0, -1.5, 0.5}, {kNaN, 0.0, 0.0}})),
            "newton_schulz.coefficients[1] is nan; must be finite");
  EXPECT_THAT(Verdict(WithPolynomials({})), HasSubstr("coefficients is empty; must be 1 to 20 triples"));
}

TEST(Validate, RanksAreSharesAndStepsAreCounted) {
  Optimizer row = NuMuon();
  EXPECT_EQ(Verdict(row), "accepted");
  row.top_k.rank_start = 0.0;
  EXPECT_EQ(Verdict(row), "rank_start is 0; must be in (0, 1]");
  row = NuMuon();
  row.top_k.rank_end = 1.01;
  EXPECT_EQ(Verdict(row), "rank_end is 1.01; must be in (0, 1]");
  row = NuMuon();
  row.top_k.rank_steps = -1;
  EXPECT_EQ(Verdict(row), "rank_steps is -1; must be finite and at least 0");
  row = Dion2();
  row.orthogonalizer = Orthogonalizer::kTopK;
  EXPECT_THAT(Verdict(row), HasSubstr("selected is below 1; then the orthogonalizer must be Newton-Schulz"));
}

TEST(Coefficients, AListOfASetsNumbersIsTheSet) {
  EXPECT_EQ(Polynomials(std::span<const Quintic>(kYou)), Polynomials(CoefficientSet::kYou));
  EXPECT_NE(Polynomials(CoefficientSet::kYou), Polynomials(CoefficientSet::kJordan));
}

TEST(Coefficients, LastPolynomialRepeats) {
  EXPECT_EQ(Polynomials(CoefficientSet::kYou).at(40), kYou[4]);
  EXPECT_EQ(Polynomials(CoefficientSet::kYou).at(1), kYou[1]);
}

// Steps a unit with gradients of +-`magnitude`, signs changing in three different rhythms, under
// changing momentum. True while all state is finite.
bool StaysFinite(Backend& backend, const Optimizer& optimizer, double magnitude) {
  constexpr int kSteps = 60;
  Unit unit(backend, optimizer, {.lr = 1e-3, .weight_decay = 0.1}, Gaussian(3, 4, 1));
  const double down = std::nextafter(static_cast<float>(magnitude), 0.0F);  // never above magnitude
  for (int step = 0; step < kSteps; ++step) {
    Matrix gradient{3, 4, std::vector<float>(12)};
    for (size_t i = 0; i < gradient.values.size(); ++i) {
      const int rhythm = static_cast<int>(i % 4);
      const bool negative = rhythm != 0 && step / rhythm % 2 != 0;
      gradient.values[i] = static_cast<float>(negative ? -down : down);
    }
    unit.Step(gradient);
    if (!backend.Measure(unit.weight().values).finite) return false;
    for (const std::vector<float>& tensor : unit.tensors()) {
      if (!backend.Measure(tensor).finite) return false;
    }
  }
  return true;
}

class SafeGradientTest : public BackendTest {};

TEST_P(SafeGradientTest, LargestSafeGradientKeepsAllStateFinite) {
  const Hyper hyper;
  Optimizer accumulate = Muon();
  accumulate.momentum = Momentum::kAccumulate;
  for (const Optimizer& optimizer : {Muon(), accumulate, AdamW(), NorMuon(), AdaMuon(), Muon2(), Muon2Factored(),
                                     Mona(), Dion2()}) {
    EXPECT_TRUE(StaysFinite(backend(), optimizer, LargestSafeGradient(optimizer, hyper)));
  }
}

TEST_P(SafeGradientTest, BoundIsNotSlack) {
  const Hyper hyper;
  EXPECT_EQ(LargestSafeGradient(Muon(), hyper), std::numeric_limits<float>::max());
  constexpr double kBeyond = 1.1;
  EXPECT_FALSE(StaysFinite(backend(), AdamW(), kBeyond * LargestSafeGradient(AdamW(), hyper)));

  // Momentum alone: Newton-Schulz would refuse the direction before the state could show it.
  const Optimizer accumulate{.momentum = Momentum::kAccumulate};
  const double beyond = kBeyond * LargestSafeGradient(accumulate, hyper);
  const std::vector<float> gradient = {static_cast<float>(beyond)};
  std::vector<float> update = {0.0F};
  std::vector<float> weight = {1.0F};
  std::vector<std::vector<float>> tensors = {{0.0F}};
  UnitState state = BindState(accumulate, 1, 1, weight, tensors, 0);
  constexpr int kSteps = 100;  // 0.95^100 = 0.006: M is within 1% of gradient / (1 - mu)
  for (int step = 0; step < kSteps; ++step) {
    backend().Apply(accumulate, hyper, 1.0, gradient, update, state);
  }
  EXPECT_FALSE(std::isfinite(tensors[0][0]));
}

DMUON_INSTANTIATE_BACKENDS(SafeGradientTest);

TEST(IsProven, Bf16GramIsForPublishedSetsUpToFiveIterationsAndAllElseIsForAny) {
  constexpr Method kMixed{Form::kGram, Precision::kBFloat16};
  const Quintic own[] = {{2.0, -1.5, 0.5}};
  for (const CoefficientSet set : kCoefficientSets) {
    for (int iterations = 1; iterations <= 9; ++iterations) {
      EXPECT_EQ(IsProven({.coefficients = set, .iterations = iterations}, kMixed), iterations <= 5) << iterations;
    }
  }
  EXPECT_TRUE(IsProven({.coefficients = Polynomials(kYou)}, kMixed)) << "the same list, however it was given";
  EXPECT_FALSE(IsProven({.coefficients = Polynomials(own)}, kMixed));
  for (int i = 0; i < kMethods; ++i) {
    if (MethodAt(i) == kMixed) continue;
    EXPECT_TRUE(IsProven({.coefficients = Polynomials(own), .iterations = 9}, MethodAt(i))) << i;
  }
}

}  // namespace
}  // namespace dmuon::kernels
