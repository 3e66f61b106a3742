// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Gradients that are reduced before their step is called for. The judge is the same job on one node with
// the serial pipeline, which does nothing ahead.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/daemon/node/exact_run.h"
#include "tests/daemon/node/test_node.h"
#include "wire/error.h"

namespace dmuon::node {
namespace {

constexpr uint64_t kSteps = 3;
constexpr size_t kTensors = 5;
constexpr const char* kBackward = R"(dmuon_gradient_buckets_total{job_id="model",when="backward"})";
constexpr const char* kInVain = R"(dmuon_gradient_buckets_total{job_id="model",when="in_vain"})";
constexpr const char* kStep = R"(dmuon_gradient_buckets_total{job_id="model",when="step"})";

// Several buckets: each large tensor is more than the smallest one.
TestJob Model() {
  TestJob job("model", 4);
  for (int i = 0; i < 3; ++i) job.Add(absl::StrCat("embedding", i), {1031, 257}, 1);
  job.Add("up", {13, 6});
  job.Add("norm", {7}, 1);
  return job;
}

float Wrong(size_t tensor, int64_t index, uint64_t step) { return 1.0F + Exact(tensor, index, step); }

// The daemon looks every millisecond. What it does not do in this time it does in the step, so tests that
// want it to have been done ahead look at the counters of several steps.
void WhileOthersAreComputed() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

class AheadTest : public ::testing::Test {
 protected:
  explicit AheadTest(bool reduced = true)
      : shards_(Rows(job_, reduced ? 4 : 2, reduced)) {}

  void SetUp() override { ASSERT_TRUE(run_.Start(shards_).ok()); }

  std::vector<std::vector<float>> Expected(uint64_t steps) const {
    return Undisturbed(job_, shards_, steps);
  }

  void Announce(uint64_t step) {
    for (size_t rank = 0; rank < 4; ++rank) ASSERT_TRUE(run_[rank].ExpectGradients(step).ok());
  }
  // As backward does: the last tensors first, every worker at its own pace.
  void Backward(uint64_t step, TestWorker::GradientValue value, size_t down_to = 0) {
    for (size_t tensor = kTensors; tensor-- > down_to;) {
      for (size_t rank = 0; rank < 4; ++rank) run_[rank].FillAndSubmit(tensor, step, value);
      WhileOthersAreComputed();
    }
  }
  absl::Status Step(uint64_t step) {
    absl::Status first;
    for (const auto& answer : run_.StepAsSubmitted(step)) first.Update(answer.status());
    return first;
  }
  void Train() {
    for (uint64_t step = 1; step <= kSteps; ++step) {
      Announce(step);
      Backward(step, Exact);
      ASSERT_TRUE(Step(step).ok());
    }
  }

