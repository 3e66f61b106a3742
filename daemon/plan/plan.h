// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// From a job's registrations to its plan. Pure: equal inputs give equal plans, to the bit, in
// whatever order the workers arrived.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/plan/cover.h"
#include "daemon/plan/timings.h"
#include "dmuon/v1/plan.pb.h"
#include "dmuon/v1/tensor.pb.h"
#include "wire/grpc_status.h"

namespace dmuon::plan {

// A node that may own units.
struct NodeSlots {
  std::string node_id;
  uint32_t slots = 0;
  std::vector<uint32_t> ranks = {};  // whose workers are attached to it
  uint64_t memory_bytes = 0;         // for their arenas and its slots' state; 0: not known
  bool drained = false;              // it is to own nothing
};

// Proves coverage, then spreads the units over all slots of `nodes`. `shards` has one entry a rank,
// in rank order; `nodes` are sorted by id. Only nodes that are not drained own units. `reason` says in words why the plan is made. Methods and prices are
// from `timings` when these know all units, and by operation counts otherwise.
//   INVALID_ARGUMENT/INVALID_FIELD  a rank is attached to no node (with one node, all are attached to it). A node may have no rank
//   INVALID_ARGUMENT/INVALID_FIELD  replication, and one node only
//   INVALID_ARGUMENT/COVERAGE      the workers' boxes do not cover the tensors
//   FAILED_PRECONDITION/NOT_READY  there is no slot
//   RESOURCE_EXHAUSTED/LIMIT       the plan needs more than `max_bytes`, one message by default
absl::StatusOr<v1::Plan> MakePlan(const v1::JobSpec& job, ShardsByRank shards,
                                  std::span<const NodeSlots> nodes, uint64_t generation,
                                  absl::string_view reason, const Timings& timings = {},
                                  size_t max_bytes = wire::kMaxMessageBytes);

// The plan that takes the place of `former`: the same units at the same prices by the same methods, for the same workers,
// on the slots of `nodes`, which are former's nodes in its order. As few units move as ownership.h finds. Errors as of
// MakePlan.
absl::StatusOr<v1::Plan> MakeSuccessor(const v1::JobSpec& job, ShardsByRank shards, const v1::Plan& former,
                                       std::span<const NodeSlots> nodes, uint64_t generation, absl::string_view reason,
                                       size_t max_bytes = wire::kMaxMessageBytes);

// Whether `plan` is `former` with other nodes in some places, or with nodes at its end that are new or no more and have
// neither workers nor units, so that whoever kept its own place has all that it needs.
bool OnlyNodesDiffer(const v1::Plan& former, const v1::Plan& plan);

// `former` under another number, over its first `places` nodes, of which the others have no workers and own nothing, and then
// over `more`, which are to own nothing yet: they count as drained until a successor of this plan gives them units.
v1::Plan WithNodes(const v1::JobSpec& job, const v1::Plan& former, size_t places, std::span<const NodeSlots> more,
                   uint64_t generation, absl::string_view reason);

// Units that have another owner in `successor`.
uint64_t MovedUnits(const v1::Plan& former, const v1::Plan& successor);

// By node: how many units it owns.
std::vector<uint64_t> UnitsByNode(const v1::Plan& plan);
// Whether a node has none of those that there are.
bool OwnsNothing(const v1::Plan& plan, size_t node);
// Whether a worker is attached to the node. One without owns units for the others (`dmuond --owns all`).
bool HasWorkers(const v1::Plan& plan, size_t node);
// Whether there are nodes without.
bool HasFollowers(const v1::Plan& plan);

// Whether owners keep copies of their state on other nodes.
bool IsReplicated(const v1::JobSpec& job);

// How much more memory that takes: of its own state a node has packed two, the last and the one before, and of
// its ward's it has received two.
inline constexpr int64_t kCopies = 4;

// What a node checks before it adopts a plan from another process: that indices are in range and
// boxes inside what they are a piece of. INVALID_ARGUMENT/INVALID_FIELD names the first that is not.
absl::Status ValidatePlan(const v1::JobSpec& job, const v1::Plan& plan, const v1::Routes& routes);

// And before it adopts one as the successor of `former`: that only owners differ, or only nodes. INVALID_ARGUMENT/INVALID_FIELD.
absl::Status ValidateSuccessor(const v1::Plan& former, const v1::Plan& successor);

// SHA-256, in hex, over the job, the plan's nodes, slots, ranks and units; neither generations nor reason.
// The job's and the plan's deterministic protobuf serialisations, each after its length as eight
// little-endian bytes.
std::string Digest(const v1::JobSpec& job, const v1::Plan& plan);

}  // namespace dmuon::plan
