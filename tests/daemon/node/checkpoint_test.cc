// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Jobs that are saved and restored, on one node and on several. Gradients are multiples of 1/64, so that a run that goes
// on from a checkpoint has the bits of one that was never interrupted, on whatever it goes on.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/checkpoint/store.h"
#include "tests/daemon/node/checkpoint_run.h"
#include "tests/daemon/node/exact_run.h"
#include "tests/daemon/node/test_node.h"
#include "wire/error.h"

namespace dmuon::node {
namespace {

using ::testing::HasSubstr;

// A job on some nodes; each worker is on the node of its number, modulo.
struct Topology {
  std::string name;
  size_t nodes;
  uint32_t workers;
  uint32_t parts;  // of the rows; fewer than workers: replicas, whose gradients the service reduces
};
const std::vector<Topology> kTopologies = {
    {"OneWorker", 1, 1, 1}, {"TwoNodesOfTwoReplicas", 2, 4, 2}, {"ThreeWorkers", 1, 3, 3}, {"TwoNodesOfTwo", 2, 4, 4}};

struct Deployment {
  Deployment(const Topology& topology, const EngineOptions& options, const TestJob& job)
      : cluster(topology.nodes, options), run(Engines(topology), job) {}
  std::vector<Engine*> Engines(const Topology& topology) {
    std::vector<Engine*> engines;
    for (uint32_t rank = 0; rank < topology.workers; ++rank) engines.push_back(&cluster.engine(rank % topology.nodes));
    return engines;
  }
  TestCluster cluster;
  TestRun run;
};

Shards ShardsOf(const Topology& topology, const TestJob& job) {
  return Rows(job, topology.parts, topology.parts == topology.workers);
}

class ResumeTest : public ::testing::TestWithParam<v1::Variant> {};

TEST_P(ResumeTest, AResumedRunHasTheBitsOfTheUninterruptedOne) {
  const TestJob job = CheckpointModel(2, GetParam());
  const std::vector<std::vector<float>> expected = Undisturbed(job, Rows(job, 2, true), 5);
  Disk disk;
  {
    TestNode node(disk.Options());
    TestRun run(&node.engine(), job);
    ASSERT_TRUE(run.Start().ok());
    ExpectSteps(run, 1, 3);
    const absl::Status saved = run.Save("three", 3);
    ASSERT_TRUE(saved.ok()) << saved;
  }
  TestNode node(disk.Options());
  TestRun run(&node.engine(), job);
  ASSERT_TRUE(run.Start(Rows(job, 2, true), Zero).ok());
  const absl::StatusOr<uint64_t> step = run.Restore("three");
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_EQ(*step, 3U);
  ExpectSteps(run, 4, 5);
  EXPECT_EQ(ParametersOf(run, job), expected);
}

INSTANTIATE_TEST_SUITE_P(Variants, ResumeTest,
                         ::testing::Values(v1::VARIANT_MUON, v1::VARIANT_NORMUON, v1::VARIANT_ADAMUON, v1::VARIANT_MUON2,
                                           v1::VARIANT_MUON2_FACTORED, v1::VARIANT_MONA, v1::VARIANT_DION2,
                                           v1::VARIANT_NUMUON),
                         [](const auto& of) { return v1::Variant_Name(of.param).substr(8); });

// Rows 84, 86 and 93 of tests/cases.md.
TEST(TopologyTest, AnyDeploymentRestoresWhatAnyOtherSaved) {
  for (const Topology& from : kTopologies) {
    Disk disk;
    std::vector<float> expected;
    const TestJob saved_job = CheckpointModel(from.workers);
    const Shards saved_shards = ShardsOf(from, saved_job);
    {
      Deployment before(from, disk.Options(), saved_job);
      ASSERT_TRUE(before.run.Start(saved_shards).ok());
      ExpectSteps(before.run, 1, 2);
      const absl::Status saved = before.run.Save("two", 2);
      ASSERT_TRUE(saved.ok()) << from.name << ": " << saved;
      ExpectSteps(before.run, 3, 4);
      expected = WholeModel(before.run, saved_job, saved_shards);
    }
    for (const Topology& to : kTopologies) {
      const TestJob job = CheckpointModel(to.workers);
      const Shards shards = ShardsOf(to, job);
      Deployment after(to, disk.Options(), job);
      ASSERT_TRUE(after.run.Start(shards, Zero).ok());
      const absl::StatusOr<uint64_t> step = after.run.Restore("two");
      ASSERT_TRUE(step.ok()) << from.name << " to " << to.name << ": " << step.status();
      ExpectSteps(after.run, 3, 4);
      EXPECT_EQ(WholeModel(after.run, job, shards), expected) << from.name << " to " << to.name;
    }
  }
}

class CheckpointTest : public ::testing::Test {
 protected:
  explicit CheckpointTest() : node_(disk_.Options()), run_(&node_.engine(), job_) {}
  void SetUp() override { ASSERT_TRUE(run_.Start().ok()); }

