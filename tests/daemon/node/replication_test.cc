// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Nodes whose process is lost with all that it held, while others have copies. The judge is the same job undisturbed:
// gradients are multiples of 1/64, so that every bit must agree.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/daemon/node/exact_run.h"
#include "tests/daemon/node/test_node.h"
#include "wire/error.h"

namespace dmuon::node {
namespace {

using ::testing::HasSubstr;

constexpr size_t kNodes = 3;
constexpr uint32_t kRanks = 2 * kNodes;

TestJob Model(v1::Replication replication) {
  TestJob job("model", kRanks);
  for (int layer = 0; layer < 4; ++layer) {
    job.Add(absl::StrCat("up", layer), {13, 6});
    job.Add(absl::StrCat("down", layer), {6, 13});
  }
  job.Add("norm", {7}, 1);
  job.Add("embedding", {11, 5}, 1);
  job.spec.set_replication(replication);
  return job;
}

// Two workers a node, FSDP over all of them.
class ReplicationTest : public ::testing::TestWithParam<v1::Replication> {
 protected:
  explicit ReplicationTest(v1::Replication replication = GetParam())
      : job_(Model(replication)), cluster_(kNodes, Impatient(absl::Seconds(2))) {
    std::vector<Engine*> engines;
    for (uint32_t rank = 0; rank < kRanks; ++rank) engines.push_back(&cluster_.engine(rank / 2));
    run_ = std::make_unique<TestRun>(engines, job_);
  }
  void SetUp() override { ASSERT_TRUE(run_->Start(Rows(job_, kRanks, true)).ok()); }

  static std::vector<uint32_t> RanksOf(size_t node) {
    return {static_cast<uint32_t>(2 * node), static_cast<uint32_t>(2 * node + 1)};
  }

  // Its workers have stayed, and find it started again.
  absl::StatusOr<uint64_t> ComeBack(size_t node, bool must_resume = true) {
    cluster_.Restart(node);
    ++lives_;
    for (const uint32_t rank : RanksOf(node)) {
      (*run_)[rank].MoveTo(&cluster_.engine(node));
      DMUON_RETURN_IF_ERROR((*run_)[rank].Open(absl::StrCat("life-", lives_)));
      (*run_)[rank].StartRegister((*run_)[rank].shards());
    }
    for (const uint32_t rank : RanksOf(node)) DMUON_RETURN_IF_ERROR((*run_)[rank].FinishRegister());
    absl::StatusOr<uint64_t> last_step = absl::UnknownError("not asked");
    for (int i = 0; i < 20; ++i) {  // as clients do while nodes have not found together
      last_step = Begin(node, must_resume);
      if (wire::ReasonOf(last_step.status()) != v1::ERROR_REASON_PEER_LOST) break;
    }
    return last_step;
  }

  absl::StatusOr<uint64_t> Begin(size_t node, bool must_resume) {
    for (const uint32_t rank : RanksOf(node)) (*run_)[rank].StartBegin(must_resume);
    absl::StatusOr<uint64_t> last_step = uint64_t{0};
    for (const uint32_t rank : RanksOf(node)) {
      const absl::StatusOr<v1::BeginResponse> begun = (*run_)[rank].FinishBegin();
      if (!begun.ok()) last_step = begun.status();
      if (!begun.ok() || !last_step.ok()) continue;
      EXPECT_TRUE(begun->resumed());
      last_step = begun->last_step();
    }
    return last_step;
  }

  // A step in which `node` is killed after `moment`, and started again; where the job is then.
  absl::StatusOr<uint64_t> LoseIn(uint64_t step, size_t node, std::chrono::microseconds moment) {
    for (uint32_t rank = 0; rank < kRanks; ++rank) (*run_)[rank].FillAndSubmit(step, Exact);
    for (uint32_t rank = 0; rank < kRanks; ++rank) (*run_)[rank].StartStep(step);
    std::this_thread::sleep_for(moment);
    cluster_.Kill(node);
    for (const uint32_t rank : RanksOf(node)) Finish(rank, step);
    const absl::StatusOr<uint64_t> last_step = ComeBack(node);  // the others may be waiting for it
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      if (rank / 2 != node && (*run_)[rank].answered()) Finish(rank, step);
    }
    return last_step;  // who still waits for the step calls for it again
  }

  void Finish(uint32_t rank, uint64_t step) {
    if ((*run_)[rank].FinishStep().ok()) acknowledged_ = std::max(acknowledged_, step);
  }

  // All steps after `done`, up to `step`.
  absl::Status GoOn(uint64_t done, uint64_t step) {
    for (uint64_t next = done + 1; next <= step; ++next) DMUON_RETURN_IF_ERROR(StepUntilItWorks(*run_, next));
    return absl::OkStatus();
  }

  std::vector<std::vector<float>> Parameters() { return ParametersOf(*run_, job_); }
  std::vector<std::vector<float>> Undisturbed(uint64_t steps) const {
    TestJob alone = job_;
    alone.spec.set_replication(v1::REPLICATION_NONE);
    return node::Undisturbed(alone, Rows(alone, kRanks, true), steps);
  }

