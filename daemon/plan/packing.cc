// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include "daemon/plan/packing.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "wire/error.h"

namespace dmuon::plan {
namespace {

// Below this a "smaller" makespan is rounding, and a search could go round in circles.
constexpr double kLeastGain = 1e-9;
constexpr double kNever = std::numeric_limits<double>::infinity();

}  // namespace

Costs::Costs(const Problem& problem)
    : problem_(problem), base_(problem.costs.begin(), problem.costs.end()) {
  std::vector<size_t> nodes;  // that have slots
  for (size_t node = 0; node < problem.slots_per_node.size(); ++node) {
    node_of_.insert(node_of_.end(), problem.slots_per_node[node], node);
    if (problem.slots_per_node[node] > 0) nodes.push_back(node);
  }
  if (problem.wire_bytes == nullptr || problem.seconds_per_wire_byte <= 0.0) return;
  for (size_t unit = 0; unit < base_.size(); ++unit) {
    int64_t least = std::numeric_limits<int64_t>::max();
    int64_t most = 0;
    for (const size_t node : nodes) {
      const int64_t bytes = problem.wire_bytes(unit, node);
      least = std::min(least, bytes);
      most = std::max(most, bytes);
    }
    base_[unit] += problem.seconds_per_wire_byte * static_cast<double>(least);
    uniform_ = uniform_ && least == most;
  }
}

double Costs::On(size_t unit, size_t slot) const {
  if (uniform_) return base_[unit];
  return problem_.costs[unit] + problem_.seconds_per_wire_byte *
                                    static_cast<double>(problem_.wire_bytes(unit, node_of_[slot]));
}

bool Costs::Before(size_t a, size_t b) const {
  return std::tuple(-base_[a], -Bytes(a), a) < std::tuple(-base_[b], -Bytes(b), b);
}

bool Costs::Alike(size_t a, size_t b) const {
  return uniform_ && base_[a] == base_[b] && Bytes(a) == Bytes(b);
}

Packing::Packing(const Costs& costs, std::span<const size_t> homes)
    : costs_(&costs), homes_(homes), units_(costs.slots()), loads_(costs.slots(), 0.0), bytes_(costs.slots(), 0) {
  for (size_t slot = 0; slot < costs.slots(); ++slot) by_load_.emplace(0.0, slot);
}

bool Packing::Fits(size_t unit, size_t slot) const {
  return costs_->cap() == 0 || costs_->Bytes(unit) <= costs_->cap() - bytes_[slot];
}

absl::Status Packing::CheckRoom(size_t unit, size_t slot) const {
  if (Fits(unit, slot)) return absl::OkStatus();
  return wire::Error(absl::StatusCode::kResourceExhausted, v1::ERROR_REASON_LIMIT,
                     absl::StrCat("unit ", unit, " needs ", costs_->Bytes(unit), " bytes; slot ",
                                  slot, " of ", bytes_.size(), " has ",
                                  costs_->cap() - bytes_[slot], " of ", costs_->cap(), " left"));
}

void Packing::Add(size_t unit, size_t slot) {
  Insert(unit, slot);
  SetLoad(slot, loads_[slot] + costs_->On(unit, slot));
}

absl::Status Packing::AddWhereFirst(std::span<const size_t> units) {
  for (const size_t unit : units) {
    size_t first = kNoSlot;
    double end = std::numeric_limits<double>::infinity();
    for (const auto& [load, slot] : by_load_) {
      if (load + costs_->Base(unit) >= end) break;
      const double here = load + costs_->On(unit, slot);
      if (here >= end || !Fits(unit, slot)) continue;
      end = here;
      first = slot;
    }
    if (first == kNoSlot) return CheckRoom(unit, by_load_.begin()->second);
    Add(unit, first);
  }
  return absl::OkStatus();
}

bool Packing::AddUnder(std::span<const size_t> units, double most) {
  for (const size_t unit : units) {
    // The fullest slot that could take it on its cheapest node; then emptier ones.
    auto next = by_load_.upper_bound({most - costs_->Base(unit), kNoSlot});
    size_t found = kNoSlot;
    while (found == kNoSlot && next != by_load_.begin()) {
      const auto& [load, slot] = *--next;
      if (load + costs_->On(unit, slot) <= most && Fits(unit, slot)) found = slot;
    }
    if (found == kNoSlot) return false;
    Add(unit, found);
  }
  return true;
}

void Packing::Search(double target) {
  work_ = 0;
  while (work_ < kMaxSearchWork && (Shed(target) || Improve(target))) {
  }
}

void Packing::Return(double target) {
  work_ = 0;
  std::vector<bool> changed(units_.size(), true);  // since it was last looked at
  while (work_ < kMaxSearchWork && std::find(changed.begin(), changed.end(), true) != changed.end()) {
    std::set<std::pair<size_t, size_t>> pairs;
    for (size_t slot = 0; slot < units_.size(); ++slot) {
      for (const size_t unit : units_[slot]) {
        if (!Away(unit, slot) || !(changed[slot] || changed[homes_[unit]])) continue;
        pairs.insert(std::minmax(slot, homes_[unit]));
      }
    }
    changed.assign(units_.size(), false);
    for (const auto& [slot, other] : pairs) {
      Exchange best{.worst = target, .moved = 0, .seconds = -kNever};
      Look(slot, other, target, best);
      if (best.other == kNoSlot) continue;
      Apply(slot, best);
      changed[slot] = changed[other] = true;
    }
  }
}

size_t Packing::UnitsAway() const {
  size_t away = 0;
  for (size_t slot = 0; slot < units_.size(); ++slot) {
    away += static_cast<size_t>(std::count_if(units_[slot].begin(), units_[slot].end(),
                                              [&](size_t unit) { return Away(unit, slot); }));
  }
  return away;
}

std::vector<size_t> Packing::SlotOf() const {
  std::vector<size_t> slot_of(costs_->units());
  for (size_t slot = 0; slot < units_.size(); ++slot) {
    for (const size_t unit : units_[slot]) slot_of[unit] = slot;
  }
  return slot_of;
}

bool Packing::Shed(double target) {
  const auto [fullest, full] = *by_load_.rbegin();
  const auto [least, emptiest] = *by_load_.begin();
  const std::vector<size_t>& units = units_[full];
  double most = 0.0;  // that one exchange can take from it
  for (size_t i = 0; i < std::min(kMaxBundle, units.size()); ++i) most += costs_->On(units[i], full);
  if (units.empty() || fullest - most <= target) return false;
  const size_t unit = units.front();
  if (least + costs_->On(unit, emptiest) > target || !Fits(unit, emptiest)) return false;
  Apply(full, {.worst = fullest, .other = emptiest, .give = {.units = {unit}, .size = 1}});
  return true;
}

bool Packing::Improve(double target) {
  const auto [fullest, full] = *by_load_.rbegin();
  if (fullest <= target) return false;
  Exchange best{.worst = fullest * (1 - kLeastGain)};
  for (const auto& [load, other] : by_load_) {
    // The two cannot do better than halves of what they have, and the rest have more.
    if (other == full || (costs_->uniform() && (fullest + load) / 2 >= best.worst)) break;
    Look(full, other, target, best);
    if (best.worst <= target || work_ >= kMaxSearchWork) break;
  }
  if (best.other == kNoSlot) return false;
  Apply(full, best);
  return true;
}

int Packing::Moved(size_t unit, size_t from, size_t to) const {
  if (homes_.empty()) return 1;
  return (homes_[unit] == from ? 1 : 0) - (homes_[unit] == to ? 1 : 0);
}

// Of units that are alike as many as a bundle may hold; those first that belong to `to`, and last those that belong
// to `slot`.
std::vector<size_t> Packing::Offered(size_t slot, size_t to) const {
  const std::vector<size_t>& units = units_[slot];
  std::vector<size_t> offered;
  for (size_t begin = 0, end = 0; begin < units.size() && offered.size() < kMaxBundles; begin = end) {
    do {
      ++end;
    } while (end < units.size() && costs_->Alike(units[begin], units[end]));
    const size_t most = offered.size() + std::min(end - begin, kMaxBundle);
    for (int moved = -1; offered.size() < most; ++moved) {
      for (size_t i = begin; i < end && offered.size() < most; ++i) {
        if (Moved(units[i], slot, to) == moved) offered.push_back(units[i]);
      }
    }
  }
  return offered;
}

// Every multiset of up to kMaxBundle units, but one of those that are alike.
void Packing::List(size_t slot, size_t to, Offer& offer) const {
  const std::vector<size_t> units = Offered(slot, to);
  std::vector<Bundle>& bundles = offer.bundles;
  bundles.assign(1, Bundle{});
  for (size_t size = 1, begin = 0; size <= kMaxBundle; ++size) {
    const size_t end = bundles.size();
    for (size_t i = begin; i < end; ++i) {
      const size_t first = bundles[i].next;
      for (size_t j = first; j < units.size() && bundles.size() < kMaxBundles; ++j) {
        if (j > first && costs_->Alike(units[j], units[j - 1])) continue;
        Bundle more = bundles[i];
        more.seconds += costs_->Base(units[j]);
        more.bytes += costs_->Bytes(units[j]);
        more.units[more.size++] = units[j];
        more.moved += Moved(units[j], slot, to);
        more.next = j + 1;
        bundles.push_back(more);
      }
    }
    begin = end;
  }
  std::stable_sort(bundles.begin(), bundles.end(), [](const Bundle& a, const Bundle& b) {
    return std::tuple(a.moved, a.seconds) < std::tuple(b.moved, b.seconds);
  });
  for (size_t i = 0, group = 0; group < offer.begin.size(); ++group) {
    while (i < bundles.size() && bundles[i].moved + static_cast<int>(kMaxBundle) < static_cast<int>(group)) ++i;
    offer.begin[group] = i;
  }
}

// For every bundle of the fuller slot, those of the other that come nearest to the ideal gain.
void Packing::Look(size_t full, size_t other, double target, Exchange& best) {
  List(full, other, give_);
  List(other, full, take_);
  const double excess = loads_[full] - target;
  // Just enough to reach the target where the other has room for that; halves otherwise.
  const double gain = std::min(excess, (loads_[full] - loads_[other]) / 2);
  for (const Bundle& give : give_.bundles) {
    for (size_t group = 0; group + 1 < take_.begin.size(); ++group) {
      const auto begin = take_.bundles.begin() + static_cast<ptrdiff_t>(take_.begin[group]);
      const auto end = take_.bundles.begin() + static_cast<ptrdiff_t>(take_.begin[group + 1]);
      const auto above = std::partition_point(
          begin, end,
          [wanted = give.seconds - gain](const Bundle& take) { return take.seconds <= wanted; });
      if (above != end) Consider(full, other, target, give, *above, best);
      if (above != begin) Consider(full, other, target, give, *std::prev(above), best);
      work_ += 2;
    }
  }
}

void Packing::Consider(size_t full, size_t other, double target, const Bundle& give,
                       const Bundle& take, Exchange& best) {
  const double left = loads_[full] - On(give, full) + On(take, full);
  const double right = loads_[other] - On(take, other) + On(give, other);
  const double worst = std::max({left, right, target});
  const int moved = give.moved + take.moved;
  const double seconds = loads_[full] - left;
  if (std::tuple(worst, moved, seconds) >= std::tuple(best.worst, best.moved, best.seconds)) return;
  const int64_t bytes = give.bytes - take.bytes;
  if (costs_->cap() > 0 && std::max(bytes_[full] - bytes, bytes_[other] + bytes) > costs_->cap()) {
    return;
  }
  best = {worst, moved, seconds, other, give, take};
}

void Packing::Apply(size_t full, const Exchange& exchange) {
  const auto move = [this](const Bundle& bundle, size_t from, size_t to) {
    for (size_t i = 0; i < bundle.size; ++i) {
      std::vector<size_t>& source = units_[from];
      source.erase(std::lower_bound(source.begin(), source.end(), bundle.units[i],
                                    [this](size_t a, size_t b) { return costs_->Before(a, b); }));
      bytes_[from] -= costs_->Bytes(bundle.units[i]);
      Insert(bundle.units[i], to);
    }
  };
  move(exchange.give, full, exchange.other);
  move(exchange.take, exchange.other, full);
  // Summed anew, always in the same order: equal slots have equal loads to the bit, and rounding
  // does not pile up.
  for (const size_t slot : {full, exchange.other}) {
    double load = 0.0;
    for (const size_t unit : units_[slot]) load += costs_->On(unit, slot);
    SetLoad(slot, load);
  }
}

double Packing::On(const Bundle& bundle, size_t slot) const {
  if (costs_->uniform()) return bundle.seconds;
  double seconds = 0.0;
  for (size_t i = 0; i < bundle.size; ++i) seconds += costs_->On(bundle.units[i], slot);
  return seconds;
}

void Packing::Insert(size_t unit, size_t slot) {
  std::vector<size_t>& units = units_[slot];
  units.insert(std::upper_bound(units.begin(), units.end(), unit,
                                [this](size_t a, size_t b) { return costs_->Before(a, b); }),
               unit);
  bytes_[slot] += costs_->Bytes(unit);
}

void Packing::SetLoad(size_t slot, double load) {
  by_load_.erase({loads_[slot], slot});
  loads_[slot] = load;
  by_load_.emplace(load, slot);
}

}  // namespace dmuon::plan
