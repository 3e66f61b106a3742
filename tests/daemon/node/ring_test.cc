// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Steps the short way: rung on the arena channel, answered in the arena, parameter by parameter.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/daemon/node/test_node.h"
#include "wire/error.h"

namespace dmuon::node {
namespace {

using ::testing::HasSubstr;
using wire::MakeWord;
using wire::WordState;

class RingTest : public ::testing::Test {
 protected:
  static EngineOptions Options() {
    EngineOptions options;
    options.slots = 2;
    return options;
  }
  static TestJob Job(const std::string& id) {
    TestJob job(id, 2);
    job.Add("wide", {6, 20});
    job.Add("bias", {7}, 1);
    return job;
  }
  void SetUp() override { ASSERT_TRUE(run_.Start().ok()); }
  void RingAll(uint64_t step) {
    for (size_t rank = 0; rank < 2; ++rank) ASSERT_TRUE(run_[rank].Ring(step).ok());
  }
  void Fill(uint64_t step) {
    for (size_t rank = 0; rank < 2; ++rank) run_[rank].FillAndSubmit(step, TestRun::Gradient);
  }
  double Steps(const std::string& result) {
    return node_.Counter("dmuon_steps_total{job_id=\"ring\",result=\"" + result + "\"}");
  }

  TestNode node_{Options()};
  const TestJob job_ = Job("ring");
  TestRun run_{&node_.engine(), job_};
};

TEST_F(RingTest, AnAppliedStepIsAnsweredInTheArenaWithTheSameBitsAsByRpc) {
  const TestJob other = Job("by-rpc");
  TestRun by_rpc(&node_.engine(), other);
  ASSERT_TRUE(by_rpc.Start().ok());
  for (uint64_t step = 1; step <= 3; ++step) {
    Fill(step);
    RingAll(step);
    const auto answers = by_rpc.Step(step);
    for (size_t rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(run_[rank].AwaitAnswerWord(), MakeWord(step, WordState::kReady));
      const wire::StepAnswer& answer = run_[rank].header().answer;
      EXPECT_EQ(answer.grad_norm, answers[rank]->grad_norm());
      EXPECT_EQ(answer.newton_schulz_calls, step);
      for (size_t tensor = 0; tensor < 2; ++tensor) {
        EXPECT_EQ(run_[rank].param_word(tensor), MakeWord(step, WordState::kReady));
      }
    }
    for (size_t tensor = 0; tensor < 2; ++tensor) {
      EXPECT_EQ(run_.Gathered(tensor), by_rpc.Gathered(tensor));
    }
  }
}

TEST_F(RingTest, WhatTheArenaCannotSayTheRpcTellsWithoutRunningTheStepAgain) {
  Fill(1);
  run_[1].Submit(0, 1, WordState::kMissing);
  RingAll(1);
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(run_[rank].AwaitAnswerWord(), MakeWord(1, WordState::kMissing));
    run_[rank].StartStep(1);
    const absl::Status status = run_[rank].FinishStep().status();
    EXPECT_EQ(wire::ReasonOf(status), v1::ERROR_REASON_MISSING_GRADIENT) << status;
  }
  EXPECT_EQ(Steps("failed"), 1.0);
  Fill(1);
  RingAll(1);
  EXPECT_EQ(run_[0].AwaitAnswerWord(), MakeWord(1, WordState::kReady));
}

TEST_F(RingTest, ASkippedStepIsReferredToTheRpcThatSaysWhy) {
  Fill(1);
  run_[1].grad(0)[0] = std::numeric_limits<float>::quiet_NaN();
  RingAll(1);
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(run_[rank].AwaitAnswerWord(), MakeWord(1, WordState::kMissing));
    run_[rank].StartStep(1);
    const auto answer = run_[rank].FinishStep();
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_TRUE(answer->skipped());
    EXPECT_FALSE(answer->replayed());
    EXPECT_THAT(answer->skip_reason(), HasSubstr("'wide'"));
  }
  EXPECT_EQ(Steps("skipped"), 1.0);
}

TEST_F(RingTest, OneRankMayRingWhileTheOtherCalls) {
  Fill(1);
  ASSERT_TRUE(run_[0].Ring(1).ok());
  run_[1].StartStep(1);
  ASSERT_TRUE(run_[1].FinishStep().ok());
  EXPECT_EQ(run_[0].AwaitAnswerWord(), MakeWord(1, WordState::kReady));
}

TEST_F(RingTest, WhatAWorkerHasWaitedIsCountedAndNonsenseIsNot) {
  uint64_t step = 0;
  for (const double seconds : {0.25, std::numeric_limits<double>::quiet_NaN(), -1.0, 0.5}) {
    run_[1].waited_seconds = seconds;
    Fill(++step);
    RingAll(step);
    EXPECT_EQ(run_[1].AwaitAnswerWord(), MakeWord(step, WordState::kReady));
  }
  EXPECT_EQ(node_.Counter("dmuon_worker_wait_seconds_total{job_id=\"ring\",rank=\"1\"}"), 0.75);
}

TEST_F(RingTest, OnlyAWorkersOwnRequestMayRing) {
  wire::ReceivedFrame frame;
  frame.frame.type = wire::FrameType::kStep;
  v1::StepRequest request;
  request.set_session_id(12345);
  for (const std::string& payload : {std::string("no request"), request.SerializeAsString()}) {
    frame.payload = payload;
    EXPECT_EQ(node_.engine().Ring(1, frame).code(), absl::StatusCode::kInvalidArgument);
  }
}

// The large matrices come last, and are a hundred thousand times more work than the small ones.
TEST(EarlyTest, ParametersOfEveryNodeArriveWhileLaterOnesAreStillBeingOrthogonalized) {
  EngineOptions options;
  options.slots = 1;
  options.step_timeout = absl::Minutes(10);  // a gigaflop under a sanitizer
  TestCluster cluster(2, options);
  TestJob job("early", 2);
  for (const int64_t size : {16, 16, 1024, 1024}) {
    job.Add(absl::StrCat("w", job.spec.tensors_size()), {size, size});
  }
  TestRun run({&cluster.engine(0), &cluster.engine(1)}, job);
  ASSERT_TRUE(run.Start().ok());
  for (size_t rank = 0; rank < 2; ++rank) run[rank].FillAndSubmit(1, TestRun::Gradient);
  for (size_t rank = 0; rank < 2; ++rank) ASSERT_TRUE(run[rank].Ring(1).ok());
  const uint64_t before = MakeWord(0, WordState::kReady);
  const uint64_t after = MakeWord(1, WordState::kReady);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (const size_t tensor : {0, 1}) {
    while (run[0].param_word(tensor) == before && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    EXPECT_EQ(run[0].param_word(tensor), after);
  }
  EXPECT_EQ(run[0].param_word(2), before);
  EXPECT_EQ(run[0].param_word(3), before);
  EXPECT_EQ(run[0].header().answer_word.Load(), 0U);
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(run[rank].AwaitAnswerWord(), after);
    for (const size_t tensor : {0, 1, 2, 3}) EXPECT_EQ(run[rank].param_word(tensor), after);
  }
}

}  // namespace
}  // namespace dmuon::node
