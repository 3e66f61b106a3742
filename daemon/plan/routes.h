// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What moves between the nodes of a plan in a step: which piece, from where, to where. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "daemon/plan/cover.h"
#include "daemon/plan/units.h"
#include "dmuon/v1/plan.pb.h"
#include "dmuon/v1/tensor.pb.h"

namespace dmuon::plan {

// fp32 bytes of the units of one bucket: a sixteenth of the model within these bounds. Smaller buckets
// let a publication start earlier and cost more messages. A unit that is larger is a bucket of its own.
inline constexpr int64_t kMinBucketBytes = int64_t{1} << 20;
inline constexpr int64_t kMaxBucketBytes = int64_t{32} << 20;

// Cuts the plan's units, in their order, into buckets: sets `bucket` of each.
void AssignBuckets(v1::Plan& plan);

// By node of the plan, each list in the order of units, then of boxes, then of nodes. Bytes on the
// wire are the fewest for these owners: a piece that several workers of a node have or want crosses
// once, a gradient that the trainer has reduced crosses at most once. Coverage must be proved.
std::vector<v1::Routes> MakeRoutes(ShardsByRank shards, const v1::Plan& plan);

// By node: bytes that a step moves between nodes for this unit when that node owns it.
// `rank_nodes`: the node of each rank.
std::vector<int64_t> WireBytes(const v1::JobSpec& job, ShardsByRank shards,
                               std::span<const uint32_t> rank_nodes, const Unit& unit,
                               size_t nodes);

// What the routes of all nodes move in a step, by link and bucket.
std::vector<v1::LinkLoad> LinkLoads(const v1::JobSpec& job, const v1::Plan& plan,
                                    std::span<const v1::Routes* const> routes);

}  // namespace dmuon::plan
