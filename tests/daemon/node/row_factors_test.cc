// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Factors on rows that a step brings along: after its update, once, wherever the rows live.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/daemon/node/exact_run.h"
#include "tests/daemon/node/test_node.h"
#include "wire/error.h"

namespace dmuon::node {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kWidth = 6;

// Queries of four heads of three rows, and their bias.
TestJob Attention(uint32_t world_size) {
  TestJob job("attention", world_size);
  job.Add("query", {12, kWidth});
  job.Add("other", {5, 7});
  job.Add("bias", {12}, 1);
  return job;
}

v1::RowFactors Factors(uint32_t tensor, const std::vector<double>& factors, int64_t first_row = 0, int64_t rows_each = 3) {
  v1::RowFactors rows;
  rows.set_tensor(tensor);
  rows.set_first_row(first_row);
  rows.set_rows_each(rows_each);
  rows.mutable_factors()->Assign(factors.begin(), factors.end());
  return rows;
}

void SetFactors(TestRun& run, const std::vector<v1::RowFactors>& rows) {
  for (size_t rank = 0; rank < run.size(); ++rank) run[rank].row_factors = rows;
}

// Whole tensors after two steps of a job on one node, of which the second brings `rows`.
std::vector<std::vector<float>> AfterTwoSteps(uint32_t workers, const std::vector<v1::RowFactors>& rows) {
  TestNode node(TwoSlots());
  const TestJob job = Attention(workers);
  TestRun run(&node.engine(), job);
  EXPECT_TRUE(run.Start().ok());
  EXPECT_TRUE(StepExactly(run, 1).ok());
  SetFactors(run, rows);
  EXPECT_TRUE(StepExactly(run, 2).ok());
  return {run.Gathered(0), run.Gathered(1), run.Gathered(2)};
}

TEST(RowFactorsTest, RowsOfAFactorAreMultipliedAfterTheUpdateAndOthersKeepTheirBits) {
  const auto plain = AfterTwoSteps(1, {});
  // Row 2 is in neither stretch, row 11 beyond them.
  const auto scaled = AfterTwoSteps(1, {Factors(0, {0.5, 1.0, 0.25}, 3), Factors(2, {0.5}, 1, 2)});
  for (size_t i = 0; i < plain[0].size(); ++i) {
    const size_t row = i / kWidth;
    const float factor = row >= 3 && row < 6 ? 0.5F : (row >= 9 ? 0.25F : 1.0F);
    EXPECT_EQ(scaled[0][i], factor * plain[0][i]) << i;
  }
  EXPECT_EQ(scaled[1], plain[1]);
  for (size_t i = 0; i < 12; ++i) EXPECT_EQ(scaled[2][i], (i == 1 || i == 2 ? 0.5F : 1.0F) * plain[2][i]) << i;
}

TEST(RowFactorsTest, ShardsAndNodesDoNotChangeABit) {
  const std::vector<v1::RowFactors> rows = {Factors(0, {0.3, 1.0, 0.7, 0.9}), Factors(2, {0.3, 1.0, 0.7, 0.9})};
  const auto alone = AfterTwoSteps(1, rows);
  EXPECT_EQ(AfterTwoSteps(5, rows), alone);  // boxes that end within a head

  TestCluster cluster(2, TwoSlots());
  const TestJob job = Attention(2);
  TestRun run({&cluster.engine(0), &cluster.engine(1)}, job);
  ASSERT_TRUE(run.Start().ok());
  ASSERT_TRUE(StepExactly(run, 1).ok());
  SetFactors(run, rows);
  ASSERT_TRUE(StepExactly(run, 2).ok());
  for (size_t tensor = 0; tensor < 3; ++tensor) EXPECT_EQ(run.Gathered(tensor), alone[tensor]);
}

TEST(RowFactorsTest, AReplayedStepMultipliesNothingAgain) {
  TestNode node(TwoSlots());
  const TestJob job = Attention(2);
  TestRun run(&node.engine(), job);
  ASSERT_TRUE(run.Start().ok());
  SetFactors(run, {Factors(0, {0.5, 0.5, 0.5, 0.5})});
  ASSERT_TRUE(StepExactly(run, 1).ok());
  const std::vector<float> once = run.Gathered(0);
  for (const auto& answer : run.StepAsSubmitted(1)) {
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_TRUE(answer->replayed());
  }
  EXPECT_EQ(run.Gathered(0), once);
}

TEST(RowFactorsTest, WorkersThatDifferAreRefusedAndNothingChanges) {
  TestCluster cluster(2, TwoSlots());
  TestNode node(TwoSlots());
  const TestJob job = Attention(2);
  for (const bool one_node : {true, false}) {
    Engine& second = one_node ? node.engine() : cluster.engine(1);
    TestRun run({one_node ? &node.engine() : &cluster.engine(0), &second}, job);
    ASSERT_TRUE(run.Start().ok());
    const std::vector<float> before = run.Gathered(0);
    run[1].row_factors = {Factors(0, {0.5})};
    const absl::Status status = StepExactly(run, 1);
    EXPECT_EQ(wire::ReasonOf(status), v1::ERROR_REASON_HYPER_MISMATCH) << status;
    EXPECT_EQ(run.Gathered(0), before);
    run[0].row_factors = run[1].row_factors;
    EXPECT_TRUE(StepExactly(run, 1).ok());
  }
}

TEST(RowFactorsTest, WhatIsOutOfItsBoundsIsRefusedByName) {
  TestNode node(TwoSlots());
  const TestJob job = Attention(1);
  TestRun run(&node.engine(), job);
  ASSERT_TRUE(run.Start().ok());
  const struct {
    v1::RowFactors rows;
    const char* complaint;
  } cases[] = {
      {Factors(3, {0.5}), "row factors of tensor 3, of 3"},
      {Factors(0, {0.5}, -1), "tensor 'query': 1 times 3 rows from row -1 on, of 12"},
      {Factors(0, {0.5, 0.5}, 7), "2 times 3 rows from row 7 on, of 12"},
      {Factors(0, {0.5}, 0, 0), "1 times 0 rows"},
      {Factors(0, {0.5, 0.0}), "tensor 'query': factor 1 is 0, must be in (0, 1]"},
      {Factors(0, {1.5}), "factor 0 is 1.5"},
      {Factors(0, {std::nan("")}), "factor 0 is nan"},
  };
  const std::vector<float> before = run.Gathered(0);
  for (const auto& [rows, complaint] : cases) {
    SetFactors(run, {rows});
    const absl::Status status = StepExactly(run, 1);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(complaint));
    EXPECT_EQ(run.Gathered(0), before);
  }
}

}  // namespace
}  // namespace dmuon::node
