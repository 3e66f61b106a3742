// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Steps of whole jobs on one node: what must be computed, and what must never be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/backend.h"
#include "tests/daemon/node/test_node.h"
#include "wire/error.h"

namespace dmuon::node {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

EngineOptions Slots(uint32_t slots) {
  EngineOptions options;
  options.slots = slots;
  return options;
}

// The job most tests train: a wide, a tall and a small matrix, and two element-wise tensors.
TestJob MixedJob(uint32_t world_size, const std::string& id = "mixed") {
  TestJob job(id, world_size);
  job.Add("wide", {6, 20});
  job.Add("tall", {17, 5});
  job.Add("small", {2, 2});  // fewer rows than ranks, when there are three
  job.Add("embed", {11, 3}, 1);
  job.Add("bias", {7}, 1);
  return job;
}

// All tensors after `steps` steps.
std::vector<std::vector<float>> Train(TestNode& node, const TestJob& job, uint64_t steps) {
  TestRun run(&node.engine(), job);
  EXPECT_TRUE(run.Start().ok());
  for (uint64_t step = 1; step <= steps; ++step) {
    for (const auto& answer : run.Step(step)) {
      EXPECT_TRUE(answer.ok()) << answer.status();
      EXPECT_FALSE(answer.ok() && answer->skipped());
    }
  }
  std::vector<std::vector<float>> tensors;
  for (int i = 0; i < job.spec.tensors_size(); ++i) tensors.push_back(run.Gathered(i));
  for (size_t rank = 0; rank < run.size(); ++rank) EXPECT_TRUE(run[rank].Close().ok());
  return tensors;
}

std::vector<std::vector<float>> Train(const TestJob& job, uint64_t steps, uint32_t slots = 2,
                                      const std::string& backend = "cpu") {
  TestNode node(Slots(slots), backend);
  return Train(node, job, steps);
}

// Relative Frobenius distance, the largest over all tensors.
double Distance(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  double worst = 0.0;
  for (size_t t = 0; t < a.size(); ++t) {
    double difference = 0.0;
    double norm = 0.0;
    for (size_t i = 0; i < a[t].size(); ++i) {
      difference += std::pow(static_cast<double>(a[t][i]) - b[t][i], 2);
      norm += std::pow(static_cast<double>(b[t][i]), 2);
    }
    worst = std::max(worst, std::sqrt(difference / norm));
  }
  return worst;
}

// fp32 Newton-Schulz against double: rounding of 1e-7 a product, amplified by at most a few hundred
// where singular values are small (Jordan's slope at zero is 485).
constexpr double kFloatVersusDouble = 1e-4;

TEST(StepTest, TheCpuBackendFollowsTheReferenceBackend) {
  EXPECT_LT(Distance(Train(MixedJob(1), 10), Train(MixedJob(1), 10, 1, "reference")),
            kFloatVersusDouble);
}

// cases rows 1, 2, 4, 11: uneven and empty row shards. Gradients are reduced, so nothing is summed
// and equality is exact.
TEST(StepTest, AnyNumberOfWorkersGivesTheSameBits) {
  const auto alone = Train(MixedJob(1), 5);
  for (const uint32_t world_size : {2U, 3U, 8U}) {
    EXPECT_EQ(Train(MixedJob(world_size), 5), alone) << world_size << " workers";
  }
}

TEST(StepTest, AnyNumberOfSlotsGivesTheSameBits) {
  EXPECT_EQ(Train(MixedJob(2), 5, 1), Train(MixedJob(2), 5, 3));
}

TEST(StepTest, TheSameRunGivesTheSameBits) {
  EXPECT_EQ(Train(MixedJob(3), 8), Train(MixedJob(3), 8));
}

// cases row 68: 72 matrices on 7 workers are all updated once.
TEST(StepTest, NewtonSchulzRunsOncePerMatrixAndStep) {
  TestNode node(Slots(2));
  TestJob job("count", 7);
  for (int i = 0; i < 72; ++i) job.Add(absl::StrCat("w", i), {4, 3});
  job.Add("bias", {5}, 1);
  TestRun run(&node.engine(), job);
  ASSERT_TRUE(run.Start().ok());
  for (uint64_t step = 1; step <= 3; ++step) {
    for (const auto& answer : run.Step(step)) {
      ASSERT_TRUE(answer.ok());
      EXPECT_EQ(answer->newton_schulz_calls(), 72 * step);
    }
  }
}

// cases row 22: every worker hands in its own whole gradient; the mean counts.
TEST(StepTest, GradientsThatAreNotReducedAreAveraged) {
  const auto half = [](size_t tensor, int64_t index, uint64_t step) {
    return 0.5F * TestRun::Gradient(tensor, index, step);
  };
  const auto rest = [](size_t tensor, int64_t index, uint64_t step) {
    return 1.5F * TestRun::Gradient(tensor, index, step);
  };
  TestNode node(Slots(2));
  const TestJob alone = MixedJob(1, "alone");
  const auto expected = Train(node, alone, 1);
  const TestJob job = MixedJob(2, "local");
  TestRun run(&node.engine(), job);
  std::vector<wire::ShardBoxes> whole;
  for (const v1::Tensor& tensor : job.spec.tensors()) {
    whole.push_back({Whole(tensor), Whole(tensor), false});
  }
  ASSERT_TRUE(run.Start({whole, whole}).ok());
  run[0].FillAndSubmit(1, half);
  run[1].FillAndSubmit(1, rest);
  for (const auto& answer : run.StepAsSubmitted(1)) ASSERT_TRUE(answer.ok()) << answer.status();
  for (size_t t = 0; t < expected.size(); ++t) {
    const std::vector<float> first(run[0].param(t).begin(), run[0].param(t).end());
    const std::vector<float> second(run[1].param(t).begin(), run[1].param(t).end());
    EXPECT_EQ(first, second);
    EXPECT_EQ(first, expected[t]) << "0.5 g + 1.5 g halves to g without rounding";
  }
}

// Columns on one axis, rows on the other: the boxes of TP x FSDP.
TEST(StepTest, TwoDimensionalBoxesGiveTheSameBits) {
  TestJob job("boxes", 4);
  job.Add("w", {6, 8});
  TestJob alone("alone", 1);
  alone.Add("w", {6, 8});
  TestNode node(Slots(1));
  std::vector<std::vector<wire::ShardBoxes>> shards;
  for (int64_t rank = 0; rank < 4; ++rank) {
    wire::Box box = Whole(job.spec.tensors(0));
    box.offset[0] = (rank / 2) * 3;
    box.offset[1] = (rank % 2) * 4;
    box.length[0] = 3;
    box.length[1] = 4;
    shards.push_back({{box, box, true}});
  }
  TestRun run(&node.engine(), job);
  ASSERT_TRUE(run.Start(shards).ok());
  for (const auto& answer : run.Step(1)) ASSERT_TRUE(answer.ok()) << answer.status();
  const auto expected = Train(node, alone, 1);
  for (size_t rank = 0; rank < 4; ++rank) {
    const wire::Box& box = shards[rank][0].param;
    wire::ForEachRun(Whole(job.spec.tensors(0)), box, [&](const wire::Run& r) {
      for (int64_t i = 0; i < r.count; ++i) {
        EXPECT_EQ(run[rank].param(0)[static_cast<size_t>(r.b + i)],
                  expected[0][static_cast<size_t>(r.a + i)]);
      }
    });
  }
}

// cases row 70
TEST(StepTest, TheOrderInWhichWorkersJoinDoesNotMatter) {
  TestNode node(Slots(2));
  const TestJob job = MixedJob(4, "permuted");
  TestRun run(&node.engine(), job);
  for (const size_t rank : {3U, 1U, 0U, 2U}) {
    ASSERT_TRUE(run[rank].Open().ok());
    run[rank].StartRegister(run[rank].DefaultShards());
  }
  for (const size_t rank : {3U, 1U, 0U, 2U}) {
    ASSERT_TRUE(run[rank].FinishRegister().ok());
    run[rank].FillParams(TestRun::Param);
    run[rank].StartBegin();
  }
  for (size_t rank = 0; rank < 4; ++rank) ASSERT_TRUE(run[rank].FinishBegin().ok());
  for (const auto& answer : run.Step(1)) ASSERT_TRUE(answer.ok());
  const auto expected = Train(MixedJob(1), 1);
  for (size_t t = 0; t < expected.size(); ++t) EXPECT_EQ(run.Gathered(t), expected[t]);
}

TEST(StepTest, Bfloat16ParametersAreTheMasterRounded) {
  TestNode node(Slots(1));
  TestJob job("bf16", 1);
  job.Add("w", {8, 8})->set_param_dtype(v1::DTYPE_BFLOAT16);
  TestJob twin("fp32", 1);
  twin.Add("w", {8, 8});
  const auto zero = [](size_t, int64_t) { return 0.0F; };
  TestRun run(&node.engine(), job);
  TestRun other(&node.engine(), twin);
  ASSERT_TRUE(run.Start().ok());  // bf16 zeros
  ASSERT_TRUE(other[0].Open().ok());
  other[0].StartRegister(other[0].DefaultShards());
  ASSERT_TRUE(other[0].FinishRegister().ok());
  other[0].FillParams(zero);
  other[0].StartBegin();
  ASSERT_TRUE(other[0].FinishBegin().ok());
  for (uint64_t step = 1; step <= 20; ++step) {
    ASSERT_TRUE(run.Step(step)[0].ok());
    ASSERT_TRUE(other.Step(step)[0].ok());
  }
  std::vector<uint16_t> rounded(64);
  kernels::MakeBackend("reference").value()->CastFromFloat(
      other[0].param(0), kernels::DType::kBFloat16, rounded.data());
  EXPECT_TRUE(std::equal(rounded.begin(), rounded.end(), run[0].param_bf16(0).begin()));
}

TEST(StepTest, RowBlocksAreOrthogonalizedEachOnItsOwn) {
  TestNode node(Slots(2));
  TestJob fused("fused", 3);
  v1::Tensor* qkv = fused.Add("qkv", {12, 5});
  for (const int64_t rows : {6, 4, 2}) qkv->add_row_blocks(rows);
  TestRun run(&node.engine(), fused);
  ASSERT_TRUE(run.Start().ok());
  for (const auto& answer : run.Step(1)) {
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->newton_schulz_calls(), 3U);
  }
  // The middle block, alone in a job of its own, with its part of gradient and parameter.
  TestJob middle("middle", 1);
  middle.Add("k", {4, 5});
  TestRun alone(&node.engine(), middle);
  ASSERT_TRUE(alone[0].Open().ok());
  alone[0].StartRegister(alone[0].DefaultShards());
  ASSERT_TRUE(alone[0].FinishRegister().ok());
  alone[0].FillParams([](size_t t, int64_t i) { return TestRun::Param(t, i + 30); });
  alone[0].StartBegin();
  ASSERT_TRUE(alone[0].FinishBegin().ok());
  alone[0].FillAndSubmit(
      1, [](size_t t, int64_t i, uint64_t step) { return TestRun::Gradient(t, i + 30, step); });
  ASSERT_TRUE(alone.StepAsSubmitted(1)[0].ok());
  const std::vector<float> whole = run.Gathered(0);
  EXPECT_EQ(std::vector<float>(whole.begin() + 30, whole.begin() + 50),
            std::vector<float>(alone[0].param(0).begin(), alone[0].param(0).end()));
}

