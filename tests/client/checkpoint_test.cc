// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What the client promises of checkpoints, whatever becomes of the daemon. The daemon is scripted.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/client/scripted_test.h"

namespace dmuon::client {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::Status Gone() { return absl::UnavailableError("gone"); }
absl::Status NoRoom() {
  return wire::Error(absl::StatusCode::kResourceExhausted, v1::ERROR_REASON_CHECKPOINT, "no room for it");
}

class CheckpointTest : public ScriptedTest {
 protected:
  static std::string Message(const absl::Status& status) { return std::string(status.message()); }
};

TEST_F(CheckpointTest, ASaveIsOfTheLastAppliedStepAndCanBeWaitedForAfterLaterOnes) {
  Attach();
  ASSERT_EQ(client_->Save("start", kForever), absl::OkStatus());
  ASSERT_EQ(Run(1, 2.0F).status(), absl::OkStatus());
  node_->HoldWrites(true);
  ASSERT_EQ(client_->Save("one", kForever), absl::OkStatus());
  ASSERT_EQ(Run(2, 2.0F).status(), absl::OkStatus());  // while it is written
  node_->HoldWrites(false);
  ASSERT_EQ(client_->WaitSaved("one", kForever), absl::OkStatus());
  ASSERT_EQ(client_->WaitSaved("start", kForever), absl::OkStatus());
  EXPECT_THAT(node_->log().saves, ElementsAre("start of step 0", "one of step 1", "one of step 1, wait, again",
                                              "start of step 0, wait, again"));
}

TEST_F(CheckpointTest, WhileItIsWrittenEveryWaitEndsInTimeAndTrainingGoesOn) {
  Attach();
  node_->HoldWrites(true);
  ASSERT_EQ(client_->Save("slow", kForever), absl::OkStatus());
  for (const Timeout timeout : {kPoll, Timeout(milliseconds(30))}) {
    const absl::Status status = client_->WaitSaved("slow", timeout);
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(Message(status), HasSubstr("checkpoint slow of step 0 of job job does not exist yet"));
  }
  ASSERT_EQ(Run(1, 2.0F).status(), absl::OkStatus());
  EXPECT_THAT(node_->log().saves,
              ElementsAre("slow of step 0", "slow of step 0, wait, again", "slow of step 0, wait, again"));
}

TEST_F(CheckpointTest, WhatTheDaemonSaysOfOneThatIsStillBeingWrittenIsNoFailure) {
  Attach();
  ASSERT_EQ(client_->Save("slow", kForever), absl::OkStatus());
  node_->Play({.write = wire::Error(absl::StatusCode::kDeadlineExceeded, v1::ERROR_REASON_CHECKPOINT, "half of it is written")});
  const absl::Status status = client_->WaitSaved("slow", kForever);
  EXPECT_EQ(wire::ReasonOf(status), v1::ERROR_REASON_UNSPECIFIED);
  EXPECT_THAT(Message(status), AllOf(HasSubstr("does not exist yet"), HasSubstr("half of it is written")));
}

TEST_F(CheckpointTest, WhyItWasNotWrittenIsToldToWhoWaits) {
  Attach();
  ASSERT_EQ(client_->Save("large", kForever), absl::OkStatus());
  node_->Play({.write = NoRoom()});
  EXPECT_EQ(client_->WaitSaved("large", kPoll), NoRoom());
  EXPECT_EQ(client_->WaitSaved("large", kForever), NoRoom());
  EXPECT_EQ(Run(1, 2.0F).status(), absl::OkStatus());
}

TEST_F(CheckpointTest, ASaveIsRepeatedAfterALostConnection) {
  Attach();
  ASSERT_EQ(Run(1, 2.0F).status(), absl::OkStatus());
  node_->Play({.save_before = Gone()});
  ASSERT_EQ(client_->Save("before", kForever), absl::OkStatus());
  node_->Play({.save_after = Gone()});
  ASSERT_EQ(client_->Save("after", kForever), absl::OkStatus());
  node_->Play({.save_before = Gone()});
  ASSERT_EQ(client_->WaitSaved("after", kForever), absl::OkStatus());
  EXPECT_THAT(node_->log().saves,
              ElementsAre("before of step 1", "before of step 1", "after of step 1", "after of step 1, again",
                          "after of step 1, wait, again", "after of step 1, wait, again"));
  EXPECT_THAT(node_->log().must_resume, ElementsAre(false, true, true, true));
  ASSERT_EQ(Run(2, 2.0F).status(), absl::OkStatus());
  EXPECT_THAT(params_, ElementsAre(6, 6, 6));
}

TEST_F(CheckpointTest, ADaemonThatLostTheStateIsNotSavedFrom) {
  Attach();
  ASSERT_EQ(Run(1, 2.0F).status(), absl::OkStatus());
  node_->Play({.save_before = Gone(), .forget_state = true});
  EXPECT_EQ(wire::ReasonOf(client_->Save("lost", kForever)), v1::ERROR_REASON_STATE_LOST);
  EXPECT_EQ(wire::ReasonOf(client_->Save("lost", kForever)), v1::ERROR_REASON_NOT_READY);
  EXPECT_EQ(wire::ReasonOf(Start(2, 2.0F)), v1::ERROR_REASON_NOT_READY);
}

TEST_F(CheckpointTest, AfterARestoreTheNextStepIsTheCheckpointsAndOldAnswersAreForgotten) {
  Attach();
  ASSERT_EQ(Run(1, 2.0F).status(), absl::OkStatus());
  ASSERT_EQ(client_->Save("one", kForever), absl::OkStatus());
  ASSERT_EQ(Run(2, 2.0F).status(), absl::OkStatus());
  ASSERT_EQ(Run(3, 2.0F).status(), absl::OkStatus());
  ASSERT_EQ(client_->Save("three", kForever), absl::OkStatus());
  const auto back = client_->Restore("one", kForever);
  ASSERT_EQ(back.status(), absl::OkStatus());
  EXPECT_EQ(*back, 1u);
  EXPECT_THAT(params_, ElementsAre(8, 8, 8));
  const uint32_t tensor = 0;
  for (const uint64_t step : {1, 3}) {
    EXPECT_EQ(wire::ReasonOf(client_->Wait(step, kForever).status()), v1::ERROR_REASON_NOT_READY);
    EXPECT_EQ(wire::ReasonOf(client_->WaitParameters(std::span(&tensor, 1), step, kForever)),
              v1::ERROR_REASON_NOT_READY);
  }
  ASSERT_EQ(client_->Save("one-again", kForever), absl::OkStatus());
  EXPECT_EQ(node_->log().saves.back(), "one-again of step 1");
  ASSERT_EQ(Run(2, 1.0F).status(), absl::OkStatus());
  EXPECT_THAT(params_, ElementsAre(7, 7, 7));
  const auto ahead = client_->Restore("three", kForever);
  ASSERT_EQ(ahead.status(), absl::OkStatus());
  EXPECT_EQ(*ahead, 3u);
  EXPECT_THAT(params_, ElementsAre(4, 4, 4));
  ASSERT_EQ(Run(4, 1.0F).status(), absl::OkStatus());
}

TEST_F(CheckpointTest, ARestoreIsRepeatedAfterALostConnection) {
  Attach();
  ASSERT_EQ(client_->Save("start", kForever), absl::OkStatus());
  for (const bool after : {false, true}) {
    ASSERT_EQ(Run(1, 2.0F).status(), absl::OkStatus());
    const int before = node_->log().restores;
    node_->Play(after ? FakeNode::Script{.restore_after = Gone()} : FakeNode::Script{.restore_before = Gone()});
    const auto restored = client_->Restore("start", kForever);
    ASSERT_EQ(restored.status(), absl::OkStatus());
    EXPECT_EQ(*restored, 0u);
    EXPECT_EQ(node_->log().restores - before, after ? 2 : 1);
    EXPECT_THAT(params_, ElementsAre(10, 10, 10));
  }
}

TEST_F(CheckpointTest, ALostPeerIsTriedAgain) {
  Attach();
  const absl::Status lost = wire::Error(absl::StatusCode::kAborted, v1::ERROR_REASON_PEER_LOST, "node-1 is gone");
  node_->Play({.save_before = lost, .restore_before = lost});
  ASSERT_EQ(client_->Save("start", kForever), absl::OkStatus());
  ASSERT_EQ(client_->Restore("start", kForever).status(), absl::OkStatus());
  EXPECT_THAT(node_->log().must_resume, ElementsAre(false));  // in one session
}

TEST_F(CheckpointTest, AnUnknownCheckpointIsNamedAndTrainingGoesOn) {
  Attach();
  ASSERT_EQ(Run(1, 2.0F).status(), absl::OkStatus());
  const absl::Status status = client_->Restore("nowhere", kForever).status();
  EXPECT_EQ(wire::ReasonOf(status), v1::ERROR_REASON_CHECKPOINT);
  EXPECT_THAT(Message(status), HasSubstr("nowhere"));
  ASSERT_EQ(Run(2, 2.0F).status(), absl::OkStatus());
  EXPECT_THAT(params_, ElementsAre(6, 6, 6));
}

TEST_F(CheckpointTest, ATimeoutLeavesTheRestoreRunningAndTheSameCallPicksItUp) {
  Attach();
  ASSERT_EQ(client_->Save("start", kForever), absl::OkStatus());
  node_->HoldRestores(true);
  const absl::Status status = client_->Restore("start", kPoll).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Message(status), HasSubstr("dmuon_restore"));
  const uint32_t tensor = 0;
  for (const absl::Status& refused :
       {client_->Restore("other", kForever).status(), client_->Save("other", kForever), Start(1, 2.0F),
        client_->Submit(std::span(&tensor, 1), 1, wire::WordState::kReady), client_->WaitSaved("start", kForever)}) {
    EXPECT_EQ(wire::ReasonOf(refused), v1::ERROR_REASON_NOT_READY);
    EXPECT_THAT(Message(refused), HasSubstr("while dmuon_restore of start is unanswered"));
  }
  node_->HoldRestores(false);
  ASSERT_EQ(client_->Restore("start", kForever).status(), absl::OkStatus());
  EXPECT_EQ(node_->log().restores, 1);
}

