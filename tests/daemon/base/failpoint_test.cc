// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/base/failpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <array>
#include <string>

namespace dmuon {
namespace {

using ::testing::HasSubstr;

constexpr const char* kStep = "dmuon.v1.NodeService/Step";

class FailpointTest : public ::testing::Test {
 protected:
  ~FailpointTest() override { EXPECT_TRUE(Arm(nullptr).ok()); }

  static absl::Status Arm(const char* list) {
    return ArmFailpoints(list, std::array<absl::string_view, 1>{"dmuon.v1.NodeService"});
  }
  static std::string Refusal(const char* list) {
    const absl::Status status = Arm(list);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << list;
    return std::string(status.message());
  }
};

TEST_F(FailpointTest, WhatIsNotArmedDoesNothing) {
  for (const char* list : {static_cast<const char*>(nullptr), "", "step.judged=exit"}) {
    ASSERT_TRUE(Arm(list).ok());
    AtFailpoint(Failpoint::kStepUnit);
    EXPECT_FALSE(LosesAnswer(kStep));
  }
}

TEST_F(FailpointTest, AnAnswerIsLostAtTheTimesThatAreNamed) {
  ASSERT_TRUE(Arm("NodeService/Step=lose,NodeService/Step=lose@3,NodeService/Begin=lose").ok());
  EXPECT_TRUE(LosesAnswer(kStep));
  EXPECT_FALSE(LosesAnswer(kStep));
  EXPECT_TRUE(LosesAnswer(kStep));
  EXPECT_FALSE(LosesAnswer(kStep));
  EXPECT_TRUE(LosesAnswer("dmuon.v1.NodeService/Begin"));
}

TEST_F(FailpointTest, AnExitIsThatOfKillNine) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  ASSERT_TRUE(Arm("step.unit=exit@2").ok());
  AtFailpoint(Failpoint::kStepUnit);
  EXPECT_EXIT(AtFailpoint(Failpoint::kStepUnit), ::testing::KilledBySignal(SIGKILL),
              "step.unit strikes: exit at time 2");
}

TEST_F(FailpointTest, AWrongNameIsRefusedWithAllThatThereAre) {
  const std::string why = Refusal("step.unit=exit,step.umit=exit");
  EXPECT_THAT(why, HasSubstr("'step.umit' is no failpoint; there are: step.reduced, step.judged,"));
  EXPECT_THAT(why, HasSubstr("NodeService/Open, NodeService/Register,"));
  EXPECT_THAT(Refusal("CoordinatorService/Join=lose"), HasSubstr("is no failpoint"));  // not served here
  EXPECT_THAT(Refusal("step.unit=exit,"), HasSubstr("'' is no failpoint"));
}

TEST_F(FailpointTest, AWrongActionIsRefusedAndArmsNothing) {
  EXPECT_THAT(Refusal("NodeService/Step=lose,step.unit=die"),
              HasSubstr("'die' of step.unit is no action; there are: exit"));
  EXPECT_FALSE(LosesAnswer(kStep));
  EXPECT_THAT(Refusal("step.unit"), HasSubstr("'' of step.unit is no action"));
  EXPECT_THAT(Refusal("step.unit=lose"), HasSubstr("step.unit has no answer to lose"));
  for (const char* list : {"step.unit=exit@0", "step.unit=exit@", "step.unit=exit@x", "step.unit=exit@-1"}) {
    EXPECT_THAT(Refusal(list), HasSubstr("of step.unit is no number from 1 on"));
  }
}

}  // namespace
}  // namespace dmuon
