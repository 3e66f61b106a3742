// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Steps whose gradients are multiples of 1/64: sums are exact in any order, so that one job gives the same
// bits on any number of nodes, workers and slots.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tests/daemon/node/test_node.h"
#include "wire/validate.h"

namespace dmuon::node {

using Shards = std::vector<std::vector<wire::ShardBoxes>>;  // by rank

float Exact(size_t tensor, int64_t index, uint64_t step);

// FSDP over `parts` workers, in as many replicas as there are.
Shards Rows(const TestJob& job, uint32_t parts, bool reduced);

// The parameters of one worker, one tensor after the other; of all workers.
std::vector<float> ParametersOf(TestWorker& worker, const TestJob& job);
std::vector<std::vector<float>> ParametersOf(TestRun& run, const TestJob& job);

// One step of all workers; the first error.
absl::Status StepExactly(TestRun& run, uint64_t step);
// Repeats a step until the nodes have found together again.
absl::Status StepUntilItWorks(TestRun& run, uint64_t step);

// Two slots a node.
EngineOptions TwoSlots(bool overlap = true);
// For what is found out by waiting in vain.
EngineOptions Impatient(absl::Duration step_timeout);

// The parameters of each rank after `steps` on one node with the serial pipeline.
std::vector<std::vector<float>> Undisturbed(const TestJob& job, const Shards& shards, uint64_t steps);

}  // namespace dmuon::node
