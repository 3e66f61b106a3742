// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What a step promises to the workers of a real daemon, through the public ABI.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>

#include "tests/client/daemon_process.h"
#include "tests/client/worker.h"

namespace dmuon::client {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::FloatEq;
using ::testing::HasSubstr;
using ::testing::Pointwise;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class StepTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { daemon_ = new DaemonProcess(DMUOND); }
  static void TearDownTestSuite() {
    delete daemon_;
    daemon_ = nullptr;
  }
  static std::string Job() {
    return ::testing::UnitTest::GetInstance()->current_test_info()->name();
  }
  void Attach(uint32_t world_size, float initial = 1.0F) {
    workers_.resize(world_size);
    OnAllRanks(world_size, [&](uint32_t rank) {
      workers_[rank] = std::make_unique<Worker>(daemon_->address(), Job(), rank, world_size);
      workers_[rank]->AddTensors();
      workers_[rank]->Join(initial);
    });
  }
  // One step on every rank; fn(rank) gives the gradient.
  std::vector<dmuon_step_result> Step(uint64_t step, const std::function<float(uint32_t)>& fn) {
    std::vector<dmuon_step_result> results(workers_.size());
    OnAllRanks(size(), [&](uint32_t rank) { results[rank] = worker(rank).Run(step, fn(rank)); });
    return results;
  }
  [[nodiscard]] uint32_t size() const { return static_cast<uint32_t>(workers_.size()); }
  Worker& worker(uint32_t rank) { return *workers_[rank]; }

  static DaemonProcess* daemon_;
  std::vector<std::unique_ptr<Worker>> workers_;
};
DaemonProcess* StepTest::daemon_ = nullptr;

TEST_F(StepTest, EveryRankEndsWithTheSameBits) {
  Attach(2);
  for (uint64_t step = 1; step <= 3; ++step) {
    Step(step, [](uint32_t rank) { return rank == 0 ? 3.0F : -1.0F; });
    EXPECT_EQ(worker(0).Parameters(), worker(1).Parameters());
  }
}

TEST_F(StepTest, TheMeanOfUnreducedGradientsCounts) {  // cases row 22
  Attach(2);
  // The mean is 1: AdamW's first step is lr against its sign, whatever its size.
  const auto results = Step(1, [](uint32_t rank) { return rank == 0 ? 3.0F : -1.0F; });
  EXPECT_THAT(worker(0).params(1), Each(FloatEq(1.0F - static_cast<float>(kRate))));
  for (const dmuon_step_result& result : results) {
    EXPECT_NEAR(result.grad_norm, std::sqrt(24.0 + 4.0), 1e-6);
    EXPECT_EQ(result.clip, 1.0);
    EXPECT_EQ(result.replayed, 0);
  }
}

TEST_F(StepTest, EachMatrixIsOrthogonalizedOnceAStep) {  // cases rows 24, 31
  Attach(2);
  uint64_t calls = 0;
  for (uint64_t step = 1; step <= 4; ++step) {
    calls = Step(step, [](uint32_t) { return 1.0F; })[0].newton_schulz_calls;
  }
  EXPECT_EQ(calls, 4u);
}

TEST_F(StepTest, TheNormSpansAllShards) {  // cases row 43
  std::vector<dmuon_step_result> results(2);
  OnAllRanks(2, [&](uint32_t rank) {
    Worker worker(daemon_->address(), Job(), rank, 2);
    WholeTensor tensor("halves", {2}, worker.adamw());
    tensor.grad_box.offset[0] = tensor.param_box.offset[0] = rank;
    tensor.grad_box.length[0] = tensor.param_box.length[0] = 1;
    worker.Add(tensor);
    worker.Join(0.0F);
    results[rank] = worker.Run(1, rank == 0 ? 3.0F : 4.0F);
  });
  EXPECT_DOUBLE_EQ(results[0].grad_norm, 5.0);
  EXPECT_DOUBLE_EQ(results[1].grad_norm, 5.0);
}

TEST_F(StepTest, GradientsMayBeExpectedBeforeTheyAreSubmitted) {
  Attach(2);
  for (uint64_t step = 1; step <= 3; ++step) {
    worker(0).client().expect_gradients(step);  // rank 1 says nothing
    for (const dmuon_step_result& result : Step(step, [](uint32_t rank) { return rank == 0 ? 1.0F : 2.0F; })) {
      EXPECT_DOUBLE_EQ(result.grad_norm, 1.5 * std::sqrt(28.0));
    }
  }
  EXPECT_EQ(FailureOf([&] { worker(0).client().expect_gradients(0); }).status, DMUON_INVALID_ARGUMENT);
}

TEST_F(StepTest, ANanOnOneRankSkipsTheStepEverywhere) {  // cases row 66
  Attach(2);
  const std::vector<float> before = worker(0).Parameters();
  for (const dmuon_step_result& result :
       Step(1, [](uint32_t rank) { return rank ? kNan : 1.0F; })) {
    EXPECT_EQ(result.skipped, 1);
    EXPECT_TRUE(std::isnan(result.grad_norm));
    EXPECT_EQ(result.newton_schulz_calls, 0u);
  }
  EXPECT_EQ(worker(0).Parameters(), before);
  EXPECT_EQ(worker(1).Parameters(), before);
  EXPECT_EQ(Step(2, [](uint32_t) { return 1.0F; })[0].skipped, 0);
}

