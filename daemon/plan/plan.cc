// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include "daemon/plan/plan.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <array>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "daemon/base/sha256.h"
#include "daemon/plan/cost.h"
#include "daemon/plan/ownership.h"
#include "daemon/plan/units.h"
#include "wire/error.h"

namespace dmuon::plan {
namespace {

std::string Serialize(const google::protobuf::Message& message) {
  std::string bytes;
  google::protobuf::io::StringOutputStream sink(&bytes);
  google::protobuf::io::CodedOutputStream coded(&sink);
  coded.SetSerializationDeterministic(true);
  message.SerializeToCodedStream(&coded);
  coded.Trim();
  return bytes;
}

// `canonical` has no generation, digest or reason.
std::string HashOf(const v1::JobSpec& job, const v1::Plan& canonical) {
  const std::array parts = {Serialize(job), Serialize(canonical)};
  return Sha256Hex(parts);
}

std::vector<v1::Slot> SlotsOf(std::span<const NodeSlots> nodes) {
  std::vector<v1::Slot> slots;
  for (size_t n = 0; n < nodes.size(); ++n) {
    for (uint32_t s = 0; s < nodes[n].slots; ++s) {
      v1::Slot& slot = slots.emplace_back();
      slot.set_node(static_cast<uint32_t>(n));
      slot.set_slot(s);
    }
  }
  return slots;
}

std::vector<double> Prices(const v1::JobSpec& job, std::span<const Unit> units) {
  std::vector<double> prices;
  prices.reserve(units.size());
  for (const Unit& unit : units) {
    const v1::Tensor& tensor = job.tensors(static_cast<int>(unit.tensor));
    prices.push_back(UnitSeconds(job.groups(static_cast<int>(tensor.group())), unit.box));
  }
  return prices;
}

void AddUnits(std::span<const Unit> units, std::span<const double> prices,
              std::span<const v1::Slot> slots, const Assignment& assignment, v1::Plan& plan) {
  plan.mutable_units()->Reserve(static_cast<int>(units.size()));
  for (size_t i = 0; i < units.size(); ++i) {
    v1::Unit& unit = *plan.add_units();
    unit.set_tensor(units[i].tensor);
    *unit.mutable_box() = wire::ToProto(units[i].box);
    *unit.add_owners() = slots[assignment.slot_of[i]];
    unit.set_cost_seconds(prices[i]);
  }
}

absl::Status CheckSize(const v1::Plan& plan, size_t max_bytes) {
  const size_t bytes = plan.ByteSizeLong();
  if (bytes <= max_bytes) return absl::OkStatus();
  return wire::Error(absl::StatusCode::kResourceExhausted, v1::ERROR_REASON_LIMIT,
                     absl::StrCat("the plan of job '", plan.job_id(), "' has ", plan.units_size(),
                                  " units and ", bytes, " bytes; at most ", max_bytes));
}

}  // namespace

std::string Digest(const v1::JobSpec& job, const v1::Plan& plan) {
  v1::Plan canonical = plan;
  canonical.clear_generation();
  canonical.clear_digest();
  canonical.clear_reason();
  return HashOf(job, canonical);
}

absl::StatusOr<v1::Plan> MakePlan(const v1::JobSpec& job, ShardsByRank shards,
                                  std::span<const NodeSlots> nodes, uint64_t generation,
                                  absl::string_view reason, size_t max_bytes) {
  DMUON_RETURN_IF_ERROR(ProveCoverage(job, shards));
  const std::vector<Unit> units = MakeUnits(job, shards);
  const std::vector<v1::Slot> slots = SlotsOf(nodes);
  if (slots.empty()) {
    return wire::Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_NOT_READY,
                       absl::StrCat("cannot place ", units.size(), " units of job '", job.job_id(),
                                    "' on 0 slots; need at least 1"));
  }
  const std::vector<double> prices = Prices(job, units);
  const Assignment assignment = Assign(prices, slots.size());

  v1::Plan plan;
  plan.set_job_id(job.job_id());
  for (const NodeSlots& node : nodes) {
    plan.add_nodes(node.node_id);
    plan.add_slots(node.slots);
  }
  AddUnits(units, prices, slots, assignment, plan);
  plan.set_makespan_seconds(assignment.makespan);
  plan.set_lower_bound_seconds(assignment.lower_bound);
  // Before the fields that the digest leaves out: a copy of a large plan would be dear.
  plan.set_digest(HashOf(job, plan));
  plan.set_generation(generation);
  plan.set_reason(std::string(reason));
  DMUON_RETURN_IF_ERROR(CheckSize(plan, max_bytes));
  return plan;
}

}  // namespace dmuon::plan
