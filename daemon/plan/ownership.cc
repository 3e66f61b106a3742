// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include "daemon/plan/ownership.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <set>
#include <utility>

#include "daemon/plan/bound.h"
#include "daemon/plan/packing.h"
#include "wire/error.h"

namespace dmuon::plan {
namespace {

// Nearer to the lower bound than this, a search is not worth its time.
constexpr double kCloseEnough = 5e-4;
// Halvings of the range between the lower bound and what longest first and its search reached.
constexpr int kMaxHalvings = 10;

std::vector<size_t> LongestFirst(const Costs& costs) {
  std::vector<size_t> order(costs.units());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&costs](size_t a, size_t b) { return costs.Before(a, b); });
  return order;
}

// Where longest first finds no room: the same problem with bytes in the place of seconds.
absl::Status AddByMemory(const Problem& problem, Packing& packing) {
  const std::vector<double> bytes(problem.bytes.begin(), problem.bytes.end());
  DMUON_ASSIGN_OR_RETURN(const Assignment found,
                         Assign({.costs = bytes, .slots_per_node = problem.slots_per_node}));
  for (size_t unit = 0; unit < bytes.size(); ++unit) {
    DMUON_RETURN_IF_ERROR(packing.CheckRoom(unit, found.slot_of[unit]));
    packing.Add(unit, found.slot_of[unit]);
  }
  return absl::OkStatus();
}

// Step by step: the nearer the aim, the more slots have to be looked at for one exchange.
void Refine(Packing& packing, double target) {
  double aim = 0.0;
  do {
    const double now = packing.makespan();
    aim = now < target * (1 + kCloseEnough) ? target : (now + target) / 2;
    packing.Search(aim);
  } while (packing.makespan() <= aim && aim > target);
}

absl::StatusOr<Packing> PackAfresh(const Problem& problem, const Costs& costs,
                                   std::span<const size_t> longest_first, double target) {
  Packing packing(costs);
  if (!packing.AddWhereFirst(longest_first).ok()) {
    packing = Packing(costs);
    DMUON_RETURN_IF_ERROR(AddByMemory(problem, packing));
  }
  Refine(packing, target);
  // Multifit (Coffman, Garey and Johnson, 1978): bin packing under smaller and smaller makespans.
  double low = target;
  double high = packing.makespan();
  for (int i = 0; i < kMaxHalvings && packing.makespan() > target; ++i) {
    const double most = (low + high) / 2;
    Packing tight(costs);
    if (!tight.AddUnder(longest_first, most)) {
      low = most;
      continue;
    }
    high = most;
    Refine(tight, target);
    if (tight.makespan() < packing.makespan()) packing = std::move(tight);
  }
  return packing;
}

// A number for each unit, the same for those that are alike; grows with the order.
std::vector<size_t> SortsOf(const Costs& costs, std::span<const size_t> longest_first) {
  std::vector<size_t> sort_of(costs.units(), 0);
  for (size_t i = 1; i < longest_first.size(); ++i) {
    const size_t before = longest_first[i - 1];
    const size_t unit = longest_first[i];
    sort_of[unit] = sort_of[before] + (costs.Alike(before, unit) ? 0 : 1);
  }
  return sort_of;
}

// Gives each slot another's units, on the same node unless nodes do not matter, so that it has many
// of the sorts that it had.
std::vector<size_t> RenameSlots(const Costs& costs, std::span<const size_t> sort_of,
                                std::span<const size_t> previous, std::span<const size_t> slot_of) {
  std::vector<std::vector<size_t>> had(costs.slots());
  std::vector<std::vector<size_t>> has(costs.slots());
  for (size_t unit = 0; unit < slot_of.size(); ++unit) {
    if (previous[unit] != kNoSlot) had[previous[unit]].push_back(sort_of[unit]);
    has[slot_of[unit]].push_back(sort_of[unit]);
  }
  for (auto* sorts : {&had, &has}) {
    for (std::vector<size_t>& of_slot : *sorts) std::sort(of_slot.begin(), of_slot.end());
  }
  std::vector<size_t> name_of(costs.slots(), kNoSlot);
  std::vector<size_t> both;
  for (size_t slot = 0; slot < costs.slots(); ++slot) {
    size_t best = kNoSlot;
    size_t most = 0;
    for (size_t other = 0; other < costs.slots(); ++other) {
      if (name_of[other] != kNoSlot || !costs.Interchangeable(slot, other)) continue;
      both.clear();
      std::set_intersection(had[slot].begin(), had[slot].end(), has[other].begin(),
                            has[other].end(), std::back_inserter(both));
      if (best != kNoSlot && both.size() <= most) continue;
      best = other;
      most = both.size();
    }
    name_of[best] = slot;
  }
  return name_of;
}

// As good as `slot_of`, with slots renamed and units exchanged that are alike.
std::vector<size_t> StayWhereEqual(const Costs& costs, std::span<const size_t> longest_first,
                                   std::span<const size_t> previous,
                                   std::span<const size_t> slot_of) {
  const std::vector<size_t> sort_of = SortsOf(costs, longest_first);
  const std::vector<size_t> name_of = RenameSlots(costs, sort_of, previous, slot_of);
  std::vector<std::multiset<size_t>> places(costs.units());  // of each sort
  for (const size_t unit : longest_first) places[sort_of[unit]].insert(name_of[slot_of[unit]]);
  std::vector<size_t> stayed(costs.units(), kNoSlot);
  for (const bool only_own : {true, false}) {
    for (const size_t unit : longest_first) {
      if (stayed[unit] != kNoSlot) continue;
      std::multiset<size_t>& free = places[sort_of[unit]];
      const auto place = only_own ? free.find(previous[unit]) : free.begin();
      if (place == free.end()) continue;
      stayed[unit] = *place;
      free.erase(place);
    }
  }
  return stayed;
}

// Everything where it was, and as little moved as reaches the target.
absl::StatusOr<Packing> PackInPlace(const Costs& costs, std::span<const size_t> longest_first,
                                    std::span<const size_t> previous, double target) {
  Packing packing(costs, previous);
  std::vector<size_t> homeless;
  for (const size_t unit : longest_first) {
    if (previous[unit] != kNoSlot && packing.Fits(unit, previous[unit])) {
      packing.Add(unit, previous[unit]);
    } else {
      homeless.push_back(unit);
    }
  }
  DMUON_RETURN_IF_ERROR(packing.AddWhereFirst(homeless));
  packing.Search(target);
  packing.Return(target);
  return packing;
}

}  // namespace

absl::StatusOr<Assignment> Assign(const Problem& problem) {
  const Costs costs(problem);
  const std::vector<size_t> longest_first = LongestFirst(costs);
  const double bound = LowerBound(costs.bases(), costs.slots());
  DMUON_ASSIGN_OR_RETURN(const Packing afresh,
                         PackAfresh(problem, costs, longest_first, bound * (1 + kCloseEnough)));
  Assignment found{afresh.SlotOf(), afresh.makespan()};
  if (!problem.previous.empty()) {
    const double most = found.makespan * (1 + kStaySlack);
    const auto in_place = PackInPlace(costs, longest_first, problem.previous, most);
    if (in_place.ok() && in_place->makespan() <= most) {
      found = {in_place->SlotOf(), in_place->makespan()};
    } else {
      found.slot_of = StayWhereEqual(costs, longest_first, problem.previous, found.slot_of);
    }
  }
  // The bound is above the makespan by rounding only.
  found.lower_bound = std::min(bound, found.makespan);
  return found;
}

}  // namespace dmuon::plan
