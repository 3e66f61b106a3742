// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What a plan is to the one before it, and what each of its nodes is in it.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/plan/plan.h"
#include "wire/box.h"
#include "wire/error.h"

namespace dmuon::plan {
namespace {

// Drops the nodes behind the first `places`; false: one of them has workers or units, or is somebody's buddy.
bool KeepNodes(size_t places, v1::Plan& plan) {
  for (size_t node = places; node < static_cast<size_t>(plan.nodes_size()); ++node) {
    if (HasWorkers(plan, node) || !OwnsNothing(plan, node)) return false;
    if (plan.buddies_size() > 0 && plan.buddies(static_cast<int>(node)) != node) return false;
  }
  const int kept = static_cast<int>(places);
  plan.mutable_nodes()->DeleteSubrange(kept, plan.nodes_size() - kept);
  plan.mutable_slots()->Truncate(kept);
  if (plan.buddies_size() > 0) plan.mutable_buddies()->Truncate(kept);
  auto& drained = *plan.mutable_drained();
  drained.erase(std::remove_if(drained.begin(), drained.end(), [&](uint32_t node) { return node >= places; }), drained.end());
  return true;
}

}  // namespace

absl::Status ValidateSuccessor(const v1::Plan& former, const v1::Plan& successor) {
  const auto same = [](const auto& a, const auto& b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); };
  const auto alike = [](const v1::Unit& a, const v1::Unit& b) {
    return a.tensor() == b.tensor() && a.bucket() == b.bucket() && wire::FromProto(a.box()) == wire::FromProto(b.box());
  };
  const bool good = successor.former_generation() == former.generation() &&
                    (same(former.nodes(), successor.nodes()) || OnlyNodesDiffer(former, successor)) &&
                    same(former.rank_nodes(), successor.rank_nodes()) &&
                    std::equal(former.units().begin(), former.units().end(), successor.units().begin(),
                               successor.units().end(), alike);
  if (good) return absl::OkStatus();
  return wire::InvalidField(absl::StrCat("generation ", successor.generation(), " of job '", former.job_id(),
                                         "' does not succeed generation ", former.generation(),
                                         ": nodes, workers or units differ"));
}

bool OnlyNodesDiffer(const v1::Plan& former, const v1::Plan& plan) {
  const size_t places = static_cast<size_t>(std::min(former.nodes_size(), plan.nodes_size()));
  std::array<v1::Plan, 2> plans = {former, plan};
  for (v1::Plan& one : plans) {
    if (one.slots_size() != one.nodes_size() || (one.buddies_size() != one.nodes_size() && one.buddies_size() != 0)) return false;
    if (!KeepNodes(places, one)) return false;
    one.clear_nodes();
    one.clear_generation();
    one.clear_former_generation();
    one.clear_digest();
    one.clear_reason();
  }
  return plans[0].SerializeAsString() == plans[1].SerializeAsString();
}

v1::Plan WithNodes(const v1::JobSpec& job, const v1::Plan& former, size_t places, std::span<const NodeSlots> more,
                   uint64_t generation, absl::string_view reason) {
  v1::Plan plan = former;
  KeepNodes(places, plan);
  for (const NodeSlots& node : more) {
    const auto place = static_cast<uint32_t>(plan.nodes_size());
    plan.add_nodes(node.node_id);
    plan.add_slots(node.slots);
    plan.add_drained(place);
    if (IsReplicated(job)) plan.add_buddies(place);
  }
  plan.set_former_generation(former.generation());
  plan.set_generation(generation);
  plan.set_reason(std::string(reason));
  plan.set_digest(Digest(job, plan));
  return plan;
}

uint64_t MovedUnits(const v1::Plan& former, const v1::Plan& successor) {
  uint64_t moved = 0;
  for (int i = 0; i < former.units_size(); ++i) {
    const v1::Slot& before = former.units(i).owners(0);
    const v1::Slot& after = successor.units(i).owners(0);
    if (before.node() != after.node() || before.slot() != after.slot()) ++moved;
  }
  return moved;
}

bool OwnsNothing(const v1::Plan& plan, size_t node) {
  return plan.units_size() > 0 && std::none_of(plan.units().begin(), plan.units().end(), [&](const v1::Unit& unit) {
           return unit.owners_size() > 0 && unit.owners(0).node() == node;
         });
}

bool HasWorkers(const v1::Plan& plan, size_t node) {
  return std::find(plan.rank_nodes().begin(), plan.rank_nodes().end(), node) != plan.rank_nodes().end();
}

bool HasFollowers(const v1::Plan& plan) {
  std::vector<bool> with_workers(static_cast<size_t>(plan.nodes_size()));
  for (const uint32_t node : plan.rank_nodes()) {
    if (node < with_workers.size()) with_workers[node] = true;
  }
  return std::find(with_workers.begin(), with_workers.end(), false) != with_workers.end();
}

std::vector<uint64_t> UnitsByNode(const v1::Plan& plan) {
  std::vector<uint64_t> units(static_cast<size_t>(plan.nodes_size()), 0);
  for (const v1::Unit& unit : plan.units()) {
    const bool known = unit.owners_size() > 0 && unit.owners(0).node() < units.size();  // else the plan is not valid
    if (known) ++units[unit.owners(0).node()];
  }
  return units;
}

}  // namespace dmuon::plan
