// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "tests/daemon/node/exact_run.h"

#include <gtest/gtest.h>

#include <cmath>

#include "wire/error.h"

namespace dmuon::node {

float Exact(size_t tensor, int64_t index, uint64_t step) {
  return std::round(64.0F * TestRun::Gradient(tensor, index, step)) / 64.0F;
}

Shards Rows(const TestJob& job, uint32_t parts, bool reduced) {
  Shards shards;
  for (uint32_t rank = 0; rank < job.spec.world_size(); ++rank) {
    std::vector<wire::ShardBoxes>& mine = shards.emplace_back();
    for (const v1::Tensor& tensor : job.spec.tensors()) {
      const wire::Box box = RowShard(tensor, rank % parts, parts);
      mine.push_back({box, box, reduced});
    }
  }
  return shards;
}

std::vector<float> ParametersOf(TestWorker& worker, const TestJob& job) {
  std::vector<float> all;
  for (size_t t = 0; t < static_cast<size_t>(job.spec.tensors_size()); ++t) {
    const std::span<float> piece = worker.param(t);
    all.insert(all.end(), piece.begin(), piece.end());
  }
  return all;
}

std::vector<std::vector<float>> ParametersOf(TestRun& run, const TestJob& job) {
  std::vector<std::vector<float>> all;
  for (size_t rank = 0; rank < run.size(); ++rank) all.push_back(ParametersOf(run[rank], job));
  return all;
}

absl::Status StepExactly(TestRun& run, uint64_t step) {
  for (size_t rank = 0; rank < run.size(); ++rank) run[rank].FillAndSubmit(step, Exact);
  absl::Status first;
  for (const auto& answer : run.StepAsSubmitted(step)) first.Update(answer.status());
  return first;
}

EngineOptions TwoSlots(bool overlap) {
  EngineOptions options;
  options.slots = 2;
  options.overlap = overlap;
  return options;
}

EngineOptions Impatient(absl::Duration step_timeout) {
  EngineOptions options = TwoSlots();
  options.step_timeout = step_timeout;
  return options;
}

absl::Status StepUntilItWorks(TestRun& run, uint64_t step) {
  absl::Status status;
  for (int i = 0; i < 20; ++i) {
    status = StepExactly(run, step);
    const v1::ErrorReason reason = wire::ReasonOf(status);
    if (reason != v1::ERROR_REASON_PEER_LOST && reason != v1::ERROR_REASON_WORKER_MISSING) return status;
  }
  return status;
}

std::vector<std::vector<float>> Undisturbed(const TestJob& job, const Shards& shards, uint64_t steps) {
  TestNode alone(TwoSlots(/*overlap=*/false));
  TestRun run(&alone.engine(), job);
  EXPECT_TRUE(run.Start(shards).ok());
  for (uint64_t step = 1; step <= steps; ++step) EXPECT_TRUE(StepExactly(run, step).ok());
  return ParametersOf(run, job);
}

}  // namespace dmuon::node