  const TestJob job_ = Model();
  const Shards shards_;
  TestCluster cluster_{2, TwoSlots()};
  TestRun run_{{&cluster_.engine(0), &cluster_.engine(0), &cluster_.engine(1), &cluster_.engine(1)},
               job_};
};

// Sums over the workers of a node and over nodes.
class UnreducedAheadTest : public AheadTest {
 protected:
  UnreducedAheadTest() : AheadTest(/*reduced=*/false) {}
};

TEST_F(AheadTest, WhatIsDoneDuringBackwardGivesTheSameBits) {
  Train();
  EXPECT_EQ(ParametersOf(run_, job_), Expected(kSteps));
  EXPECT_GT(cluster_.Counter(kBackward), 0.0);
  EXPECT_EQ(cluster_.Counter(kInVain), 0.0);
}

TEST_F(UnreducedAheadTest, SumsOfSeveralWorkersAndNodesAreTheSame) {
  Train();
  EXPECT_EQ(ParametersOf(run_, job_), Expected(kSteps));
  EXPECT_GT(cluster_.Counter(kBackward), 0.0);
}

TEST_F(AheadTest, OneWorkerThatAnnouncesIsEnoughAndNoneIsToo) {
  Backward(1, Exact);
  ASSERT_TRUE(Step(1).ok());
  EXPECT_EQ(cluster_.Counter(kBackward), 0.0);
  const double of_a_step = cluster_.Counter(kStep);
  EXPECT_GT(of_a_step, 2.0);
  for (uint64_t step = 2; step <= kSteps; ++step) {
    ASSERT_TRUE(run_[2].ExpectGradients(step).ok());
    Backward(step, Exact);
    ASSERT_TRUE(Step(step).ok());
  }
  EXPECT_EQ(ParametersOf(run_, job_), Expected(kSteps));
  EXPECT_EQ(cluster_.Counter(kBackward) + cluster_.Counter(kStep), kSteps * of_a_step);
}

TEST_F(AheadTest, GradientsThatAreSubmittedAgainReplaceWhatWasSent) {
  for (uint64_t step = 1; step <= kSteps; ++step) {
    Announce(step);
    Backward(step, Wrong);
    run_[3].FillAndSubmit(step, Exact);  // only one node knows
    for (size_t rank = 0; rank < 3; ++rank) run_[rank].FillAndSubmit(step, Exact);
    ASSERT_TRUE(Step(step).ok());
  }
  EXPECT_EQ(ParametersOf(run_, job_), Expected(kSteps));
  EXPECT_GT(cluster_.Counter(kInVain), 0.0);
}

TEST_F(AheadTest, AWorkerThatReturnsSubmitsAnew) {
  for (uint64_t step = 1; step <= kSteps; ++step) {
    Announce(step);
    for (size_t rank = 0; rank < 3; ++rank) run_[rank].FillAndSubmit(step, Exact);
    run_[3].FillAndSubmit(step, Wrong);
    WhileOthersAreComputed();
    run_[3].Die();
    const auto begun = run_[3].Return(absl::StrCat("life-", step), shards_[3]);
    ASSERT_TRUE(begun.ok()) << begun.status();
    ASSERT_TRUE(run_[3].ExpectGradients(step).ok());
    run_[3].FillAndSubmit(step, Exact);
    WhileOthersAreComputed();
    ASSERT_TRUE(Step(step).ok());
  }
  EXPECT_EQ(ParametersOf(run_, job_), Expected(kSteps));
  EXPECT_GT(cluster_.Counter(kInVain), 0.0);
}

TEST_F(AheadTest, AMissingGradientAfterOthersHaveLeftChangesNothing) {
  const auto before = ParametersOf(run_, job_);
  Announce(1);
  Backward(1, Exact, /*down_to=*/1);
  for (size_t rank = 1; rank < 4; ++rank) run_[rank].FillAndSubmit(0, 1, Exact);
  EXPECT_EQ(wire::ReasonOf(Step(1)), v1::ERROR_REASON_MISSING_GRADIENT);
  EXPECT_EQ(ParametersOf(run_, job_), before);
  run_[0].FillAndSubmit(0, 1, Exact);
  ASSERT_TRUE(Step(1).ok());
  EXPECT_EQ(ParametersOf(run_, job_), Expected(1));
}

TEST_F(AheadTest, AConnectionThatBreaksAfterBucketsHaveLeftIsMendedUnnoticed) {
  for (uint64_t step = 1; step <= kSteps; ++step) {
    Announce(step);
    Backward(step, Exact, /*down_to=*/step % 3);
    cluster_.switchboard().Drop(absl::StrCat("node-", step % 2));
    Backward(step, Exact);
    absl::Status status = Step(step);
    if (wire::ReasonOf(status) == v1::ERROR_REASON_PEER_LOST) status = StepUntilItWorks(run_, step);
    ASSERT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ(ParametersOf(run_, job_), Expected(kSteps));
}

TEST_F(AheadTest, AnAnnouncementOfAnotherStepOrGenerationIsIgnored) {
  for (const uint64_t step : {uint64_t{0}, uint64_t{2}, ~uint64_t{0}}) Announce(step);
  run_[0].generation += 1;
  ASSERT_TRUE(run_[0].ExpectGradients(1).ok());
  run_[0].generation -= 1;
  Backward(1, Exact);
  ASSERT_TRUE(Step(1).ok());
  EXPECT_EQ(cluster_.Counter(kBackward), 0.0);
}

TEST(AheadOnOneNodeTest, SumsAreTakenDuringBackward) {
  const TestJob job = Model();
  const Shards shards = Rows(job, 2, /*reduced=*/false);
  TestNode serial(TwoSlots(/*overlap=*/false));
  TestNode ahead(TwoSlots());
  TestRun expected(&serial.engine(), job);
  TestRun run(&ahead.engine(), job);
  ASSERT_TRUE(expected.Start(shards).ok());
  ASSERT_TRUE(run.Start(shards).ok());
  for (uint64_t step = 1; step <= kSteps; ++step) {
    for (TestRun* each : {&expected, &run}) ASSERT_TRUE((*each)[0].ExpectGradients(step).ok());
    ASSERT_TRUE(StepExactly(expected, step).ok());
    for (size_t rank = 0; rank < 4; ++rank) run[rank].FillAndSubmit(step, Exact);
    WhileOthersAreComputed();
    for (const auto& answer : run.StepAsSubmitted(step)) EXPECT_TRUE(answer.ok()) << answer.status();
  }
  EXPECT_EQ(ParametersOf(run, job), ParametersOf(expected, job));
  EXPECT_GT(ahead.Counter(kBackward), 0.0);
  EXPECT_EQ(serial.Counter(kBackward), 0.0);
}

}  // namespace
}  // namespace dmuon::node
