// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/plan/optimizers.h"

#include <span>
#include <string>
#include <vector>

#include "daemon/plan/cost.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dmuon::plan {
namespace {

using testing::HasSubstr;

v1::Group GroupOf(v1::Variant variant) {
  v1::Group group;
  group.set_name("muon");
  group.mutable_muon()->set_variant(variant);
  return group;
}

std::string Refusal(const v1::Group& group) {
  v1::JobSpec job;
  *job.add_groups() = group;
  const absl::Status status = ValidateOptimizers(job);
  EXPECT_FALSE(status.ok());
  return std::string(status.message());
}

TEST(Optimizers, EveryVariantIsValidAsItIs) {
  for (int variant = v1::Variant_MIN; variant <= v1::Variant_MAX; ++variant) {
    v1::JobSpec job;
    *job.add_groups() = GroupOf(static_cast<v1::Variant>(variant));
    EXPECT_TRUE(ValidateOptimizers(job).ok()) << ValidateOptimizers(job);
  }
}

TEST(Optimizers, WhatTheGroupSaysReplacesTheVariantsOwn) {
  v1::Group group = GroupOf(v1::VARIANT_MUON2);
  EXPECT_EQ(ToOptimizer(group).newton_schulz.iterations, 3);
  group.mutable_muon()->set_iterations(5);
  group.mutable_muon()->set_nesterov(true);
  group.mutable_muon()->set_momentum_form(v1::MOMENTUM_FORM_EMA);
  group.mutable_muon()->set_coefficients(v1::COEFFICIENT_SET_YOU);
  group.mutable_muon()->set_eps_mode(v1::EPS_MODE_CLAMP);
  group.mutable_muon()->set_eps(0.0);
  group.mutable_muon()->set_scale(v1::SCALE_RULE_MATCH_RMS_ADAMW);
  group.mutable_muon()->set_second_moment_eps(1e-6);
  group.mutable_muon()->set_weight_decay(v1::WEIGHT_DECAY_CAUTIOUS);
  const kernels::Optimizer row = ToOptimizer(group);
  EXPECT_EQ(row.newton_schulz.iterations, 5);
  EXPECT_TRUE(row.nesterov);
  EXPECT_EQ(row.momentum, kernels::Momentum::kEma);
  EXPECT_EQ(row.newton_schulz.coefficients, kernels::CoefficientSet::kYou);
  EXPECT_EQ(row.newton_schulz.eps_mode, kernels::EpsMode::kClamp);
  EXPECT_EQ(row.newton_schulz.eps, 0.0);
  EXPECT_EQ(row.scale, kernels::ScaleRule::kMatchRmsAdamw);
  EXPECT_EQ(row.second_moment_eps, 1e-6);
  EXPECT_EQ(row.weight_decay, kernels::WeightDecay::kCautious);
  EXPECT_EQ(row.second_moment, kernels::SecondMoment::kElementwise);
}

TEST(Optimizers, AccelerationFollowsTheSlowMeanUnlessItIsGiven) {
  v1::Group group = GroupOf(v1::VARIANT_MONA);
  EXPECT_DOUBLE_EQ(ToOptimizer(group).acceleration, -50.0);
  group.mutable_muon()->set_slow_beta(0.975);
  EXPECT_NEAR(ToOptimizer(group).acceleration, -20.0, 1e-9);
  group.mutable_muon()->set_acceleration(-1.0);
  EXPECT_EQ(ToOptimizer(group).acceleration, -1.0);
}

TEST(Optimizers, ASettingOfAnotherVariantIsRefusedByName) {
  v1::Group group = GroupOf(v1::VARIANT_MUON);
  group.mutable_muon()->set_slow_beta(0.9);
  EXPECT_EQ(Refusal(group), "group 'muon': slow_beta means nothing to VARIANT_MUON");
  group = GroupOf(v1::VARIANT_MONA);
  group.mutable_muon()->set_rescale(v1::RESCALE_RMS);
  EXPECT_EQ(Refusal(group), "group 'muon': rescale means nothing to VARIANT_MONA");
  group = GroupOf(v1::VARIANT_NORMUON);
  group.mutable_muon()->set_rms(0.1);
  EXPECT_EQ(Refusal(group), "group 'muon': rms means nothing to VARIANT_NORMUON");
  group.mutable_muon()->set_rescale(v1::RESCALE_RMS);
  group.mutable_muon()->set_rms(-1.0);
  EXPECT_THAT(Refusal(group), HasSubstr("group 'muon': rms is -1; must be finite and above 0"));
  group = GroupOf(v1::VARIANT_DION2);
  group.mutable_muon()->set_selected(2.0);
  EXPECT_THAT(Refusal(group), HasSubstr("group 'muon': selected is 2; must be in (0, 1]"));
}

TEST(Optimizers, PolynomialsOfTheGroupReplaceTheSet) {
  v1::Group group = GroupOf(v1::VARIANT_MUON);
  for (const double a : {2.0, 1.5}) {
    v1::Quintic* quintic = group.mutable_muon()->add_polynomials();
    quintic->set_a(a);
    quintic->set_b(-0.5);
  }
  const kernels::Optimizer optimizer = ToOptimizer(group);
  const std::span<const kernels::Quintic> list = optimizer.newton_schulz.coefficients.list();
  EXPECT_THAT(std::vector(list.begin(), list.end()),
              testing::ElementsAre(kernels::Quintic{2.0, -0.5, 0.0}, kernels::Quintic{1.5, -0.5, 0.0}));
  group.mutable_muon()->mutable_polynomials(0)->set_a(9.0);
  EXPECT_THAT(Refusal(group), HasSubstr("group 'muon': newton_schulz.coefficients take the singular value"));
}

TEST(Optimizers, NuMuonHasRanksAndNoNewtonSchulz) {
  v1::Group group = GroupOf(v1::VARIANT_NUMUON);
  group.mutable_muon()->set_rank_start(1.0);
  group.mutable_muon()->set_rank_end(0.5);
  group.mutable_muon()->set_rank_steps(100);
  group.mutable_muon()->set_rank_schedule(v1::RANK_SCHEDULE_LINEAR);
  const kernels::TopK top_k = ToOptimizer(group).top_k;
  EXPECT_EQ(top_k.rank_start, 1.0);
  EXPECT_EQ(top_k.rank_end, 0.5);
  EXPECT_EQ(top_k.rank_steps, 100);
  EXPECT_EQ(top_k.schedule, kernels::RankSchedule::kLinear);
  group.mutable_muon()->set_iterations(5);
  EXPECT_EQ(Refusal(group), "group 'muon': iterations means nothing to VARIANT_NUMUON");
  group = GroupOf(v1::VARIANT_NUMUON);
  group.mutable_muon()->set_precision(v1::PRECISION_BF16);
  EXPECT_EQ(Refusal(group), "group 'muon': precision bf16 means nothing to VARIANT_NUMUON");
  group = GroupOf(v1::VARIANT_NUMUON);
  group.mutable_muon()->set_rank_end(0.5);
  EXPECT_EQ(Refusal(group), "group 'muon': rank_end means nothing without rank_steps");
  group = GroupOf(v1::VARIANT_MUON);
  group.mutable_muon()->set_rank_steps(10);
  EXPECT_EQ(Refusal(group), "group 'muon': rank_steps means nothing to VARIANT_MUON");
}

TEST(Optimizers, PricesFollowStateAndWork) {
  const std::vector<kernels::MatrixShape> unit = {{512, 1024}};
  const auto bytes = [&](v1::Variant variant) { return UnitBytes(GroupOf(variant), unit); };
  const int64_t matrix = 4 * 512 * 1024;
  EXPECT_EQ(bytes(v1::VARIANT_MUON), 3 * matrix);
  EXPECT_EQ(bytes(v1::VARIANT_NORMUON), 3 * matrix + 4 * 512);
  EXPECT_EQ(bytes(v1::VARIANT_MUON2_FACTORED), 3 * matrix + 4 * (512 + 1024));
  EXPECT_EQ(bytes(v1::VARIANT_ADAMUON), 4 * matrix);
  EXPECT_EQ(bytes(v1::VARIANT_MONA), 4 * matrix);
  EXPECT_EQ(bytes(v1::VARIANT_NUMUON), 3 * matrix + 4 * 128 * 512);  // a quarter of the shorter side
  const auto seconds = [&](v1::Variant variant) { return UnitSeconds(GroupOf(variant), unit); };
  EXPECT_LT(seconds(v1::VARIANT_DION2), 0.3 * seconds(v1::VARIANT_MUON));
  EXPECT_LT(seconds(v1::VARIANT_MUON2), seconds(v1::VARIANT_MUON));
  EXPECT_GT(seconds(v1::VARIANT_MONA), seconds(v1::VARIANT_MUON));
  v1::Group narrow = GroupOf(v1::VARIANT_NUMUON);
  narrow.mutable_muon()->set_rank_start(0.02);
  EXPECT_LT(UnitSeconds(narrow, unit), 0.3 * seconds(v1::VARIANT_NUMUON));
  // The largest rank of the schedule counts.
  narrow.mutable_muon()->set_rank_end(0.25);
  narrow.mutable_muon()->set_rank_steps(10);
  EXPECT_EQ(UnitSeconds(narrow, unit), seconds(v1::VARIANT_NUMUON));
}

}  // namespace
}  // namespace dmuon::plan
