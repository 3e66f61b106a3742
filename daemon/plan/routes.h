// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What moves between the nodes of a plan in a step: which piece, from where, to where. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/plan/cover.h"
#include "dmuon/v1/plan.pb.h"
#include "dmuon/v1/tensor.pb.h"

namespace dmuon::plan {

// fp32 bytes of the units of one bucket. Smaller buckets let a publication start earlier and cost
// more messages. A unit that is larger than this is a bucket of its own.
inline constexpr int64_t kBucketBytes = int64_t{32} << 20;

// Cuts the plan's units, in their order, into buckets: sets `bucket` of each.
void AssignBuckets(v1::Plan& plan);

// By node of the plan, each list in the order of units, then of boxes, then of nodes. Bytes on the
// wire are the fewest for these owners: a piece that several workers of a node have or want crosses
// once, a gradient that the trainer has reduced crosses at most once. Coverage must be proved.
std::vector<v1::Routes> MakeRoutes(const v1::JobSpec& job, ShardsByRank shards,
                                   const v1::Plan& plan);

// Bytes of one element of a gradient of this transfer on the wire.
size_t GradientElementBytes(const v1::Tensor& tensor, const v1::Transfer& gradient);

}  // namespace dmuon::plan
