// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The proof, at registration, that the workers' boxes cover every tensor of a job exactly.
//
//   parameters   every element is wanted by someone; boxes may overlap as they like
//   gradients    every element is submitted by someone; two workers' boxes are identical (replicas)
//                or disjoint. `reduced` is the same on all workers that submit a part of the tensor
//
// Empty boxes (tail shards) count for nothing. The global shape is the specification's: it is never
// guessed from what the workers hold, so shards that add up to another shape are refused.
#pragma once

#include <span>
#include <vector>

#include "absl/status/status.h"
#include "dmuon/v1/tensor.pb.h"
#include "wire/validate.h"

namespace dmuon::plan {

// One entry a rank, in the order of ranks; each has one entry a tensor (wire::ParseShards).
using ShardsByRank = std::span<const std::vector<wire::ShardBoxes>>;

// INVALID_ARGUMENT/COVERAGE naming tensor, range and ranks of the first fault in tensor order;
// RESOURCE_EXHAUSTED/LIMIT when the boxes of a tensor are too irregular to decide.
absl::Status ProveCoverage(const v1::JobSpec& job, ShardsByRank shards);

}  // namespace dmuon::plan