TEST_F(StepTest, AMissingGradientIsReportedOnEveryRankAndChangesNothing) {  // cases row 64
  Attach(2);
  const std::vector<float> before = worker(0).Parameters();
  OnAllRanks(2, [&](uint32_t rank) {
    worker(rank).Submit(1, 1.0F);
    if (rank == 1) worker(rank).client().submit_missing(0, 1);
    worker(rank).Start(1);
    const Failure failure = FailureOf([&] { worker(rank).Wait(1); });
    EXPECT_EQ(failure.status, DMUON_MISSING_GRADIENT);
    EXPECT_THAT(failure.message, AllOf(HasSubstr("matrix"), HasSubstr("1")));
  });
  EXPECT_EQ(worker(0).Parameters(), before);
  EXPECT_EQ(Step(1, [](uint32_t) { return 1.0F; })[1].skipped, 0);
}

TEST_F(StepTest, AStepThatJumpsIsRefusedAndTheNextOneWorks) {
  Attach(1);
  worker(0).Submit(3, 1.0F);
  worker(0).Start(3);
  const Failure failure = FailureOf([&] { worker(0).Wait(3); });
  EXPECT_EQ(failure.status, DMUON_STEP_OUT_OF_ORDER);
  EXPECT_THAT(failure.message, HasSubstr("3"));
  EXPECT_EQ(worker(0).Run(1, 1.0F).step, 1u);
}

TEST_F(StepTest, ARepeatedStepOnlyDeliversAgain) {
  Attach(1);
  worker(0).Run(1, 1.0F);
  const std::vector<float> after = worker(0).Parameters();
  std::ranges::fill(worker(0).params(0), 77.0F);
  const dmuon_step_result again = worker(0).Run(1, 5.0F);
  EXPECT_EQ(again.replayed, 1);
  EXPECT_EQ(worker(0).Parameters(), after);
}

TEST_F(StepTest, DifferentHyperParametersAreRefusedOnEveryRank) {
  Attach(2);
  OnAllRanks(2, [&](uint32_t rank) {
    worker(rank).Submit(1, 1.0F);
    const double lr = rank == 0 ? 0.1 : 0.2;
    worker(rank).client().step(1, {{lr, 0, 0.9, 0}, {lr, 0, 0.9, 0.95}});
    EXPECT_EQ(FailureOf([&] { worker(rank).Wait(1); }).status, DMUON_SPEC_MISMATCH);
  });
  EXPECT_EQ(Step(1, [](uint32_t) { return 1.0F; })[0].skipped, 0);
}

TEST_F(StepTest, FactorsOnRowsActOnceWithTheNextStep) {
  Attach(1);
  worker(0).client().multiply_rows(1, 1, 2, {0.5});
  worker(0).Run(1, 1.0F);
  constexpr auto kMoved = 1.0F - static_cast<float>(kRate);
  EXPECT_THAT(worker(0).params(1), Pointwise(FloatEq(), {kMoved, 0.5F * kMoved, 0.5F * kMoved, kMoved}));
  worker(0).Run(1, 1.0F);  // a replay
  EXPECT_THAT(worker(0).params(1), Pointwise(FloatEq(), {kMoved, 0.5F * kMoved, 0.5F * kMoved, kMoved}));
  worker(0).Run(2, 0.0F);
  const std::span<float> after = worker(0).params(1);
  EXPECT_FLOAT_EQ(after[0] - after[1], 0.5F * kMoved);
  EXPECT_THAT(FailureOf([&] { worker(0).client().multiply_rows(2, 0, 1, {0.5}); }).message, HasSubstr("tensor 2"));
}

TEST_F(StepTest, RefusedFactorsAreForgottenAndNothingChanges) {
  Attach(1);
  worker(0).client().multiply_rows(0, 3, 2, {0.5});
  const std::vector<float> before = worker(0).Parameters();
  worker(0).Submit(1, 1.0F);
  worker(0).Start(1);
  const Failure failure = FailureOf([&] { worker(0).Wait(1); });
  EXPECT_EQ(failure.status, DMUON_INVALID_ARGUMENT);
  EXPECT_THAT(failure.message, HasSubstr("tensor 'matrix': 1 times 2 rows from row 3 on, of 4"));
  EXPECT_EQ(worker(0).Parameters(), before);
  EXPECT_EQ(worker(0).Run(1, 1.0F).replayed, 0);
}

TEST_F(StepTest, AWaitThatTimesOutGoesOnWhenTheOtherRankArrives) {
  Attach(2);
  worker(0).Submit(1, 1.0F);
  worker(0).Start(1);
  EXPECT_EQ(FailureOf([&] { worker(0).client().wait(1, 0); }).status, DMUON_DEADLINE_EXCEEDED);
  worker(1).Submit(1, 1.0F);
  worker(1).Start(1);
  EXPECT_EQ(worker(0).Wait(1).skipped, 0);
  EXPECT_EQ(worker(1).Wait(1).skipped, 0);
}

TEST_F(StepTest, TwoJobsOnOneDaemonDoNotMeet) {
  Attach(1);
  Worker other(daemon_->address(), Job() + ".other", 0, 1);
  other.AddTensors();
  other.Join(9.0F);
  worker(0).Run(1, 1.0F);
  EXPECT_THAT(other.Parameters(), Each(9.0F));
  EXPECT_EQ(other.Run(1, 1.0F).newton_schulz_calls, 1u);
}

}  // namespace
}  // namespace dmuon::client
