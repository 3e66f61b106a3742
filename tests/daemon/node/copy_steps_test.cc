// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/copy_steps.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace dmuon::node {
namespace {

// "3 4-6": in the order of the two places.
std::string TextOf(const CopySteps& steps) {
  google::protobuf::RepeatedPtrField<v1::StepRange> ranges;
  steps.Describe(ranges);
  std::string text;
  for (const v1::StepRange& range : ranges) {
    absl::StrAppend(&text, text.empty() ? "" : " ", range.first());
    if (range.last() != range.first()) absl::StrAppend(&text, "-", range.last());
  }
  return text;
}

CopySteps With(std::initializer_list<uint64_t> arrived) {
  CopySteps steps;
  for (const uint64_t step : arrived) steps.Arrived(steps.GiveWay(step), step);
  return steps;
}

TEST(CopyStepsTest, TheOlderCopyGivesWayAndTheNewerStaysWhole) {
  CopySteps steps = With({3, 4});
  EXPECT_EQ(TextOf(steps), "3 4");
  const size_t place = steps.GiveWay(5);
  EXPECT_EQ(TextOf(steps), "4");  // 5 is on its way
  EXPECT_EQ(steps.Find(5), std::nullopt);
  steps.Arrived(place, 5);
  EXPECT_EQ(TextOf(steps), "5 4");
  EXPECT_EQ(steps.newest(), 5U);
}

TEST(CopyStepsTest, WhatBrokeOffIsNoCopyAndItsPlaceIsTakenAgain) {
  CopySteps steps = With({3, 4});
  const size_t broken = steps.GiveWay(5);
  EXPECT_EQ(steps.GiveWay(5), broken);
  EXPECT_EQ(TextOf(steps), "4");
}

TEST(CopyStepsTest, WhatIsSentAgainStaysMeanwhile) {
  CopySteps steps = With({3, 4});
  const size_t again = steps.GiveWay(4);
  EXPECT_EQ(steps.Find(4), again);
  EXPECT_EQ(TextOf(steps), "3 4");
}

TEST(CopyStepsTest, ASkippedStepMakesTheLastCopyOneOfItToo) {
  CopySteps steps = With({3, 4});
  steps.Extend(5);
  EXPECT_EQ(TextOf(steps), "3 4-5");
  steps.Extend(7);  // of another state
  EXPECT_EQ(TextOf(steps), "3 4-5");
  EXPECT_EQ(steps.Find(5), steps.Find(4));
}

TEST(CopyStepsTest, WhatHasNotBeenIsForgotten) {
  CopySteps steps = With({3, 5});
  steps.Extend(6);
  steps.ForgetAfter(5);
  EXPECT_EQ(TextOf(steps), "3 5");
  steps.ForgetAfter(4);
  EXPECT_EQ(TextOf(steps), "3");
  steps.Forget();
  EXPECT_EQ(steps.newest(), std::nullopt);
}

}  // namespace
}  // namespace dmuon::node
