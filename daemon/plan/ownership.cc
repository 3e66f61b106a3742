// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include "daemon/plan/ownership.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
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
// With more units the first way to keep them at home is as good as the others, which take long.
constexpr size_t kFewUnits = 4'000;

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

// How many units of each sort each slot has, by sort.
std::vector<std::map<size_t, size_t>> CountSorts(size_t slots, std::span<const size_t> sort_of,
                                                 std::span<const size_t> slot_of) {
  std::vector<std::map<size_t, size_t>> counts(slots);
  for (size_t unit = 0; unit < slot_of.size(); ++unit) {
    if (slot_of[unit] != kNoSlot) ++counts[slot_of[unit]][sort_of[unit]];
  }
  return counts;
}

// Gives each slot another's units, on the same node unless nodes do not matter, so that it has many
// of the sorts that it had.
std::vector<size_t> RenameSlots(const Costs& costs, std::span<const size_t> sort_of,
                                std::span<const size_t> previous, std::span<const size_t> slot_of) {
  const auto had = CountSorts(costs.slots(), sort_of, previous);
  const auto has = CountSorts(costs.slots(), sort_of, slot_of);
  std::vector<std::vector<std::pair<size_t, size_t>>> holders(costs.units());  // slot and count, by sort
  for (size_t slot = 0; slot < costs.slots(); ++slot) {
    for (const auto& [sort, count] : has[slot]) holders[sort].emplace_back(slot, count);
  }
  std::vector<size_t> name_of(costs.slots(), kNoSlot);
  for (size_t slot = 0; slot < costs.slots(); ++slot) {
    std::vector<size_t> both(costs.slots(), 0);
    for (const auto& [sort, before] : had[slot]) {
      for (const auto& [other, now] : holders[sort]) both[other] += std::min(before, now);
    }
    size_t best = kNoSlot;
    for (size_t other = 0; other < costs.slots(); ++other) {
      if (name_of[other] != kNoSlot || !costs.Interchangeable(slot, other)) continue;
      if (best == kNoSlot || both[other] > both[best]) best = other;
    }
    name_of[best] = slot;
  }
  return name_of;
}

// As good as `afresh`, with slots renamed and units exchanged that are alike.
Packing StayWhereEqual(const Costs& costs, std::span<const size_t> longest_first,
                       std::span<const size_t> previous, const Packing& afresh) {
  const std::vector<size_t> slot_of = afresh.SlotOf();
  const std::vector<size_t> sort_of = SortsOf(costs, longest_first);
  const std::vector<size_t> name_of = RenameSlots(costs, sort_of, previous, slot_of);
  std::vector<std::multiset<size_t>> places(costs.units());  // of each sort
  for (const size_t unit : longest_first) places[sort_of[unit]].insert(name_of[slot_of[unit]]);
  Packing stayed(costs, previous);
  std::vector<size_t> others;
  for (const size_t unit : longest_first) {
    std::multiset<size_t>& free = places[sort_of[unit]];
    const auto own = free.find(previous[unit]);
    if (own == free.end()) {
      others.push_back(unit);
      continue;
    }
    stayed.Add(unit, *own);
    free.erase(own);
  }
  for (const size_t unit : others) {
    std::multiset<size_t>& free = places[sort_of[unit]];
    stayed.Add(unit, *free.begin());
    free.erase(free.begin());
  }
  return stayed;
}

// Everything where it was, and the rest where it ends first.
absl::StatusOr<Packing> PutBack(const Costs& costs, std::span<const size_t> longest_first,
                                std::span<const size_t> previous) {
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
  return packing;
}

// Within `most` seconds, as `afresh` is, and with as few units away from home as are found.
Packing Stay(const Costs& costs, std::span<const size_t> longest_first,
             std::span<const size_t> previous, const Packing& afresh, double most) {
  std::optional<Packing> best;
  const auto consider = [&best, most](Packing packing) {
    if (packing.makespan() > most) return;
    packing.Return(most);
    const auto rank = [](const Packing& p) { return std::pair(p.UnitsAway(), p.makespan()); };
    if (!best.has_value() || rank(packing) < rank(*best)) best = std::move(packing);
  };
  const bool thorough = costs.units() <= kFewUnits;
  if (const auto start = PutBack(costs, longest_first, previous); start.ok()) {
    Packing direct = *start;
    direct.Search(most);
    consider(std::move(direct));
    if (thorough) {
      Packing by_steps = *start;
      Refine(by_steps, most);
      consider(std::move(by_steps));
    }
  }
  if (thorough || !best.has_value()) consider(StayWhereEqual(costs, longest_first, previous, afresh));
  return best.has_value() ? *std::move(best) : afresh;
}

}  // namespace

absl::StatusOr<Assignment> Assign(const Problem& problem) {
  const Costs costs(problem);
  const std::vector<size_t> longest_first = LongestFirst(costs);
  const double bound = LowerBound(costs.bases(), costs.slots());
  DMUON_ASSIGN_OR_RETURN(Packing best,
                         PackAfresh(problem, costs, longest_first, bound * (1 + kCloseEnough)));
  if (!problem.previous.empty()) {
    const double most = best.makespan() * (1 + kStaySlack);
    best = Stay(costs, longest_first, problem.previous, best, most);
  }
  // The bound is above the makespan by rounding only.
  return Assignment{best.SlotOf(), best.makespan(), std::min(bound, best.makespan())};
}

}  // namespace dmuon::plan
