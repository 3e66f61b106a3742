// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Nodes that are drained while a job runs: other nodes get their units with all state, between two steps.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/daemon/node/cluster_run.h"
#include "tests/daemon/node/exact_run.h"
#include "tests/daemon/node/test_node.h"
#include "wire/error.h"

namespace dmuon::node {
namespace {

using ::testing::HasSubstr;

class Handover : public ClusterRun {
 protected:
  using ClusterRun::ClusterRun;

  absl::Status Drain(size_t node, bool undo = false) {
    v1::DrainNodeRequest request;
    request.set_node_id(absl::StrCat("node-", node));
    request.set_undo(undo);
    return cluster_.coordinator().DrainNode(request);
  }
  v1::JobStatus Job() { return cluster_.coordinator().GetClusterStatus().jobs(0); }
  // Units of each node under the current plan.
  uint64_t UnitsOf(size_t node) { return cluster_.coordinator().GetClusterStatus().nodes(static_cast<int>(node)).units(); }
  // Whether the node is out, and all others are there.
  bool IsOutSoon(const std::string& node_id) {
    cluster_.LetLeasesEnd();
    for (int i = 0; i < 3000; ++i) {
      const v1::GetClusterStatusResponse status = cluster_.coordinator().GetClusterStatus();
      const bool there = std::any_of(status.nodes().begin(), status.nodes().end(),
                                     [&](const v1::NodeStatus& node) { return node.node().node_id() == node_id; });
      if (!there && status.nodes_size() == kNodes) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
  // Whether no other plan is on its way any more, within half a minute.
  bool HasSettled() {
    for (int i = 0; i < 3000; ++i) {
      cluster_.coordinator().Tick();
      if (Job().successor_generation() == 0) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
};

class HandoverTest : public Handover, public ::testing::WithParamInterface<v1::Replication> {
 protected:
  HandoverTest() : Handover(GetParam()) {}
};

TEST_P(HandoverTest, ADrainedNodeOwnsNothingAndNoBitChanges) {
  ASSERT_TRUE(GoOn(0, 3).ok());
  ASSERT_TRUE(Drain(1).ok());
  ASSERT_TRUE(HasSettled());  // without a step
  EXPECT_EQ(UnitsOf(1), 0U);
  EXPECT_EQ(Job().generation(), 2U);
  ASSERT_TRUE(GoOn(3, 6).ok());
  ASSERT_TRUE(Drain(1, /*undo=*/true).ok());
  ASSERT_TRUE(HasSettled());
  EXPECT_GT(UnitsOf(1), 0U);
  ASSERT_TRUE(GoOn(6, 9).ok());
  EXPECT_EQ(Parameters(), Undisturbed(9));
}

TEST_P(HandoverTest, StepsGoOnWhileNodesAreDrainedOneAfterTheOther) {
  constexpr uint64_t kSteps = 30;
  for (uint64_t step = 1; step <= kSteps; ++step) {
    for (uint32_t rank = 0; rank < kRanks; ++rank) (*run_)[rank].FillAndSubmit(step, Exact);
    for (uint32_t rank = 0; rank < kRanks; ++rank) (*run_)[rank].StartStep(step);
    // At any moment of the step. What the last one has not led to yet comes with the next.
    std::this_thread::sleep_for(std::chrono::microseconds(97 * step));
    if (step % kNodes != 2) {
      ASSERT_TRUE(Drain(step % kNodes, step % 2 == 0).ok());
    }
    absl::Status status;
    for (uint32_t rank = 0; rank < kRanks; ++rank) status.Update((*run_)[rank].FinishStep().status());
    if (!status.ok()) status = GoOn(step - 1, step);  // a node that meets for the plan alone may be waited for too long
    ASSERT_TRUE(status.ok()) << "step " << step << ": " << status;
  }
  // What the nodes did not hear of between the same two steps comes with a later one.
  uint64_t done = kSteps;
  cluster_.coordinator().Tick();
  while (Job().successor_generation() != 0 && done < kSteps + 5) {
    ASSERT_TRUE(GoOn(done, done + 1).ok());
    ++done;
  }
  EXPECT_EQ(Job().successor_generation(), 0U);
  EXPECT_GT(Job().generation(), 2U);
  EXPECT_EQ(Parameters(), Undisturbed(done));
}

TEST_P(HandoverTest, AWorkerThatReturnsAfterwardsGetsTheParameters) {
  ASSERT_TRUE(GoOn(0, 2).ok());
  ASSERT_TRUE(Drain(2).ok());
  ASSERT_TRUE(HasSettled());
  (*run_)[1].Die();
  const auto begun = (*run_)[1].Return("second-life", (*run_)[1].shards());
  ASSERT_TRUE(begun.ok()) << begun.status();
  EXPECT_EQ(begun->last_step(), 2U);
  EXPECT_EQ(Parameters(), Undisturbed(2));
}

TEST_P(HandoverTest, ADrainedNodeIsStartedAgainAndNothingIsLost) {
  ASSERT_TRUE(GoOn(0, 2).ok());
  ASSERT_TRUE(Drain(1).ok());
  ASSERT_TRUE(HasSettled());
  ASSERT_TRUE(GoOn(2, 3).ok());
  cluster_.Kill(1);
  const absl::StatusOr<uint64_t> last_step = ComeBack(1);
  ASSERT_TRUE(last_step.ok()) << last_step.status();
  EXPECT_EQ(*last_step, 3U);
  EXPECT_EQ(Parameters(), Undisturbed(3));
  ASSERT_TRUE(GoOn(3, 5).ok());
  ASSERT_TRUE(Drain(1, /*undo=*/true).ok());
  ASSERT_TRUE(HasSettled());
  EXPECT_GT(UnitsOf(1), 0U);
  ASSERT_TRUE(GoOn(5, 7).ok());
  EXPECT_EQ(Parameters(), Undisturbed(7));
}

TEST_P(HandoverTest, TheLastNodeThatMayOwnUnitsCannotBeDrained) {
  ASSERT_TRUE(Drain(0).ok());
  ASSERT_TRUE(Drain(1).ok());
  const absl::Status status = Drain(2);
  EXPECT_EQ(wire::ReasonOf(status), v1::ERROR_REASON_NOT_READY) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("job 'model' has no other node"));
  ASSERT_TRUE(HasSettled());
  EXPECT_EQ(UnitsOf(0) + UnitsOf(1), 0U);
  ASSERT_TRUE(GoOn(0, 3).ok());
  EXPECT_EQ(Parameters(), Undisturbed(3));
}

INSTANTIATE_TEST_SUITE_P(Modes, HandoverTest,
                         ::testing::Values(v1::REPLICATION_NONE, v1::REPLICATION_SYNC, v1::REPLICATION_ASYNC),
                         [](const auto& mode) {
                           return mode.param == v1::REPLICATION_NONE ? "None" : mode.param == v1::REPLICATION_SYNC ? "Sync" : "Async";
                         });

class ReplicatedHandoverTest : public Handover {
 protected:
  ReplicatedHandoverTest() : Handover(v1::REPLICATION_SYNC) {}
};

TEST_F(ReplicatedHandoverTest, ANodeLostWhileStateIsHandedOverCostsNoBit) {
  constexpr uint64_t kRounds = 12;
  uint64_t done = 0;
  for (uint64_t round = 1; round <= kRounds; ++round) {
    const absl::Status status = GoOn(done, done + 1);
    ASSERT_TRUE(status.ok()) << "round " << round << ": " << status;
    done += 1;
    ASSERT_TRUE(Drain(0, /*undo=*/round % 2 == 0).ok());
    std::this_thread::sleep_for(std::chrono::microseconds(150 * round));
    const size_t victim = round % kNodes;
    cluster_.Kill(victim);
    const absl::StatusOr<uint64_t> last_step = ComeBack(victim);
    ASSERT_TRUE(last_step.ok()) << "round " << round << ": " << last_step.status();
    ASSERT_EQ(*last_step, done);
  }
  ASSERT_TRUE(GoOn(done, done + 1).ok());
  ASSERT_TRUE(HasSettled());
  EXPECT_EQ(Parameters(), Undisturbed(done + 1));
}

TEST_F(ReplicatedHandoverTest, WorkersOfALostNodeComeBackOnAnotherOneAndNoBitChanges) {
  ASSERT_TRUE(GoOn(0, 3).ok());
  cluster_.Kill(1);
  ASSERT_TRUE(IsOutSoon("node-1"));
  const absl::StatusOr<uint64_t> last_step = ComeBackOn(kNodes, 1);
  ASSERT_TRUE(last_step.ok()) << last_step.status();
  EXPECT_EQ(*last_step, 3U);
  EXPECT_EQ(Parameters(), Undisturbed(3));
  ASSERT_TRUE(GoOn(3, 5).ok());
  // The new one can be lost as well, and be drained.
  cluster_.Kill(kNodes);
  cluster_.Restart(kNodes);
  ASSERT_TRUE(ComeBackOn(kNodes, 1).ok());
  ASSERT_TRUE(Drain(kNodes).ok());
  ASSERT_TRUE(HasSettled());
  ASSERT_TRUE(GoOn(5, 6).ok());
  EXPECT_EQ(Parameters(), Undisturbed(6));
}

TEST_F(ReplicatedHandoverTest, ANodeLostInTheMidstOfAStepIsReplacedToo) {
  ASSERT_TRUE(GoOn(0, 2).ok());
  for (uint32_t rank = 0; rank < kRanks; ++rank) (*run_)[rank].FillAndSubmit(3, Exact);
  for (uint32_t rank = 0; rank < kRanks; ++rank) (*run_)[rank].StartStep(3);
  cluster_.Kill(2);
  for (uint32_t rank = 0; rank < kRanks; ++rank) Finish(rank, 3);
  ASSERT_TRUE(IsOutSoon("node-2"));
  const absl::StatusOr<uint64_t> last_step = ComeBackOn(kNodes, 2);
  ASSERT_TRUE(last_step.ok()) << last_step.status();
  EXPECT_GE(*last_step, acknowledged_);
  ASSERT_TRUE(GoOn(*last_step, 4).ok());
  EXPECT_EQ(Parameters(), Undisturbed(4));
}

class SlowNewsTest : public Handover {
 protected:
  SlowNewsTest() : Handover(v1::REPLICATION_SYNC, absl::Milliseconds(500)) {}
  bool GoOverSoon(uint64_t generation) {
    const auto is_over = [&](size_t node) {
      const std::vector<v1::NodeJobStatus> jobs = cluster_.engine(node).JobStatuses();
      return jobs.size() == 1 && jobs[0].generation() == generation;
    };
    for (int i = 0; i < 3000; ++i) {
      if (is_over(0) && is_over(1) && is_over(2)) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
};

// The node is lost when all have gone over and the coordinator has yet to hear of it: its next process gets the plan before.
TEST_F(SlowNewsTest, AProcessThatComesBackUnderThePlanBeforeFollowsTheOthers) {
  ASSERT_TRUE(GoOn(0, 3).ok());
  cluster_.HoldNews(true);
  ASSERT_TRUE(Drain(0).ok());
  ASSERT_TRUE(GoOverSoon(2));
  cluster_.Kill(2);
  cluster_.Restart(2);
  for (const uint32_t rank : RanksOf(2)) {
    (*run_)[rank].MoveTo(&cluster_.engine(2));
    ASSERT_TRUE((*run_)[rank].Open("late").ok());
    (*run_)[rank].StartRegister((*run_)[rank].shards());
  }
  for (const uint32_t rank : RanksOf(2)) ASSERT_TRUE((*run_)[rank].FinishRegister().ok());
  EXPECT_EQ(Job().generation(), 1U);
  cluster_.HoldNews(false);
  const absl::StatusOr<uint64_t> last_step = BeginSoon(2, true);
  ASSERT_TRUE(last_step.ok()) << last_step.status();
  EXPECT_EQ(*last_step, 3U);
  EXPECT_EQ(Job().generation(), 2U);
  ASSERT_TRUE(GoOn(3, 5).ok());
  EXPECT_EQ(Parameters(), Undisturbed(5));
}

class LonelyStateTest : public Handover {
 protected:
  LonelyStateTest() : Handover(v1::REPLICATION_NONE, absl::Milliseconds(300)) {}
  // Whether the node's workers, who want step 3, are soon told that the state is lost, or that their session is over with it.
  bool StepUntilLost(size_t node) {
    for (int i = 0; i < 100 && !cluster_.engine(node).JobStatuses().empty(); ++i) {
      for (const uint32_t rank : RanksOf(node)) {
        (*run_)[rank].FillAndSubmit(3, Exact);
        (*run_)[rank].StartStep(3);
      }
      for (const uint32_t rank : RanksOf(node)) EXPECT_FALSE((*run_)[rank].FinishStep().ok());
    }
    return HasNoJobSoon(cluster_.engine(node));
  }
};

// Node 0 is told nothing at that moment, and finds it out when its workers want something.
TEST_F(LonelyStateTest, WithoutCopiesAllAreToldAndMayBeginAnew) {
  ASSERT_TRUE(GoOn(0, 2).ok());
  cluster_.Kill(1);
  ASSERT_TRUE(IsOutSoon("node-1"));
  cluster_.Deafen(0, true);
  (*run_)[2].MoveTo(&cluster_.engine(kNodes));
  ASSERT_TRUE((*run_)[2].Open("moved").ok());
  (*run_)[2].StartRegister((*run_)[2].shards());
  EXPECT_TRUE(StepUntilLost(2));
  cluster_.Deafen(0, false);
  EXPECT_TRUE(StepUntilLost(0));
}

class CutHandoverTest : public Handover {
 protected:
  CutHandoverTest() : Handover(v1::REPLICATION_SYNC, absl::Milliseconds(300)) {}
};

TEST_F(CutHandoverTest, ConnectionsThatBreakMeanwhileCostNoBit) {
  constexpr uint64_t kRounds = 12;
  uint64_t done = 0;
  for (uint64_t round = 1; round <= kRounds; ++round) {
    // The messages of a hand-over are lost from one on, another one each time; the last reports among them.
    cluster_.switchboard().Cut("node-1", "node-2", 2 * round);
    ASSERT_TRUE(Drain(0, /*undo=*/round % 2 == 0).ok());
    // In the next step, at the latest the one after: some nodes may have begun that one before they heard of it.
    for (const uint64_t last = done + 3; done < last && Job().generation() == round;) {
      const absl::Status status = GoOn(done, done + 1);
      ASSERT_TRUE(status.ok()) << "round " << round << ": " << status;
      ++done;
    }
    ASSERT_EQ(Job().generation(), 1 + round);
  }
  EXPECT_EQ(Parameters(), Undisturbed(done));
}

class SmallNodesTest : public ::testing::Test {};

TEST_F(SmallNodesTest, WhatNoNodeHasMemoryForIsNotHandedOver) {
  TestJob job("large", 2);
  for (int layer = 0; layer < 4; ++layer) job.Add(absl::StrCat("w", layer), {64, 64});
  EngineOptions options = Impatient(absl::Seconds(2));
  options.memory_limit_bytes = uint64_t{600} << 10;
  TestCluster cluster(2, options);
  TestRun run({&cluster.engine(0), &cluster.engine(1)}, job);
  ASSERT_TRUE(run.Start(Rows(job, 2, true)).ok());
  ASSERT_TRUE(StepUntilItWorks(run, 1).ok());
  v1::DrainNodeRequest request;
  request.set_node_id("node-0");
  ASSERT_TRUE(cluster.coordinator().DrainNode(request).ok());
  v1::JobStatus status;
  for (int i = 0; i < 3000 && status.handover_failure().empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    status = cluster.coordinator().GetClusterStatus().jobs(0);
  }
  EXPECT_THAT(status.handover_failure(), HasSubstr("the state of job 'large' under generation 2"));
  EXPECT_EQ(status.generation(), 1U);
  EXPECT_EQ(status.successor_generation(), 0U);
  for (uint64_t step = 2; step <= 4; ++step) ASSERT_TRUE(StepUntilItWorks(run, step).ok());
  EXPECT_EQ(ParametersOf(run, job), Undisturbed(job, Rows(job, 2, true), 4));
}

}  // namespace
}  // namespace dmuon::node
