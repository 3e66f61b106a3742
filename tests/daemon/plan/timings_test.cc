// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/plan/timings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "absl/strings/str_cat.h"
#include "daemon/plan/cost.h"
#include "daemon/plan/methods.h"
#include "daemon/plan/plan.h"
#include "daemon/plan/units.h"
#include "tests/daemon/plan/job_builder.h"

namespace dmuon::plan {
namespace {

using kernels::Form;
using kernels::Precision;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr kernels::Method kStandard{Form::kStandard, Precision::kFloat32};
constexpr kernels::Method kGram{Form::kGram, Precision::kFloat32};
constexpr kernels::Method kStandardHalf{Form::kStandard, Precision::kBFloat16};

std::string Text(const ShapeClass& units) {
  return absl::StrCat(units.shape.rows, "x", units.shape.cols, " ", units.methods.size());
}

std::vector<std::string> Texts(const v1::JobSpec& job) {
  std::vector<std::string> texts;
  for (const ShapeClass& units : ShapeClasses(job)) texts.push_back(Text(units));
  return texts;
}

v1::JobSpec SmallJob() {
  return JobBuilder(1).Matrix("a", 8, 16).Matrix("b", 32, 4).Elementwise("c", {40}).Build();
}

v1::UnitTime& Find(std::vector<v1::UnitTime>& times, int64_t rows, const kernels::Method& method) {
  for (v1::UnitTime& time : times) {
    if (time.rows() == rows && time.has_method() && FromProto(time.method()) == method) return time;
  }
  ADD_FAILURE() << "no such time";
  return times.front();
}

Timings TimingsOf(std::vector<std::vector<v1::UnitTime>> nodes) { return Timings::Of(nodes); }

std::optional<Timings::Choice> ChoiceOf(const v1::JobSpec& job, const Timings& timings, int tensor) {
  const v1::Tensor& of = job.tensors(tensor);
  return timings.Fastest(job.groups(static_cast<int>(of.group())), MatricesOf(of, WholeTensor(of)).front());
}

TEST(TimingsTest, WhatIsTheSameIsMeasuredOnce) {
  JobBuilder builder(1);
  builder.Matrix("a", 8, 16).Matrix("b", 8, 16).Matrix("qkv", 24, 16, {8, 8, 8}).Matrix("c", 16, 8);
  builder.Elementwise("d", {5}).Elementwise("e", {7, 9});
  EXPECT_THAT(Texts(builder.Build()), ElementsAre("8x16 2", "16x8 2", "1x2097152 1"));
}

TEST(TimingsTest, AutomaticPrecisionMeasuresBoth) {
  v1::JobSpec job = JobBuilder(1).Matrix("a", 8, 16).Build();
  job.mutable_groups(0)->mutable_muon()->set_precision(v1::PRECISION_AUTO);
  EXPECT_THAT(Texts(job), ElementsAre("8x16 4"));
}

TEST(TimingsTest, AnotherOptimizerIsAnotherClassButAnotherNameOrPrecisionIsNot) {
  v1::JobSpec job = JobBuilder(1).Matrix("a", 8, 16).Build();
  for (const v1::Variant variant : {v1::VARIANT_MUON, v1::VARIANT_NORMUON}) {
    v1::Group& group = *job.add_groups();
    group.set_name(absl::StrCat("group", job.groups_size()));
    group.mutable_muon()->set_variant(variant);
    group.mutable_muon()->set_precision(v1::PRECISION_BF16);
    v1::Tensor& tensor = *job.add_tensors();
    tensor = job.tensors(0);
    tensor.set_name(group.name());
    tensor.set_group(static_cast<uint32_t>(job.groups_size() - 1));
  }
  EXPECT_THAT(Texts(job), ElementsAre("8x16 4", "8x16 2"));
}

TEST(TimingsTest, TheFastestAccurateMethodIsChosen) {
  v1::JobSpec job = SmallJob();
  job.mutable_groups(0)->mutable_muon()->set_precision(v1::PRECISION_AUTO);
  std::vector<v1::UnitTime> times = TimesOf(job);
  Find(times, 8, kGram).set_seconds(0.5);
  Find(times, 8, kStandardHalf).set_seconds(0.25);
  EXPECT_EQ(ChoiceOf(job, TimingsOf({times}), 0)->method, kStandardHalf);
  Find(times, 8, kStandardHalf).set_error(0.06);
  EXPECT_EQ(ChoiceOf(job, TimingsOf({times}), 0)->method, kGram);
  Find(times, 8, kGram).set_error(std::numeric_limits<double>::infinity());
  EXPECT_DOUBLE_EQ(ChoiceOf(job, TimingsOf({times}), 0)->seconds, 1.0);
}

TEST(TimingsTest, APrecisionThatTheGroupDoesNotAllowIsNotChosen) {
  v1::JobSpec job = SmallJob();
  job.mutable_groups(0)->mutable_muon()->set_precision(v1::PRECISION_AUTO);
  std::vector<v1::UnitTime> times = TimesOf(job);
  Find(times, 8, kStandardHalf).set_seconds(1e-3);
  job.mutable_groups(0)->mutable_muon()->set_precision(v1::PRECISION_FP32);
  EXPECT_EQ(ChoiceOf(job, TimingsOf({times}), 0)->method.precision, Precision::kFloat32);
}

// Times that another job or an older version left behind.
TEST(TimingsTest, AMethodThatIsNotProvenIsNotChosenHoweverFastAndAccurateItMeasured) {
  v1::JobSpec job = SmallJob();
  job.mutable_groups(0)->mutable_muon()->set_precision(v1::PRECISION_AUTO);
  job.mutable_groups(0)->mutable_muon()->set_iterations(8);
  std::vector<v1::UnitTime> times = TimesOf(job);
  times.push_back(Find(times, 8, kStandardHalf));
  times.back().mutable_method()->set_form(v1::FORM_GRAM);
  times.back().set_seconds(1e-3);
  Find(times, 8, kGram).set_seconds(0.5);
  EXPECT_EQ(ChoiceOf(job, TimingsOf({times}), 0)->method, kGram);
}

TEST(TimingsTest, NodesCountAlikeAndTheWorstErrorDecides) {
  const v1::JobSpec job = SmallJob();
  std::vector<v1::UnitTime> slow = TimesOf(job, 3.0);
  const std::vector<v1::UnitTime> fast = TimesOf(job, 1.0);
  EXPECT_DOUBLE_EQ(ChoiceOf(job, TimingsOf({slow, fast}), 0)->seconds, 2.0);
  Find(slow, 8, kStandard).set_error(1.0);
  EXPECT_EQ(ChoiceOf(job, TimingsOf({slow, fast}), 0)->method, kGram);
}

TEST(TimingsTest, ElementwiseUnitsArePricedByTheirSize) {
  const v1::JobSpec job = JobBuilder(1).Elementwise("a", {1 << 21}).Elementwise("b", {1 << 20}).Build();
  const Timings timings = TimingsOf({TimesOf(job, 4.0)});
  EXPECT_DOUBLE_EQ(ChoiceOf(job, timings, 0)->seconds, 4.0);
  EXPECT_DOUBLE_EQ(ChoiceOf(job, timings, 1)->seconds, 2.0);
}

TEST(TimingsTest, APlanTakesMethodsAndPricesFromMeasurements) {
  const v1::JobSpec job = SmallJob();
  std::vector<v1::UnitTime> times = TimesOf(job);
  Find(times, 8, kGram).set_seconds(0.25);
  const std::vector<NodeSlots> nodes = {{"n", 1}};
  const v1::Plan plan = MakePlan(job, Replicate(job), nodes, 1, "test", TimingsOf({times})).value();
  EXPECT_EQ(FromProto(plan.units(0).methods(0)), kGram);
  EXPECT_NEAR(plan.units(0).cost_seconds(), 0.25, 1e-5);
  EXPECT_EQ(FromProto(plan.units(1).methods(0)), kStandard) << "although it takes more operations";
  EXPECT_EQ(plan.reason(), "test, prices as measured");
}

TEST(TimingsTest, WhatOneNodeHasNotMeasuredIsPricedByOperationCountsAltogether) {
  const v1::JobSpec job = SmallJob();
  std::vector<v1::UnitTime> fewer = TimesOf(job);
  fewer.erase(fewer.begin(), fewer.begin() + 2);
  const std::vector<NodeSlots> nodes = {{"n", 1}};
  const v1::Plan without = MakePlan(job, Replicate(job), nodes, 1, "test").value();
  const v1::Plan plan = MakePlan(job, Replicate(job), nodes, 1, "test", TimingsOf({TimesOf(job), fewer})).value();
  EXPECT_EQ(plan.digest(), without.digest());
  EXPECT_EQ(plan.units(1).cost_seconds(), UnitSeconds(job.groups(0), {{32, 4}}));
  EXPECT_EQ(plan.reason(), "test");
}

TEST(TimingsTest, TimesOutOfBoundsAreRefusedByName) {
  const std::vector<v1::UnitTime> times = TimesOf(SmallJob());
  EXPECT_TRUE(ValidateTimes(times).ok());
  const auto refusal = [&](auto change) {
    std::vector<v1::UnitTime> bad = times;
    change(bad[1]);
    const absl::Status status = ValidateTimes(bad);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(refusal([](v1::UnitTime& time) { time.set_seconds(0.0); }), HasSubstr("0 s with an error of 0 for 8 x 16"));
  EXPECT_THAT(refusal([&](v1::UnitTime& time) { time.set_seconds(nan); }), HasSubstr("nan s"));
  EXPECT_THAT(refusal([&](v1::UnitTime& time) { time.set_error(nan); }), HasSubstr("an error of nan"));
  EXPECT_THAT(refusal([](v1::UnitTime& time) { time.set_rows(-1); }), HasSubstr("-1 x 16"));
  EXPECT_THAT(std::string(ValidateTimes(std::vector<v1::UnitTime>(16'385, times[0])).message()),
              HasSubstr("16385 measured times, at most 16384"));
}

}  // namespace
}  // namespace dmuon::plan
