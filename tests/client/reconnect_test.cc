// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What the client promises when the daemon does not do what it should. The daemon is scripted.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/client/scripted_test.h"

namespace dmuon::client {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ReconnectTest : public ScriptedTest {};

TEST_F(ReconnectTest, AStepDeliversNewParameters) {
  Attach();
  const auto result = Run(1, 2.0F);
  ASSERT_EQ(result.status(), absl::OkStatus());
  EXPECT_FALSE(result->replayed());
  EXPECT_THAT(params_, ElementsAre(8, 8, 8));
}

TEST_F(ReconnectTest, ParametersMayBeWaitedForOneByOneAndThenTheStep) {
  Attach();
  const uint32_t tensor = 0;
  const std::span<const uint32_t> one(&tensor, 1);
  EXPECT_EQ(wire::ReasonOf(client_->WaitParameters(one, 1, kForever)), v1::ERROR_REASON_NOT_READY);
  node_->HoldSteps(true);
  ASSERT_EQ(Start(1, 2.0F), absl::OkStatus());
  EXPECT_EQ(client_->WaitParameters(one, 1, milliseconds(30)).code(),
            absl::StatusCode::kDeadlineExceeded);
  node_->HoldSteps(false);
  ASSERT_EQ(client_->WaitParameters(one, 1, kForever), absl::OkStatus());
  EXPECT_THAT(params_, ElementsAre(8, 8, 8));
  ASSERT_EQ(client_->Wait(1, kForever).status(), absl::OkStatus());
  ASSERT_EQ(client_->WaitParameters(one, 1, kPoll), absl::OkStatus());  // answered last
  const uint32_t unknown = 7;
  EXPECT_EQ(client_->WaitParameters(std::span(&unknown, 1), 1, kPoll).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(ReconnectTest, AnErrorOfTheStepIsToldToWhoWaitsForItsParameters) {
  Attach();
  node_->Play({.step_before = wire::Error(absl::StatusCode::kDeadlineExceeded,
                                          v1::ERROR_REASON_WORKER_MISSING, "rank 1 is missing")});
  ASSERT_EQ(Start(1, 2.0F), absl::OkStatus());
  const uint32_t tensor = 0;
  EXPECT_EQ(wire::ReasonOf(client_->WaitParameters(std::span(&tensor, 1), 1, kForever)),
            v1::ERROR_REASON_WORKER_MISSING);
  ASSERT_EQ(client_->WaitParameters(std::span(&tensor, 1), 1, kForever), absl::OkStatus());
  EXPECT_THAT(params_, ElementsAre(8, 8, 8));
}

TEST_F(ReconnectTest, AStepLostBeforeItWasAppliedIsAppliedOnceWithTheSameGradients) {
  Attach();
  node_->Play({.step_before = absl::UnavailableError("gone")});
  const auto result = Run(1, 2.0F);
  ASSERT_EQ(result.status(), absl::OkStatus());
  EXPECT_FALSE(result->replayed());
  EXPECT_EQ(node_->log().steps_applied, 1);
  EXPECT_THAT(node_->log().must_resume, ElementsAre(false, true));
  // The trainer's pointers show the new arena.
  EXPECT_THAT(params_, ElementsAre(8, 8, 8));
  ASSERT_EQ(Run(2, 1.0F).status(), absl::OkStatus());
  EXPECT_THAT(params_, ElementsAre(7, 7, 7));
}

TEST_F(ReconnectTest, AStepLostAfterItWasAppliedIsOnlyDeliveredAgain) {
  Attach();
  node_->Play({.step_after = absl::UnavailableError("gone")});
  const auto result = Run(1, 2.0F);
  ASSERT_EQ(result.status(), absl::OkStatus());
  EXPECT_TRUE(result->replayed());
  EXPECT_EQ(node_->log().steps_applied, 1);
  EXPECT_THAT(params_, ElementsAre(8, 8, 8));
}

TEST_F(ReconnectTest, EverySessionHasAnIncarnationOfItsOwn) {
  Attach();
  node_->Play({.opens_refused_as_taken = 2, .step_before = absl::UnavailableError("gone")});
  ASSERT_EQ(Run(1, 1.0F).status(), absl::OkStatus());
  const auto seen = node_->log().incarnations;
  EXPECT_EQ(seen.size(), 4u);
  EXPECT_EQ(std::set<std::string>(seen.begin(), seen.end()).size(), seen.size());
}

TEST_F(ReconnectTest, ADaemonThatForgotTheSessionIsRegisteredWithAgain) {
  Attach();
  ASSERT_EQ(Run(1, 1.0F).status(), absl::OkStatus());
  node_->Play({.step_before = wire::Error(absl::StatusCode::kNotFound,
                                          v1::ERROR_REASON_UNKNOWN_SESSION, "no session")});
  ASSERT_EQ(Run(2, 1.0F).status(), absl::OkStatus());
  EXPECT_THAT(params_, ElementsAre(8, 8, 8));
}

TEST_F(ReconnectTest, ADaemonWithoutStateIsNeverGivenAnEmptyArena) {
  Attach();
  ASSERT_EQ(Run(1, 1.0F).status(), absl::OkStatus());
  node_->Play({.step_before = absl::UnavailableError("gone"), .forget_state = true});
  const auto result = Run(2, 1.0F);
  EXPECT_EQ(wire::ReasonOf(result.status()), v1::ERROR_REASON_STATE_LOST);
  EXPECT_EQ(wire::ReasonOf(Start(2, 1.0F)), v1::ERROR_REASON_NOT_READY);
  EXPECT_THAT(params_, ElementsAre(9, 9, 9));  // the trainer can still save them
}

TEST_F(ReconnectTest, ADaemonThatStaysAwayIsUnavailableAndNamed) {
  Endpoint endpoint = At(node_->address());
  endpoint.call_timeout = milliseconds(300);
  ASSERT_EQ(Open(endpoint), absl::OkStatus());
  AddTensor();
  const std::string address = node_->address();
  node_.reset();
  const auto result = client_->Register(kForever);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr(address));
}

TEST_F(ReconnectTest, AMissingPeerLeavesTheStepWanted) {
  Attach();
  node_->Play({.step_before = wire::Error(absl::StatusCode::kDeadlineExceeded,
                                          v1::ERROR_REASON_WORKER_MISSING, "rank 1 is missing")});
  const auto first = Run(1, 2.0F);
  EXPECT_EQ(wire::ReasonOf(first.status()), v1::ERROR_REASON_WORKER_MISSING);
  EXPECT_THAT(std::string(first.status().message()), HasSubstr("rank 1"));
  ASSERT_EQ(client_->Wait(1, kForever).status(), absl::OkStatus());
  EXPECT_EQ(node_->log().steps_received, 2);
  EXPECT_THAT(params_, ElementsAre(8, 8, 8));
}

TEST_F(ReconnectTest, ATimeoutLeavesTheStepRunning) {
  Attach();
  node_->HoldSteps(true);
  ASSERT_EQ(Start(1, 2.0F), absl::OkStatus());
  EXPECT_EQ(client_->Wait(1, kPoll).status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(wire::ReasonOf(Start(2, 1.0F)), v1::ERROR_REASON_NOT_READY);
  node_->HoldSteps(false);
  ASSERT_EQ(client_->Wait(1, kForever).status(), absl::OkStatus());
  ASSERT_EQ(client_->Wait(1, kPoll).status(), absl::OkStatus());  // the same answer again
  EXPECT_EQ(node_->log().steps_received, 1);
}

TEST_F(ReconnectTest, ClosingInTheMiddleOfAStepDoesNotHang) {
  Attach();
  node_->HoldSteps(true);
  ASSERT_EQ(Start(1, 2.0F), absl::OkStatus());
  client_.reset();
  EXPECT_EQ(node_->log().closes, 1);
}

TEST_F(ReconnectTest, AfterAStaleGenerationTheWorkerRegistersAndBeginsAgain) {
  Attach();
  node_->Play({.raise_generation = 1});
  EXPECT_EQ(wire::ReasonOf(Run(1, 2.0F).status()), v1::ERROR_REASON_STALE_GENERATION);
  EXPECT_EQ(wire::ReasonOf(Start(1, 2.0F)), v1::ERROR_REASON_NOT_READY);
  const auto plan = client_->Register(kForever);
  ASSERT_EQ(plan.status(), absl::OkStatus());
  EXPECT_EQ(plan->generation(), 8u);
  EXPECT_EQ(Floats(*client_->Parameter(0)).data(), params_.data());
  ASSERT_EQ(client_->Begin(kForever).status(), absl::OkStatus());
  ASSERT_EQ(Run(1, 2.0F).status(), absl::OkStatus());
  EXPECT_THAT(params_, ElementsAre(8, 8, 8));
}

TEST_F(ReconnectTest, WhoHasTrainedAndBeginsAgainCountsOnTheState) {
  Attach();
  ASSERT_EQ(Run(1, 2.0F).status(), absl::OkStatus());
  ASSERT_EQ(client_->Begin(kForever).status(), absl::OkStatus());  // as after ROLLED_BACK
  EXPECT_THAT(node_->log().must_resume, ElementsAre(false, true));
  node_->Play({.begin = absl::UnavailableError("gone"), .forget_state = true});
  EXPECT_EQ(wire::ReasonOf(client_->Begin(kForever).status()), v1::ERROR_REASON_STATE_LOST);
}

TEST_F(ReconnectTest, AMissingGradientEndsTheStepAndItCanBeStartedAgain) {
  Attach();
  ASSERT_EQ(client_->Step(1, {v1::Hyper()}), absl::OkStatus());  // nothing submitted
  EXPECT_EQ(wire::ReasonOf(client_->Wait(1, kForever).status()), v1::ERROR_REASON_MISSING_GRADIENT);
  EXPECT_EQ(wire::ReasonOf(client_->Wait(1, kPoll).status()), v1::ERROR_REASON_NOT_READY);
  ASSERT_EQ(Run(1, 2.0F).status(), absl::OkStatus());
}

TEST_F(ReconnectTest, AnArenaOfAnotherGenerationIsRefused) {
  ASSERT_EQ(Open(), absl::OkStatus());
  AddTensor();
  node_->Play({.wrong_arena = true});
  EXPECT_FALSE(client_->Register(kForever).ok());
  EXPECT_EQ(wire::ReasonOf(client_->Parameter(0).status()), v1::ERROR_REASON_NOT_READY);
}

TEST_F(ReconnectTest, AConnectionLostInBeginKeepsTheInitialParameters) {
  ASSERT_EQ(Open(), absl::OkStatus());
  AddTensor();
  ASSERT_EQ(client_->Register(kForever).status(), absl::OkStatus());
  params_ = Floats(*client_->Parameter(0));
  std::fill(params_.begin(), params_.end(), 5.0F);
  node_->Play({.begin = absl::UnavailableError("gone")});
  ASSERT_EQ(client_->Begin(kForever).status(), absl::OkStatus());
  EXPECT_THAT(node_->log().must_resume, ElementsAre(false, false));
  EXPECT_THAT(params_, ElementsAre(5, 5, 5));
}

TEST_F(ReconnectTest, ADaemonThatStartsLateIsWaitedFor) {
  node_->Play({.opens_unavailable = 2});
  Endpoint endpoint = At(node_->address());
  endpoint.connect_timeout = milliseconds(10'000);
  EXPECT_EQ(Open(endpoint), absl::OkStatus());
  EXPECT_EQ(node_->log().incarnations.size(), 3u);
}

TEST_F(ReconnectTest, ALiveRivalIsReportedAsRankTaken) {
  node_->Play({.opens_refused_as_taken = 1'000'000});
  EXPECT_EQ(wire::ReasonOf(Open()), v1::ERROR_REASON_RANK_TAKEN);
}

TEST_F(ReconnectTest, OnlyUnixAddressesHaveAnArena) {
  const absl::Status status = Open(At("127.0.0.1:1"));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("127.0.0.1:1"));
}

}  // namespace
}  // namespace dmuon::client