// cases row 43: gradients 3 and 4 on the halves.
TEST(StepTest, TheNormIsOfTheWholeGradient) {
  TestNode node(Slots(2));
  TestJob job("norm", 2);
  job.spec.set_max_grad_norm(1.0);
  job.Add("w", {2, 1}, 1);
  TestRun run(&node.engine(), job);
  ASSERT_TRUE(run.Start().ok());
  for (size_t rank = 0; rank < 2; ++rank) {
    run[rank].grad(0)[0] = rank == 0 ? 3.0F : 4.0F;
    run[rank].Submit(0, 1);
  }
  for (const auto& answer : run.StepAsSubmitted(1)) {
    ASSERT_TRUE(answer.ok());
    EXPECT_DOUBLE_EQ(answer->grad_norm(), 5.0);
    EXPECT_NEAR(answer->clip(), 0.2, 1e-6);
  }
}

// cases row 41: one gradient of 1e10 makes the clip factor tiny; directions must not drown in an eps.
TEST(StepTest, AHugeNeighbourDoesNotFreezeAMatrix) {
  const auto train = [](double max_norm) {
    TestNode node(Slots(1));
    TestJob job("clip", 1);
    job.spec.set_max_grad_norm(max_norm);
    job.Add("tiny", {4, 4});
    job.Add("huge", {4, 4});
    TestRun run(&node.engine(), job);
    EXPECT_TRUE(run.Start().ok());
    run[0].FillAndSubmit(1, [](size_t tensor, int64_t index, uint64_t step) {
      return TestRun::Gradient(0, index, step) * (tensor == 0 ? 1e-2F : 1e10F);
    });
    EXPECT_TRUE(run.StepAsSubmitted(1)[0].ok());
    return run.Gathered(0);
  };
  const std::vector<float> clipped = train(1.0);
  const std::vector<float> free = train(0.0);
  for (size_t i = 0; i < clipped.size(); ++i) EXPECT_NEAR(clipped[i], free[i], 1e-5);
}

