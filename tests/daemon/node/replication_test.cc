// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Nodes whose process is lost with all that it held, while others have copies.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/daemon/node/cluster_run.h"
#include "tests/daemon/node/exact_run.h"
#include "tests/daemon/node/test_node.h"
#include "wire/error.h"

namespace dmuon::node {
namespace {

using ::testing::HasSubstr;

class ReplicationTest : public ClusterRun, public ::testing::WithParamInterface<v1::Replication> {
 protected:
  ReplicationTest() : ClusterRun(GetParam()) {}
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

class NoReplicationTest : public ClusterRun {
 protected:
  NoReplicationTest() : ClusterRun(v1::REPLICATION_NONE) {}
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
