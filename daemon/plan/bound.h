// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// How fast an assignment could be at best.
#pragma once

#include <cstddef>
#include <span>

namespace dmuon::plan {

// No assignment of whole units of these seconds (finite, >= 0) to `slots` (at least 1) equal slots
// has a smaller makespan, up to rounding. The largest of
//   the largest unit;   the total / slots;
//   (k + 1) * q, k = 1..kMaxQuanta, where q is the (k * slots + 1)-th largest of all cost / j,
//   j = 1, 2, ...: a unit holds floor(cost / q) whole quanta q, all units together at least
//   k * slots + 1, so some slot gets k + 1 of them.
//   the largest T, as far as bisection finds it, at which units do not fit into slots of T: those above T - q
//   have a slot of their own, those above T / 2 at most one a slot, and what is left of these must hold
//   the units from q to T / 2; for kMaxThresholds costs q.
// The last two are from bin packing (Fekete and Schepers, "New classes of fast lower bounds for bin packing
// problems", 2001; Martello and Toth, "Lower bounds and reduction procedures for the bin packing
// problem", 1990). They see what whole units cannot do, such as 72 equal ones on 64 slots. Time n log n plus
// (kMaxQuanta * slots + kMaxThresholds) * log n.
inline constexpr size_t kMaxQuanta = 16;
inline constexpr size_t kMaxThresholds = 256;
double LowerBound(std::span<const double> costs, size_t slots);

}  // namespace dmuon::plan
