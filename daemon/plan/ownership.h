// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Which slot owns which unit: longest processing time first, then a local search.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace dmuon::plan {

// The slot of every unit, and how good that is.
struct Assignment {
  std::vector<size_t> slot_of;  // one a unit
  double makespan = 0.0;        // largest sum of a slot
  double lower_bound = 0.0;     // max(largest unit, total / slots): no assignment is faster
};

// Spreads units of these costs (finite, >= 0) over `slots` (at least 1) equal slots. Longest first
// is at most 4/3 of the best; the search (move a unit from the fullest slot to the emptiest, or
// swap two) never makes it worse. Deterministic: equal costs go by unit index, equal loads by slot
// index. Time n log n plus at most kMaxSearchRounds rounds over two slots.
inline constexpr int kMaxSearchRounds = 1'000;
Assignment Assign(std::span<const double> costs, size_t slots);

}  // namespace dmuon::plan
