// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include "daemon/plan/bound.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

namespace dmuon::plan {
namespace {

// What units of one cost give when each is cut into `parts`.
struct Quotient {
  double value;
  double cost;
  size_t parts;
  size_t units;
  friend bool operator<(const Quotient& a, const Quotient& b) { return a.value < b.value; }
};

// Costs in falling order, and the sums of the first 0, 1, 2, ...
struct Sorted {
  explicit Sorted(std::vector<double> falling) : costs(std::move(falling)), sums(costs.size() + 1, 0.0) {
    for (size_t i = 0; i < costs.size(); ++i) sums[i + 1] = sums[i] + costs[i];
  }
  // How many are above `value`; at least it.
  [[nodiscard]] size_t Above(double value) const {
    return static_cast<size_t>(std::lower_bound(costs.begin(), costs.end(), value, std::greater<>()) - costs.begin());
  }
  [[nodiscard]] size_t AtLeast(double value) const {
    return static_cast<size_t>(std::upper_bound(costs.begin(), costs.end(), value, std::greater<>()) - costs.begin());
  }

  std::vector<double> costs;
  std::vector<double> sums;
};

// Whether `sorted` cannot lie in `slots` slots of `size`: L2 of Martello and Toth.
bool Overfull(const Sorted& sorted, size_t slots, double size) {
  const size_t large = sorted.Above(size / 2);
  const size_t small = sorted.costs.size() - large;
  const size_t step = std::max<size_t>(1, small / kMaxThresholds);
  for (size_t i = large; i < sorted.costs.size(); i += step) {
    const double threshold = sorted.costs[i];
    const size_t alone = std::min(large, sorted.Above(size - threshold));
    const size_t end = sorted.AtLeast(threshold);
    const double room = static_cast<double>(large - alone) * size - (sorted.sums[large] - sorted.sums[alone]);
    const double rest = sorted.sums[end] - sorted.sums[large] - room;
    const double more = rest > 0.0 ? std::ceil(rest / size * (1.0 - 1e-12)) : 0.0;
    if (static_cast<double>(large) + more > static_cast<double>(slots)) return true;
  }
  return large > slots;
}

// The largest size that is found to be overfull; `bound` if none is. No more than twice a bound is ever needed.
double RaisedByThresholds(const Sorted& sorted, size_t slots, double bound) {
  constexpr int kHalvings = 40;
  double low = bound;
  double high = 2 * bound;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (low + high) / 2;
    (Overfull(sorted, slots, middle) ? low : high) = middle;
  }
  return low;
}

}  // namespace

double LowerBound(std::span<const double> costs, size_t slots) {
  std::vector<double> sorted(costs.begin(), costs.end());
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  double total = 0.0;
  std::vector<Quotient> wholes;
  for (const double cost : sorted) {
    if (cost <= 0.0) break;
    total += cost;
    if (wholes.empty() || wholes.back().cost != cost) wholes.push_back({cost, cost, 1, 0});
    ++wholes.back().units;
  }
  if (wholes.empty()) return 0.0;
  double bound = std::max(sorted.front(), total / static_cast<double>(slots));
  std::priority_queue<Quotient> largest({}, std::move(wholes));
  double quantum = 0.0;
  size_t seen = 0;
  for (size_t k = 1; k <= kMaxQuanta; ++k) {
    while (seen < k * slots + 1) {
      Quotient next = largest.top();
      largest.pop();
      quantum = next.value;
      seen += next.units;
      next.value = next.cost / static_cast<double>(++next.parts);
      largest.push(next);
    }
    bound = std::max(bound, static_cast<double>(k + 1) * quantum);
  }
  return RaisedByThresholds(Sorted(std::move(sorted)), slots, bound);
}

}  // namespace dmuon::plan