// cases row 66
TEST(StepTest, NotANumberOnOneRankSkipsTheStepEverywhere) {
  TestNode node(Slots(2));
  const TestJob job = MixedJob(2, "nan");
  TestRun run(&node.engine(), job);
  ASSERT_TRUE(run.Start().ok());
  for (const auto& answer : run.Step(1)) ASSERT_TRUE(answer.ok());
  const std::vector<float> before = run.Gathered(0);
  for (size_t rank = 0; rank < 2; ++rank) run[rank].FillAndSubmit(2, TestRun::Gradient);
  run[1].grad(3)[2] = std::numeric_limits<float>::quiet_NaN();
  for (const auto& answer : run.StepAsSubmitted(2)) {
    ASSERT_TRUE(answer.ok());
    EXPECT_TRUE(answer->skipped());
    EXPECT_THAT(answer->skip_reason(), HasSubstr("tensor 'embed'"));
    EXPECT_TRUE(std::isnan(answer->grad_norm()));
  }
  EXPECT_EQ(run.Gathered(0), before);
  // The next step goes on as if step 2 had not been: momentum and counters were not touched.
  for (size_t rank = 0; rank < 2; ++rank) {
    run[rank].FillAndSubmit(3, [](size_t t, int64_t i, uint64_t) { return TestRun::Gradient(t, i, 2); });
  }
  for (const auto& answer : run.StepAsSubmitted(3)) ASSERT_TRUE(answer.ok());
  const auto expected = Train(MixedJob(2, "clean"), 2);
  for (size_t t = 0; t < expected.size(); ++t) EXPECT_EQ(run.Gathered(t), expected[t]);
}

