// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/autotuner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "daemon/plan/methods.h"
#include "daemon/plan/timings.h"
#include "tests/daemon/base/temp_dir.h"
#include "tests/daemon/node/diverging_backend.h"
#include "tests/daemon/plan/job_builder.h"

namespace dmuon::node {
namespace {

using testing::SizeIs;

class AutotunerTest : public testing::Test {
 protected:
  AutotunerTest() : backend_(kernels::MakeBackend("cpu").value()), memory_(uint64_t{1} << 30) {
    options_.cache_directory = directory_.File("deep/cache");
    options_.slots = 2;
  }
  std::vector<v1::UnitTime> Times(v1::Autotune autotune, bool cancelled = false) {
    v1::JobSpec job = plan::JobBuilder(1).Matrix("a", 24, 40).Matrix("b", 64, 8).Elementwise("c", {40}).Build();
    job.set_autotune(autotune);
    Autotuner tuner(options_, backend_.get(), &memory_);
    std::vector<v1::UnitTime> times = tuner.TimesFor(job, [=] { return cancelled; });
    described_ = tuner.Describe();
    return times;
  }
  static std::vector<double> Seconds(const std::vector<v1::UnitTime>& times) {
    std::vector<double> seconds;
    for (const v1::UnitTime& time : times) seconds.push_back(time.seconds());
    return seconds;
  }

  TempDir directory_;
  AutotunerOptions options_;
  std::unique_ptr<kernels::Backend> backend_;
  MemoryBudget memory_;
  v1::GetKernelsResponse described_;
};

TEST_F(AutotunerTest, EveryFormOfEveryShapeIsMeasuredAndChecked) {
  const std::vector<v1::UnitTime> times = Times(v1::AUTOTUNE_CACHED);
  ASSERT_EQ(times.size(), 5U) << "two matrices in two forms, and the element-wise class";
  for (const v1::UnitTime& time : times) {
    EXPECT_GT(time.seconds(), 0.0);
    EXPECT_FALSE(time.extrapolated());
    EXPECT_TRUE(plan::IsAccurate(time)) << time.ShortDebugString();
    const bool other_form = time.method().form() == v1::FORM_GRAM;
    EXPECT_EQ(time.error() > 0.0, other_form) << "the standard form is what the others are compared with";
  }
  EXPECT_EQ(described_.times_size(), 5);
  EXPECT_EQ(described_.backend(), "cpu");
  EXPECT_EQ(described_.slots(), 2U);
  EXPECT_EQ(described_.progress(), "");
}

TEST_F(AutotunerTest, WhatIsCachedIsNotMeasuredAgain) {
  const std::vector<double> first = Seconds(Times(v1::AUTOTUNE_CACHED));
  // To the nanosecond: a clock would not give them twice.
  EXPECT_EQ(Seconds(Times(v1::AUTOTUNE_CACHED)), first);
  EXPECT_NE(Seconds(Times(v1::AUTOTUNE_ON)), first);
}

TEST_F(AutotunerTest, OffMeasuresNothing) {
  EXPECT_EQ(Times(v1::AUTOTUNE_OFF).size(), 0U);
  EXPECT_EQ(Times(v1::AUTOTUNE_UNSPECIFIED).size(), 0U);
  EXPECT_FALSE(std::filesystem::exists(options_.cache_directory));
}

TEST_F(AutotunerTest, OtherSlotsAreAnotherMachine) {
  const std::vector<double> first = Seconds(Times(v1::AUTOTUNE_CACHED));
  options_.slots = 1;
  EXPECT_NE(Seconds(Times(v1::AUTOTUNE_CACHED)), first);
}

TEST_F(AutotunerTest, ADamagedFileCountsAsNoneAndIsReplaced) {
  const std::vector<double> first = Seconds(Times(v1::AUTOTUNE_CACHED));
  std::ofstream(described_.cache(), std::ios::trunc) << "{\"version\": \"";
  const std::vector<double> again = Seconds(Times(v1::AUTOTUNE_CACHED));
  EXPECT_NE(again, first);
  EXPECT_EQ(Seconds(Times(v1::AUTOTUNE_CACHED)), again);
}

TEST_F(AutotunerTest, WithoutADirectoryTimesEndWithTheProcess) {
  options_.cache_directory.clear();
  const std::vector<double> first = Seconds(Times(v1::AUTOTUNE_CACHED));
  EXPECT_THAT(first, SizeIs(5));
  EXPECT_EQ(described_.cache(), "");
  EXPECT_NE(Seconds(Times(v1::AUTOTUNE_CACHED)), first);
}

TEST_F(AutotunerTest, ADirectoryThatCannotBeMadeCostsOnlyTheMemoryOfIt) {
  std::ofstream(directory_.File("deep")) << "a file";
  EXPECT_EQ(Times(v1::AUTOTUNE_CACHED).size(), 5U);
}

TEST_F(AutotunerTest, WithoutTimeNothingIsKnown) {
  options_.budget = absl::ZeroDuration();
  EXPECT_EQ(Times(v1::AUTOTUNE_CACHED).size(), 0U);
}

TEST_F(AutotunerTest, WhatDoesNotFitIntoMemoryIsEstimatedFromWhatDoes) {
  v1::JobSpec job = plan::JobBuilder(1).Matrix("a", 64, 64).Matrix("b", 512, 512).Build();
  job.set_autotune(v1::AUTOTUNE_ON);
  MemoryBudget little(uint64_t{2} << 20);
  Autotuner tuner(options_, backend_.get(), &little);
  const std::vector<v1::UnitTime> times = tuner.TimesFor(job, [] { return false; });
  ASSERT_EQ(times.size(), 4U);
  for (const v1::UnitTime& time : times) {
    EXPECT_EQ(time.extrapolated(), time.rows() == 512);
  }
  // 512 times the operations.
  EXPECT_NEAR(times[2].seconds() / times[0].seconds(), 512.0, 1.0);
  EXPECT_TRUE(little.Take(uint64_t{2} << 20, "all").ok()) << "what measuring took is given back";
  EXPECT_EQ(tuner.Describe().times_size(), 2) << "estimates are not kept";
}

TEST_F(AutotunerTest, ACancelledMeasurementGivesNothing) {
  EXPECT_EQ(Times(v1::AUTOTUNE_CACHED, /*cancelled=*/true).size(), 0U);
}

TEST_F(AutotunerTest, AFormThatDivergesIsNeverChosen) {
  backend_ = std::make_unique<DivergingBackend>();
  const std::vector<std::vector<v1::UnitTime>> times = {Times(v1::AUTOTUNE_CACHED)};
  for (const v1::UnitTime& time : times.front()) {
    EXPECT_EQ(std::isinf(time.error()), time.method().form() == v1::FORM_GRAM);
  }
  const std::vector<v1::UnitTime> stored = Times(v1::AUTOTUNE_CACHED);
  EXPECT_EQ(Seconds(stored), Seconds(times.front())) << "infinite errors survive the file";
  v1::Group group;
  group.mutable_muon()->set_variant(v1::VARIANT_MUON);
  const auto choice = plan::Timings::Of(times).Fastest(group, {64, 8});
  ASSERT_TRUE(choice.has_value());
  EXPECT_EQ(choice->method.form, kernels::Form::kStandard);
}

}  // namespace
}  // namespace dmuon::node
