// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include "daemon/plan/bound.h"

#include <algorithm>
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
  return bound;
}

}  // namespace dmuon::plan
