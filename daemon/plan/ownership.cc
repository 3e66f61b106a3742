// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include "daemon/plan/ownership.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

namespace dmuon::plan {
namespace {

constexpr size_t kNoUnit = static_cast<size_t>(-1);

// Units of each slot, longest first; ties by index.
class Packing {
 public:
  Packing(std::span<const double> costs, size_t slots) : costs_(costs), units_(slots) {
    std::vector<size_t> order(costs.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(), [this](size_t a, size_t b) { return Before(a, b); });
    using LoadAndSlot = std::pair<double, size_t>;
    std::priority_queue<LoadAndSlot, std::vector<LoadAndSlot>, std::greater<>> emptiest;
    for (size_t s = 0; s < slots; ++s) emptiest.emplace(0.0, s);
    for (const size_t unit : order) {
      const auto [load, slot] = emptiest.top();
      emptiest.pop();
      units_[slot].push_back(unit);
      emptiest.emplace(load + costs_[unit], slot);
    }
    for (size_t s = 0; s < slots; ++s) loads_.push_back(SumOf(s));
  }

  // One move or swap between the fullest and the emptiest slot, the one that brings them closest.
  // False when none helps.
  bool Improve() {
    const size_t full = Index(std::max_element(loads_.begin(), loads_.end()));
    const size_t empty = Index(std::min_element(loads_.begin(), loads_.end()));
    const double gap = loads_[full] - loads_[empty];
    // Below this a "better" sum is rounding, and the search could go round in circles.
    const double least = loads_[full] * 1e-12;
    size_t best_give = kNoUnit;
    size_t best_take = kNoUnit;
    double best = gap / 2 - least;  // distance from the ideal gain; no change has gap / 2
    for (const size_t give : units_[full]) {
      for (const size_t take : Candidates(empty, costs_[give] - gap / 2)) {
        const double gain = costs_[give] - (take == kNoUnit ? 0.0 : costs_[take]);
        if (std::abs(gain - gap / 2) < best) {
          best = std::abs(gain - gap / 2);
          best_give = give;
          best_take = take;
        }
      }
    }
    if (best_give == kNoUnit) return false;
    Transfer(best_give, full, empty);
    if (best_take != kNoUnit) Transfer(best_take, empty, full);
    loads_[full] = SumOf(full);
    loads_[empty] = SumOf(empty);
    return true;
  }

  [[nodiscard]] double makespan() const { return *std::max_element(loads_.begin(), loads_.end()); }

  [[nodiscard]] std::vector<size_t> SlotOf() const {
    std::vector<size_t> slot_of(costs_.size());
    for (size_t s = 0; s < units_.size(); ++s) {
      for (const size_t unit : units_[s]) slot_of[unit] = s;
    }
    return slot_of;
  }

 private:
  [[nodiscard]] bool Before(size_t a, size_t b) const {
    return costs_[a] != costs_[b] ? costs_[a] > costs_[b] : a < b;
  }

  [[nodiscard]] size_t Index(std::vector<double>::iterator it) {
    return static_cast<size_t>(it - loads_.begin());
  }

  // The units of `slot` whose cost is nearest to `wanted` from above and from below, and none at
  // all.
  [[nodiscard]] std::vector<size_t> Candidates(size_t slot, double wanted) const {
    std::vector<size_t> found = {kNoUnit};
    if (wanted <= 0) return found;
    const std::vector<size_t>& units = units_[slot];
    const auto below = std::lower_bound(units.begin(), units.end(), wanted,
                                        [this](size_t u, double w) { return costs_[u] > w; });
    if (below != units.end()) found.push_back(*below);
    if (below != units.begin()) found.push_back(*std::prev(below));
    return found;
  }

  void Transfer(size_t unit, size_t from, size_t to) {
    const auto before = [this](size_t a, size_t b) { return Before(a, b); };
    std::vector<size_t>& source = units_[from];
    source.erase(std::lower_bound(source.begin(), source.end(), unit, before));
    std::vector<size_t>& target = units_[to];
    target.insert(std::lower_bound(target.begin(), target.end(), unit, before), unit);
  }

  // Always in the same order, so that equal packings have equal loads to the bit.
  [[nodiscard]] double SumOf(size_t slot) const {
    double sum = 0.0;
    for (const size_t unit : units_[slot]) sum += costs_[unit];
    return sum;
  }

  const std::span<const double> costs_;
  std::vector<std::vector<size_t>> units_;
  std::vector<double> loads_;
};

}  // namespace

Assignment Assign(std::span<const double> costs, size_t slots) {
  Packing packing(costs, slots);
  Assignment best{packing.SlotOf(), packing.makespan(), 0.0};
  for (int round = 0; slots > 1 && round < kMaxSearchRounds && packing.Improve(); ++round) {
  }
  if (packing.makespan() < best.makespan) {
    best.slot_of = packing.SlotOf();
    best.makespan = packing.makespan();
  }
  double total = 0.0;
  for (const double cost : costs) {
    best.lower_bound = std::max(best.lower_bound, cost);
    total += cost;
  }
  best.lower_bound = std::max(best.lower_bound, total / static_cast<double>(slots));
  return best;
}

}  // namespace dmuon::plan