TEST(StepTest, AGradientThatWouldOverflowTheStateIsSkipped) {
  TestNode node(Slots(1));
  TestJob job("overflow", 1);
  job.Add("b", {2}, 1);
  TestRun run(&node.engine(), job);
  ASSERT_TRUE(run.Start().ok());
  run[0].grad(0)[0] = 1e30F;  // its square is no float
  run[0].grad(0)[1] = 1.0F;
  run[0].Submit(0, 1);
  const auto answer = run.StepAsSubmitted(1)[0];
  ASSERT_TRUE(answer.ok());
  EXPECT_TRUE(answer->skipped());
  EXPECT_THAT(answer->skip_reason(), HasSubstr("would overflow"));
}

// cases row 64
TEST(StepTest, AMissingGradientIsAnErrorThatNamesTensorAndRankAndChangesNothing) {
  TestNode node(Slots(2));
  const TestJob job = MixedJob(2, "missing");
  TestRun run(&node.engine(), job);
  ASSERT_TRUE(run.Start().ok());
  const std::vector<float> before = run.Gathered(0);
  for (size_t rank = 0; rank < 2; ++rank) run[rank].FillAndSubmit(1, TestRun::Gradient);
  run[1].Submit(1, 1, wire::WordState::kMissing);
  for (const auto& answer : run.StepAsSubmitted(1)) {
    EXPECT_EQ(wire::ReasonOf(answer.status()), v1::ERROR_REASON_MISSING_GRADIENT);
    EXPECT_THAT(std::string(answer.status().message()),
                HasSubstr("tensor 'tall' from rank 1"));
  }
  EXPECT_EQ(run.Gathered(0), before);
  for (const auto& answer : run.Step(1)) EXPECT_TRUE(answer.ok()) << answer.status();
  const auto expected = Train(MixedJob(2, "clean"), 1);
  for (size_t t = 0; t < expected.size(); ++t) EXPECT_EQ(run.Gathered(t), expected[t]);
}