  const TestJob job_;
  TestCluster cluster_;
  std::unique_ptr<TestRun> run_;
  uint64_t acknowledged_ = 0;  // the last step that a worker was told is done
  int lives_ = 0;
};

TEST_P(ReplicationTest, CopiesChangeNoBit) {
  ASSERT_TRUE(GoOn(0, 5).ok());
  EXPECT_EQ(Parameters(), Undisturbed(5));
}

TEST_P(ReplicationTest, ANodeLostBetweenTwoStepsComesBackFromItsCopies) {
  for (uint64_t step = 1; step <= 2 * kNodes; ++step) {
    const absl::Status status = StepUntilItWorks(*run_, step);
    ASSERT_TRUE(status.ok()) << status;
    cluster_.Kill(step % kNodes);
    const absl::StatusOr<uint64_t> last_step = ComeBack(step % kNodes);
    ASSERT_TRUE(last_step.ok()) << last_step.status();
    ASSERT_LE(*last_step, step);
    ASSERT_GE(*last_step + (GetParam() == v1::REPLICATION_SYNC ? 0 : 1), step);
    const absl::Status again = GoOn(*last_step, step);
    ASSERT_TRUE(again.ok()) << again;
  }
  EXPECT_EQ(Parameters(), Undisturbed(2 * kNodes));
}

TEST_P(ReplicationTest, ANodeLostAtAnyMomentOfAStepCostsNoBit) {
  constexpr uint64_t kSteps = 24;
  for (uint64_t step = 1; step <= kSteps; ++step) {
    const absl::StatusOr<uint64_t> last_step = LoseIn(step, step % kNodes, std::chrono::microseconds(83 * step));
    ASSERT_TRUE(last_step.ok()) << "step " << step << ": " << last_step.status();
    if (GetParam() == v1::REPLICATION_SYNC) {
      EXPECT_GE(*last_step, acknowledged_) << "step " << step;
    }
    ASSERT_GE(*last_step + 2, step);
    const absl::Status status = GoOn(*last_step, step);
    ASSERT_TRUE(status.ok()) << "step " << step << " after " << *last_step << ": " << status;
  }
  EXPECT_EQ(Parameters(), Undisturbed(kSteps));
}

TEST_P(ReplicationTest, WorkersThatStartAgainWithTheirNodeGetItsState) {
  ASSERT_TRUE(GoOn(0, 3).ok());
  cluster_.Kill(1);
  const absl::StatusOr<uint64_t> last_step = ComeBack(1, /*must_resume=*/false);
  ASSERT_TRUE(last_step.ok()) << last_step.status();
  ASSERT_TRUE(GoOn(*last_step, 4).ok());
  EXPECT_EQ(Parameters(), Undisturbed(4));
}

TEST_P(ReplicationTest, ANodeLostAfterASkippedStepComesBackAtIt) {
  ASSERT_TRUE(GoOn(0, 2).ok());
  for (uint32_t rank = 0; rank < kRanks; ++rank) (*run_)[rank].FillAndSubmit(3, Exact);
  (*run_)[4].grad(0)[0] = std::numeric_limits<float>::infinity();
  for (const auto& answer : run_->StepAsSubmitted(3)) ASSERT_TRUE(answer.ok() && answer->skipped());
  cluster_.Kill(0);
  const absl::StatusOr<uint64_t> last_step = ComeBack(0);
  ASSERT_TRUE(last_step.ok()) << last_step.status();
  EXPECT_EQ(*last_step, 3U);
  ASSERT_TRUE(StepUntilItWorks(*run_, 4).ok());
}

TEST_P(ReplicationTest, WhoKeptTheCopiesIsLostTooAndAllAreTold) {
  ASSERT_TRUE(GoOn(0, 2).ok());
  cluster_.Kill(0);
  cluster_.Kill(1);
  cluster_.Restart(0);
  cluster_.Restart(1);
  for (const uint32_t rank : RanksOf(2)) {
    absl::Status told;
    for (int i = 0; i < 1000 && (i == 0 || wire::ReasonOf(told) == v1::ERROR_REASON_PEER_LOST); ++i) {
      (*run_)[rank].StartStep(3);
      told = (*run_)[rank].FinishStep().status();
    }
    // Or the job has ended already: clients connect again, and are told then.
    EXPECT_TRUE(wire::ReasonOf(told) == v1::ERROR_REASON_STATE_LOST || absl::IsUnavailable(told) ||
                wire::ReasonOf(told) == v1::ERROR_REASON_UNKNOWN_SESSION)
        << told;
  }
  EXPECT_TRUE(HasNoJobSoon(cluster_.engine(2)));
}

INSTANTIATE_TEST_SUITE_P(Modes, ReplicationTest, ::testing::Values(v1::REPLICATION_SYNC, v1::REPLICATION_ASYNC),
                         [](const auto& mode) { return mode.param == v1::REPLICATION_SYNC ? "Sync" : "Async"; });

class NoReplicationTest : public ReplicationTest {
 protected:
  NoReplicationTest() : ReplicationTest(v1::REPLICATION_NONE) {}
};

TEST_F(NoReplicationTest, TheWorkersOfOtherNodesAreToldThatStateIsLost) {
  ASSERT_TRUE(GoOn(0, 2).ok());
  cluster_.Kill(1);
  cluster_.Restart(1);
  EXPECT_TRUE(HasNoJobSoon(cluster_.engine(0)));
  EXPECT_TRUE(HasNoJobSoon(cluster_.engine(2)));
}

TEST(OneNodeTest, ReplicationOnOneNodeIsRefusedByName) {
  TestNode alone(TwoSlots());
  TestJob job("lonely", 2);
  job.Add("up", {8, 4});
  job.spec.set_replication(v1::REPLICATION_SYNC);
  TestRun run(&alone.engine(), job);
  const absl::Status status = run.Start();
  EXPECT_EQ(wire::ReasonOf(status), v1::ERROR_REASON_INVALID_FIELD) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("'lonely' asks for replication"));
}

}  // namespace
}  // namespace dmuon::node