  Disk disk_;
  TestJob job_ = CheckpointModel(2);
  TestNode node_;
  TestRun run_;
};

TEST_F(CheckpointTest, ParametersAreThereAtOnceAfterRestoring) {
  ExpectSteps(run_, 1, 2);
  const auto saved = ParametersOf(run_, job_);
  ASSERT_TRUE(run_.Save("two", 2).ok());
  ExpectSteps(run_, 3, 4);
  EXPECT_NE(ParametersOf(run_, job_), saved);
  ASSERT_TRUE(run_.Restore("two").ok());
  EXPECT_EQ(ParametersOf(run_, job_), saved);
}

TEST_F(CheckpointTest, ARunGoesBackAndTakesTheSameWayAgain) {
  ExpectSteps(run_, 1, 2);
  ASSERT_TRUE(run_.Save("two", 2).ok());
  ExpectSteps(run_, 3, 4);
  const auto once = ParametersOf(run_, job_);
  ASSERT_TRUE(run_.Restore("two").ok());
  ExpectSteps(run_, 3, 4);
  EXPECT_EQ(ParametersOf(run_, job_), once);
  EXPECT_EQ(node_.Counter("dmuon_checkpoint_duration_seconds_count{job_id=\"model\",op=\"restore\",result=\"ok\"}"), 1);
}

TEST_F(CheckpointTest, TheSameStepOfAnotherLifeIsAnotherCheckpoint) {
  ExpectSteps(run_, 1, 1);
  ASSERT_TRUE(run_.Save("one", 1).ok());
  ExpectSteps(run_, 2, 2);
  ASSERT_TRUE(run_.Save("two", 2).ok());
  ASSERT_TRUE(run_.Restore("one").ok());
  for (size_t rank = 0; rank < 2; ++rank) run_[rank].FillAndSubmit(2, [](size_t, int64_t, uint64_t) { return 1.0F; });
  for (const auto& answer : run_.StepAsSubmitted(2)) ASSERT_TRUE(answer.ok()) << answer.status();
  const auto otherwise = ParametersOf(run_, job_);
  ASSERT_TRUE(run_.Save("two", 2).ok());
  ExpectSteps(run_, 3, 3);
  ASSERT_TRUE(run_.Restore("two").ok());
  EXPECT_EQ(ParametersOf(run_, job_), otherwise);
}

TEST_F(CheckpointTest, NoGradientOfAnotherTimeCountsAfterRestoring) {
  ExpectSteps(run_, 1, 1);
  ASSERT_TRUE(run_.Save("one", 1).ok());
  ExpectSteps(run_, 2, 2);
  ASSERT_TRUE(run_.Restore("one").ok());
  const auto answers = run_.StepAsSubmitted(2);  // nobody has submitted for this step 2
  EXPECT_EQ(wire::ReasonOf(answers[0].status()), v1::ERROR_REASON_MISSING_GRADIENT) << answers[0].status();
}

TEST_F(CheckpointTest, ACheckpointIsOfTheStepThatItWasCalledForAfter) {
  ExpectSteps(run_, 1, 2);
  for (uint32_t rank = 0; rank < 2; ++rank) ASSERT_TRUE(run_[rank].Save("two", 2).ok());
  ExpectSteps(run_, 3, 5);
  ASSERT_TRUE(run_[0].Save("two", 2, /*wait=*/true).ok());
  const auto manifest = disk_.store->Find("model", "two");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->step, 2U);
  const absl::StatusOr<uint64_t> step = run_.Restore("two");
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_EQ(*step, 2U);
}

TEST_F(CheckpointTest, ASecondCheckpointComesAfterTheFirst) {
  ExpectSteps(run_, 1, 1);
  for (const std::string name : {"a", "b", "c"}) ASSERT_TRUE(run_[0].Save(name, 1).ok());
  for (const std::string name : {"a", "b", "c"}) {
    const absl::Status status = run_[1].Save(name, 1, /*wait=*/true);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(disk_.store->Find("model", name).ok());
  }
}

TEST_F(CheckpointTest, WhatBecameOfEarlierOnesIsStillKnown) {
  for (uint64_t step = 1; step <= 3; ++step) {
    ExpectSteps(run_, step, step);
    ASSERT_TRUE(run_[0].Save(absl::StrCat("at-", step), step, /*wait=*/true).ok());
  }
  const absl::Status status = run_[1].Save("at-1", 1, /*wait=*/true);
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(CheckpointTest, OneThatFailedIsNotMadeOfALaterState) {
  ExpectSteps(run_, 1, 1);
  std::filesystem::remove_all(disk_.directory.path());
  ASSERT_TRUE(run_[0].Save("gone", 1).ok());
  EXPECT_EQ(wire::ReasonOf(run_[0].Save("gone", 1, /*wait=*/true)), v1::ERROR_REASON_CHECKPOINT);
  ExpectSteps(run_, 2, 2);
  EXPECT_EQ(wire::ReasonOf(run_[1].Save("gone", 1)), v1::ERROR_REASON_CHECKPOINT);
}

TEST_F(CheckpointTest, OneCopyIsForAllWorkersThatCallForIt) {
  ExpectSteps(run_, 1, 1);
  ASSERT_TRUE(run_[0].Save("a", 1).ok());
  std::future<absl::Status> other = std::async(std::launch::async, [&] { return run_[1].Save("b", 1); });
  EXPECT_TRUE(run_[0].Save("b", 1).ok());
  EXPECT_TRUE(other.get().ok());
  ASSERT_TRUE(run_[0].Save("b", 1, /*wait=*/true).ok());
  EXPECT_EQ(node_.Counter("dmuon_checkpoint_duration_seconds_count{job_id=\"model\",op=\"save\",result=\"ok\"}"), 2);
}

TEST_F(CheckpointTest, AStepThatIsOverCannotBeSaved) {
  ExpectSteps(run_, 1, 2);
  const absl::Status status = run_[0].Save("late", 1);
  EXPECT_EQ(wire::ReasonOf(status), v1::ERROR_REASON_STEP_OUT_OF_ORDER);
  EXPECT_THAT(std::string(status.message()), HasSubstr("last applied is 2"));
}

TEST_F(CheckpointTest, NamesAreNotPaths) {
  for (const std::string name : {"", "../up", "a/b", ".hidden", "A", "x y"}) {
    EXPECT_EQ(run_[0].Save(name, 0).code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_EQ(run_.Restore(name).status().code(), absl::StatusCode::kInvalidArgument) << name;
  }
}

TEST_F(CheckpointTest, AnUnknownCheckpointChangesNothing) {
  ExpectSteps(run_, 1, 1);
  const auto before = ParametersOf(run_, job_);
  const absl::Status status = run_.Restore("nothing").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
  EXPECT_EQ(wire::ReasonOf(status), v1::ERROR_REASON_CHECKPOINT);
  EXPECT_THAT(std::string(status.message()), HasSubstr("nothing"));
  EXPECT_EQ(ParametersOf(run_, job_), before);
  ExpectSteps(run_, 2, 3);
  EXPECT_EQ(ParametersOf(run_, job_), Undisturbed(job_, Rows(job_, 2, true), 3));
}

TEST_F(CheckpointTest, ADamagedFileIsNamedAndChangesNothing) {
  ExpectSteps(run_, 1, 1);
  ASSERT_TRUE(run_.Save("one", 1).ok());
  const std::filesystem::path file = disk_.File(".safetensors");
  FlipLastBit(file);
  ExpectSteps(run_, 2, 2);
  const absl::Status status = run_.Restore("one").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(file.filename().string()));
  ExpectSteps(run_, 3, 3);
  EXPECT_EQ(ParametersOf(run_, job_), Undisturbed(job_, Rows(job_, 2, true), 3));
}

TEST_F(CheckpointTest, WorkersMustAgreeOnWhatTheyRestore) {
  ExpectSteps(run_, 1, 1);
  ASSERT_TRUE(run_.Save("one", 1).ok());
  run_[0].StartRestore("one");
  run_[1].FillAndSubmit(2, Exact);
  run_[1].StartStep(2);
  const absl::Status restored = run_[0].FinishRestore().status();
  const absl::Status stepped = run_[1].FinishStep().status();
  EXPECT_EQ(restored, stepped);
  EXPECT_EQ(wire::ReasonOf(restored), v1::ERROR_REASON_CHECKPOINT);
  EXPECT_THAT(std::string(restored.message()), HasSubstr("rank 0 wants to restore checkpoint 'one', rank 1 step 2"));
  ExpectSteps(run_, 2, 3);
  EXPECT_EQ(ParametersOf(run_, job_), Undisturbed(job_, Rows(job_, 2, true), 3));
}

TEST_F(CheckpointTest, AnOperatorSavesARunningJob) {
  ExpectSteps(run_, 1, 2);
  std::promise<absl::StatusOr<v1::SaveJobResponse>> promise;
  node_.engine().SaveJob("model", "by-hand", absl::InfiniteFuture(),
                         [&](absl::StatusOr<v1::SaveJobResponse> response) { promise.set_value(std::move(response)); });
  const absl::StatusOr<v1::SaveJobResponse> response = promise.get_future().get();
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->step(), 2U);
  EXPECT_TRUE(disk_.store->Find("model", "by-hand").ok());
}

TEST_F(CheckpointTest, ACheckpointThatWasCalledForExistsOnceItsJobHasEnded) {
  ExpectSteps(run_, 1, 1);
  ASSERT_TRUE(run_[0].Save("last", 1).ok());
  for (uint32_t rank = 0; rank < 2; ++rank) ASSERT_TRUE(run_[rank].Close().ok());
  ASSERT_TRUE(HasNoJobSoon(node_.engine()));
  EXPECT_TRUE(disk_.store->Find("model", "last").ok());
}

}  // namespace
}  // namespace dmuon::node