TEST_F(CheckpointTest, ClosingInTheMiddleOfARestoreDoesNotHang) {
  Attach();
  ASSERT_EQ(client_->Save("start", kForever), absl::OkStatus());
  node_->HoldRestores(true);
  EXPECT_EQ(client_->Restore("start", kPoll).status().code(), absl::StatusCode::kDeadlineExceeded);
  client_.reset();
  EXPECT_EQ(node_->log().closes, 1);
}

TEST_F(CheckpointTest, CallsOutOfTheirOrderAreRefused) {
  ASSERT_EQ(Open(), absl::OkStatus());
  EXPECT_THAT(Message(client_->Save("x", kForever)), HasSubstr("dmuon_begin comes before dmuon_save"));
  EXPECT_THAT(Message(client_->Restore("x", kForever).status()), HasSubstr("dmuon_begin comes before dmuon_restore"));
  client_.reset();
  Attach();
  EXPECT_THAT(Message(client_->WaitSaved("x", kForever)), HasSubstr("checkpoint 'x' is none of the last 16"));
  node_->HoldSteps(true);
  ASSERT_EQ(Start(1, 2.0F), absl::OkStatus());
  EXPECT_THAT(Message(client_->Save("x", kForever)), HasSubstr("dmuon_save while step 1 is in flight"));
  EXPECT_THAT(Message(client_->Restore("x", kForever).status()), HasSubstr("dmuon_restore while step 1 is in flight"));
}

TEST_F(CheckpointTest, WhatIsSavedOfAStepThatIsUnansweredNobodyKnows) {
  Attach();
  node_->Play({.step_before = wire::Error(absl::StatusCode::kDeadlineExceeded, v1::ERROR_REASON_WORKER_MISSING,
                                          "rank 1 is missing")});
  EXPECT_FALSE(Run(1, 2.0F).ok());
  EXPECT_THAT(Message(client_->Save("x", kForever)), HasSubstr("dmuon_save while step 1 is unanswered"));
  ASSERT_EQ(client_->Wait(1, kForever).status(), absl::OkStatus());
  ASSERT_EQ(client_->Save("x", kForever), absl::OkStatus());
  EXPECT_THAT(node_->log().saves, ElementsAre("x of step 1"));
}

TEST_F(CheckpointTest, BadNamesAreRefusedBeforeAnythingIsSent) {
  Attach();
  for (const absl::Status& status : {client_->Save("a/b", kForever), client_->Restore("a/b", kForever).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(Message(status), AllOf(HasSubstr("character 1"), HasSubstr("'/'")));
  }
  EXPECT_THAT(node_->log().saves, ElementsAre());
}

}  // namespace
}  // namespace dmuon::client
