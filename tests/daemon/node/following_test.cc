// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Nodes that own units of a job and have none of its workers: from its beginning, from some step on, until some step.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/daemon/node/checkpoint_run.h"
#include "tests/daemon/node/cluster_run.h"
#include "tests/daemon/node/exact_run.h"
#include "tests/daemon/node/test_node.h"
#include "wire/error.h"

namespace dmuon::node {
namespace {

using ::testing::HasSubstr;

constexpr size_t kFollower = kNodes;

std::vector<std::string> NodesOfPlan(TestCluster& cluster) {
  v1::GetPlanRequest request;
  request.set_job_id("model");
  const absl::StatusOr<v1::GetPlanResponse> plan = cluster.coordinator().GetPlan(request);
  return plan.ok() ? std::vector<std::string>(plan->plan().nodes().begin(), plan->plan().nodes().end()) : std::vector<std::string>();
}

bool Soon(const std::function<bool()>& holds) {
  for (int i = 0; i < 3000; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

struct Disks {
  std::array<Disk, kNodes + 2> disks;
  [[nodiscard]] std::vector<checkpoint::Store*> stores() const {
    std::vector<checkpoint::Store*> all;
    for (const Disk& disk : disks) all.push_back(disk.store.get());
    return all;
  }
};

class Following : protected Disks, public ClusterRun {
 protected:
  explicit Following(v1::Replication replication) : ClusterRun(replication, absl::Seconds(5), 2, stores()) {
    cluster_.Kill(kFollower + 1);
  }
  uint64_t UnitsOf(size_t node) {
    const std::string id = absl::StrCat("node-", node);
    const v1::GetClusterStatusResponse cluster = cluster_.coordinator().GetClusterStatus();
    for (const v1::NodeStatus& status : cluster.nodes()) {
      if (status.node().node_id() == id) return status.units();
    }
    return 0;
  }
  // With the coordinator's clock, which is what Tick is for.
  bool Becomes(const std::function<bool()>& holds) {
    return Soon([&] {
      cluster_.coordinator().Tick();
      return holds();
    });
  }
  absl::Status Drain(size_t node, bool undo = false) {
    v1::DrainNodeRequest request;
    request.set_node_id(absl::StrCat("node-", node));
    request.set_undo(undo);
    return cluster_.coordinator().DrainNode(request);
  }
};

class FollowingTest : public Following, public ::testing::WithParamInterface<v1::Replication> {
 protected:
  FollowingTest() : Following(GetParam()) {}
  void SetUp() override {
    ASSERT_TRUE(Soon([&] { return cluster_.coordinator().GetClusterStatus().nodes_size() == kNodes + 1; }));
    Following::SetUp();
  }
  // Each that has been told that the step failed calls for it again, as clients do; whether all have been told that it is done.
  bool HaveStepped(uint64_t step) {
    bool all = true;
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      if (done_[rank] == step) continue;
      if ((*run_)[rank].answered()) {
        if ((*run_)[rank].FinishStep().ok()) {
          done_[rank] = step;
        } else {
          (*run_)[rank].StartStep(step);
        }
      }
      all = all && done_[rank] == step;
    }
    return all;
  }
  std::array<uint64_t, kRanks> done_{};
};

class ReplicatedFollowingTest : public FollowingTest {};
class SyncFollowingTest : public FollowingTest {};

class JoiningTest : public Following, public ::testing::WithParamInterface<v1::Replication> {
 protected:
  JoiningTest() : Following(GetParam()) { cluster_.Kill(kFollower); }
  bool HasJoined(size_t node) {
    return Becomes([&] { return UnitsOf(node) > 0; });
  }
};

class SyncJoiningTest : public JoiningTest {};

TEST_P(FollowingTest, ANodeWithoutWorkersOwnsUnitsFromTheBeginning) {
  EXPECT_GT(UnitsOf(kFollower), 0U);
  ASSERT_TRUE(GoOn(0, 6).ok());
  EXPECT_EQ(Parameters(), Undisturbed(6));
}

TEST_P(FollowingTest, ItForgetsTheJobWhenTheWorkersHaveLeft) {
  ASSERT_TRUE(GoOn(0, 2).ok());
  for (uint32_t rank = 0; rank < kRanks; ++rank) ASSERT_TRUE((*run_)[rank].Close().ok());
  EXPECT_TRUE(HasNoJobSoon(cluster_.engine(kFollower)));
  EXPECT_TRUE(HasNoJobSoon(cluster_.engine(0)));
}

TEST_P(FollowingTest, ItTakesPartInCheckpointsAndRestores) {
  ASSERT_TRUE(GoOn(0, 3).ok());
  ASSERT_TRUE(run_->Save("best", 3).ok());
  ASSERT_TRUE(GoOn(3, 5).ok());
  ASSERT_TRUE(run_->Save("last", 5).ok());  // without a step afterwards
  const absl::StatusOr<uint64_t> step = run_->Restore("best");
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_EQ(*step, 3U);
  ASSERT_TRUE(GoOn(3, 6).ok());
  EXPECT_EQ(Parameters(), Undisturbed(6));
}

TEST_P(FollowingTest, AStateThatItHasAPartOfIsNotExported) {
  ASSERT_TRUE(GoOn(0, 1).ok());
  const auto state = (*run_)[0].Export(1);
  EXPECT_EQ(wire::ReasonOf(state.status()), v1::ERROR_REASON_NOT_READY);
  EXPECT_THAT(std::string(state.status().message()), HasSubstr("on node 'node-3', which no worker is attached to"));
  ASSERT_TRUE(Drain(kFollower).ok());
  ASSERT_TRUE(Becomes([&] { return NodesOfPlan(cluster_).size() == kNodes; }));
  EXPECT_TRUE((*run_)[0].Export(1).ok());
}

TEST_P(FollowingTest, AStepThatIsRefusedCanBeRepeated) {
  ASSERT_TRUE(GoOn(0, 2).ok());
  for (uint32_t rank = 0; rank < kRanks; ++rank) (*run_)[rank].FillAndSubmit(3, Exact);
  for (uint32_t rank = 0; rank < kRanks; ++rank) (*run_)[rank].StartStep(3, rank < 2 ? 0.1 : 0.2);
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(wire::ReasonOf((*run_)[rank].FinishStep().status()), v1::ERROR_REASON_HYPER_MISMATCH);
  }
  ASSERT_TRUE(GoOn(2, 4).ok());
  EXPECT_EQ(Parameters(), Undisturbed(4));
}

TEST_P(ReplicatedFollowingTest, AWorkersNodeThatIsLostComesBackBesideIt) {
  ASSERT_TRUE(GoOn(0, 3).ok());
  cluster_.Kill(1);
  const absl::StatusOr<uint64_t> last_step = ComeBack(1);
  ASSERT_TRUE(last_step.ok()) << last_step.status();
  ASSERT_TRUE(GoOn(*last_step, 6).ok());
  EXPECT_EQ(Parameters(), Undisturbed(6));
}

TEST_P(FollowingTest, ItIsLostAndComesBackWithItsStateOrTheWorkersAreTold) {
  ASSERT_TRUE(GoOn(0, 3).ok());
  cluster_.Kill(kFollower);
  cluster_.Restart(kFollower);
  if (GetParam() == v1::REPLICATION_NONE) {
    absl::Status status;
    ASSERT_TRUE(Soon([&] {
      status = StepExactly(*run_, 4);
      return wire::ReasonOf(status) == v1::ERROR_REASON_STATE_LOST || absl::IsNotFound(status);
    })) << status;
    return;
  }
  uint64_t done = 3;
  if (const absl::Status status = GoOn(3, 4); !status.ok()) {
    ASSERT_EQ(GetParam(), v1::REPLICATION_ASYNC) << status;
    ASSERT_EQ(wire::ReasonOf(status), v1::ERROR_REASON_ROLLED_BACK) << status;
    for (size_t node = 0; node < kNodes; ++node) done = Begin(node, /*must_resume=*/true).value_or(0);
    EXPECT_EQ(done, 2U);
  }
  ASSERT_TRUE(GoOn(done, 6).ok());
  EXPECT_EQ(Parameters(), Undisturbed(6));
}

TEST_P(SyncFollowingTest, ItIsLostAtAnyMomentOfAStepAndNoBitWithIt) {
  constexpr uint64_t kSteps = 24;
  for (uint64_t step = 1; step <= kSteps; ++step) {
    for (uint32_t rank = 0; rank < kRanks; ++rank) (*run_)[rank].FillAndSubmit(step, Exact);
    for (uint32_t rank = 0; rank < kRanks; ++rank) (*run_)[rank].StartStep(step);
    std::this_thread::sleep_for(std::chrono::microseconds(61 * step));
    cluster_.Kill(kFollower);
    cluster_.Restart(kFollower);
    ASSERT_TRUE(Soon([&] { return HaveStepped(step); })) << "step " << step;
  }
  EXPECT_EQ(Parameters(), Undisturbed(kSteps));
}

TEST_P(FollowingTest, ADrainedOneLeavesThePlanAndMayEnd) {
  ASSERT_TRUE(GoOn(0, 2).ok());
  ASSERT_TRUE(Drain(kFollower).ok());
  ASSERT_TRUE(Becomes([&] { return NodesOfPlan(cluster_).size() == kNodes; }));
  EXPECT_TRUE(HasNoJobSoon(cluster_.engine(kFollower)));
  cluster_.Kill(kFollower);
  ASSERT_TRUE(GoOn(2, 5).ok());
  EXPECT_EQ(Parameters(), Undisturbed(5));
}

TEST_P(JoiningTest, ANodeJoinsAJobThatRunsAndNoBitChanges) {
  ASSERT_TRUE(GoOn(0, 3).ok());
  cluster_.Restart(kFollower);
  ASSERT_TRUE(HasJoined(kFollower));  // without a step
  ASSERT_TRUE(GoOn(3, 6).ok());
  EXPECT_EQ(Parameters(), Undisturbed(6));
  cluster_.Restart(kFollower + 1);
  ASSERT_TRUE(HasJoined(kFollower + 1));
  ASSERT_TRUE(GoOn(6, 8).ok());
  EXPECT_EQ(Parameters(), Undisturbed(8));
}

TEST_P(SyncJoiningTest, ItIsLostAtAnyMomentOfItsJoiningAndNoBitWithIt) {
  constexpr uint64_t kSteps = 8;
  cluster_.Restart(kFollower);
  ASSERT_TRUE(HasJoined(kFollower));
  for (uint64_t step = 1; step <= kSteps; ++step) {
    ASSERT_TRUE(Drain(kFollower).ok());
    ASSERT_TRUE(Becomes([&] { return NodesOfPlan(cluster_).size() == kNodes; })) << "step " << step;
    ASSERT_TRUE(GoOn(step - 1, step).ok()) << "step " << step;
    ASSERT_TRUE(Drain(kFollower, /*undo=*/true).ok());
    std::this_thread::sleep_for(std::chrono::microseconds(313 * (step - 1)));
    cluster_.Kill(kFollower);
    cluster_.Restart(kFollower);
    ASSERT_TRUE(HasJoined(kFollower)) << "step " << step;
  }
  ASSERT_TRUE(GoOn(kSteps, kSteps + 2).ok());
  EXPECT_EQ(Parameters(), Undisturbed(kSteps + 2));
}

TEST_P(JoiningTest, TheFirstOfTwoLeavesAndTheOtherStays) {
  ASSERT_TRUE(GoOn(0, 1).ok());
  for (const size_t node : {kFollower, kFollower + 1}) {
    cluster_.Restart(node);
    ASSERT_TRUE(HasJoined(node));
  }
  ASSERT_TRUE(Drain(kFollower).ok());
  const std::vector<std::string> left = {"node-0", "node-1", "node-2", "node-4"};
  ASSERT_TRUE(Becomes([&] { return NodesOfPlan(cluster_) == left && UnitsOf(kFollower + 1) > 0; }));
  ASSERT_TRUE(GoOn(1, 4).ok());
  EXPECT_EQ(Parameters(), Undisturbed(4));
}

TEST_P(JoiningTest, NodesComeAndGoWhileStepsGoOn) {
  constexpr uint64_t kSteps = 24;
  for (uint64_t step = 1; step <= kSteps; ++step) {
    for (uint32_t rank = 0; rank < kRanks; ++rank) (*run_)[rank].FillAndSubmit(step, Exact);
    for (uint32_t rank = 0; rank < kRanks; ++rank) (*run_)[rank].StartStep(step);
    std::this_thread::sleep_for(std::chrono::microseconds(131 * step));
    if (step == 1) cluster_.Restart(kFollower);
    if (step == 4) cluster_.Restart(kFollower + 1);
    if (step % 4 == 0 && step > 4) {
      ASSERT_TRUE(Drain(kFollower + step / 4 % 2, step % 16 > 8).ok());
    }
    cluster_.coordinator().Tick();
    absl::Status status;
    for (uint32_t rank = 0; rank < kRanks; ++rank) status.Update((*run_)[rank].FinishStep().status());
    if (!status.ok()) status = GoOn(step - 1, step);
    ASSERT_TRUE(status.ok()) << "step " << step << ": " << status;
  }
  EXPECT_EQ(Parameters(), Undisturbed(kSteps));
}

INSTANTIATE_TEST_SUITE_P(Replication, FollowingTest,
                         ::testing::Values(v1::REPLICATION_NONE, v1::REPLICATION_ASYNC, v1::REPLICATION_SYNC));
INSTANTIATE_TEST_SUITE_P(Replication, ReplicatedFollowingTest, ::testing::Values(v1::REPLICATION_ASYNC, v1::REPLICATION_SYNC));
INSTANTIATE_TEST_SUITE_P(Replication, SyncFollowingTest, ::testing::Values(v1::REPLICATION_SYNC));
INSTANTIATE_TEST_SUITE_P(Replication, SyncJoiningTest, ::testing::Values(v1::REPLICATION_SYNC));
INSTANTIATE_TEST_SUITE_P(Replication, JoiningTest,
                         ::testing::Values(v1::REPLICATION_NONE, v1::REPLICATION_ASYNC, v1::REPLICATION_SYNC));

TEST(FollowingNodeTest, APlanOfAJobThatCannotBeIsRefused) {
  TestNode node(TwoSlots());
  v1::WatchPlansResponse event;
  event.mutable_plan()->set_job_id("model");
  event.mutable_plan()->set_generation(1);
  event.mutable_plan()->add_nodes("node-0");
  *event.mutable_job() = ReplicatedModel(v1::REPLICATION_NONE).spec;
  event.mutable_job()->mutable_tensors(0)->set_group(7);
  node.Replay(event);
  EXPECT_TRUE(node.engine().JobStatuses().empty());
}

// A job that began on one node alone.
TEST(JoiningOneNodeTest, ANodeJoinsAndLeavesAJobOfOneNode) {
  TestJob job = ReplicatedModel(v1::REPLICATION_NONE);
  job.spec.set_world_size(2);
  TestCluster cluster(2, Impatient(absl::Seconds(5)), {}, 1);
  cluster.Kill(1);
  TestRun run(std::vector<Engine*>{&cluster.engine(0), &cluster.engine(0)}, job);
  const Shards shards = Rows(job, 2, true);
  ASSERT_TRUE(run.Start(shards).ok());
  ASSERT_TRUE(StepUntilItWorks(run, 1).ok());
  const auto units = [&] {
    const v1::GetClusterStatusResponse status = cluster.coordinator().GetClusterStatus();
    return status.nodes_size() == 2 ? status.nodes(1).units() : uint64_t{0};
  };
  cluster.Restart(1);
  ASSERT_TRUE(Soon([&] {
    cluster.coordinator().Tick();
    return units() > 0;
  }));
  ASSERT_TRUE(StepUntilItWorks(run, 2).ok());
  v1::DrainNodeRequest request;
  request.set_node_id("node-1");
  ASSERT_TRUE(cluster.coordinator().DrainNode(request).ok());
  ASSERT_TRUE(Soon([&] {
    cluster.coordinator().Tick();
    return NodesOfPlan(cluster).size() == 1;
  }));
  cluster.Kill(1);
  ASSERT_TRUE(StepUntilItWorks(run, 3).ok());
  EXPECT_EQ(ParametersOf(run, job), Undisturbed(job, shards, 3));
}

}  // namespace
}  // namespace dmuon::node