TEST(StepTest, ATensorThatWasNotMarkedAtAllIsMissing) {
  TestNode node(Slots(1));
  const TestJob job = MixedJob(1, "unmarked");
  TestRun run(&node.engine(), job);
  ASSERT_TRUE(run.Start().ok());
  for (const auto& answer : run.Step(1)) ASSERT_TRUE(answer.ok());
  // Step 2 without a submit: the words still say step 1.
  EXPECT_EQ(wire::ReasonOf(run.StepAsSubmitted(2)[0].status()),
            v1::ERROR_REASON_MISSING_GRADIENT);
}

// cases row 63
TEST(StepTest, SkipPolicyLeavesTheTensorAloneAndUpdatesTheRest) {
  TestNode node(Slots(2));
  TestJob job = MixedJob(2, "skip");
  job.spec.set_missing_gradient(v1::MISSING_GRADIENT_SKIP);
  TestRun run(&node.engine(), job);
  ASSERT_TRUE(run.Start().ok());
  const std::vector<float> tall = run.Gathered(1);
  for (size_t rank = 0; rank < 2; ++rank) run[rank].FillAndSubmit(1, TestRun::Gradient);
  run[1].Submit(1, 1, wire::WordState::kMissing);
  for (const auto& answer : run.StepAsSubmitted(1)) {
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->newton_schulz_calls(), 2U);
  }
  EXPECT_EQ(run.Gathered(1), tall);
  EXPECT_EQ(run.Gathered(0), Train(MixedJob(2, "clean"), 1)[0]);
}

TEST(StepTest, ZeroPolicyCountsTheMissingPartAsZeros) {
  TestNode node(Slots(2));
  TestJob job = MixedJob(2, "zero");
  job.spec.set_missing_gradient(v1::MISSING_GRADIENT_ZERO);
  TestRun run(&node.engine(), job);
  TestJob explicit_job = MixedJob(2, "explicit");
  TestRun explicit_run(&node.engine(), explicit_job);
  ASSERT_TRUE(run.Start().ok());
  ASSERT_TRUE(explicit_run.Start().ok());
  for (size_t rank = 0; rank < 2; ++rank) {
    run[rank].FillAndSubmit(1, TestRun::Gradient);
    explicit_run[rank].FillAndSubmit(1, TestRun::Gradient);
  }
  run[1].Submit(0, 1, wire::WordState::kMissing);
  for (float& element : explicit_run[1].grad(0)) element = 0.0F;
  for (const auto& answer : run.StepAsSubmitted(1)) ASSERT_TRUE(answer.ok());
  for (const auto& answer : explicit_run.StepAsSubmitted(1)) ASSERT_TRUE(answer.ok());
  EXPECT_EQ(run.Gathered(0), explicit_run.Gathered(0));
}

// cases row 40
TEST(StepTest, AZeroGradientOnlyDecays) {
  TestNode node(Slots(1));
  TestJob job("zeros", 1);
  job.Add("w", {64, 32});
  TestRun run(&node.engine(), job);
  ASSERT_TRUE(run.Start().ok());
  const std::vector<float> before = run.Gathered(0);
  run[0].FillAndSubmit(1, [](size_t, int64_t, uint64_t) { return 0.0F; });
  ASSERT_TRUE(run.StepAsSubmitted(1)[0].ok());
  const std::vector<float> after = run.Gathered(0);
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_FLOAT_EQ(after[i], before[i] * static_cast<float>(1.0 - 0.1 * 0.1));
  }
}

// cases rows 61 and 78
TEST(StepTest, DegenerateShapesAreUpdatedAndFinite) {
  TestNode node(Slots(2));
  TestJob job("degenerate", 2);
  job.Add("row", {1, 64});
  job.Add("column", {64, 1});
  job.Add("odd", {63, 63});
  job.Add("none", {0, 4});
  TestRun run(&node.engine(), job);
  ASSERT_TRUE(run.Start().ok());
  for (const auto& answer : run.Step(1)) ASSERT_TRUE(answer.ok()) << answer.status();
  for (size_t t = 0; t < 3; ++t) {
    for (const float element : run.Gathered(t)) ASSERT_TRUE(std::isfinite(element));
  }
}

}  // namespace
}  // namespace dmuon::node
