// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Which slot owns which unit. Deterministic: equal problems have equal answers, to the bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

namespace dmuon::plan {

// "The slot that owned this unit is gone."
inline constexpr size_t kNoSlot = static_cast<size_t>(-1);

// Units to spread over equal slots. The spans must outlive the call that reads them. A unit takes
//   costs[unit] + seconds_per_wire_byte * wire_bytes(unit, node)
// seconds on any slot of a node, and the makespan is the largest sum of a slot.
struct Problem {
  // Compute seconds of each unit, the same on every slot; finite, >= 0.
  std::span<const double> costs;
  // Slots of each node, together at least 1. Slots are numbered through, node by node.
  std::span<const uint32_t> slots_per_node;

  // Bytes (>= 0) that each unit's state takes on its slot; looked at only under a cap.
  std::span<const int64_t> bytes = {};
  // Cap of every slot, in bytes; 0 for none.
  int64_t slot_bytes = 0;

  // Bytes (>= 0) that each step moves over the wire when `node` owns `unit`; empty for none. A pure
  // and cheap function: it is called often.
  std::function<int64_t(size_t unit, size_t node)> wire_bytes = nullptr;
  // How much a byte on the wire weighs. Larger keeps more units at home, on slots that are fuller.
  double seconds_per_wire_byte = 0.0;

  // Each unit's former slot in today's numbers, or kNoSlot. Empty when there is no former plan.
  std::span<const size_t> previous = {};
};

// The slot of every unit, and how good that is.
struct Assignment {
  std::vector<size_t> slot_of;  // one a unit
  double makespan = 0.0;        // largest seconds of a slot
  double lower_bound = 0.0;     // LowerBound (bound.h) with every unit on its cheapest node
};

// What staying may cost: with a former plan the makespan is at most this much above that of a plan
// made afresh.
inline constexpr double kStaySlack = 0.02;

// Longest first, each unit where it ends first; then exchanges of a few units between the fullest
// slot and another (packing.h), until the makespan is within 0.05 % of the lower bound or no
// exchange helps. Where that is not near enough, the same from packings of multifit. Whole matrices
// of public models are within 2 % of the optimum on 8, 64 and 256 slots, and so are small problems
// of few sizes (tests/daemon/plan/optimum_test.cc); no such promise is made with a cap or a wire.
//
// With a former plan the makespan may be kStaySlack above that of a plan made afresh. Every unit starts where it was,
// those without a slot are placed longest first, exchanges that leave most units at home go on until the makespan is
// small enough, and then units go back home where that is possible. Of up to 4 000 units two more plans are made: one
// by smaller steps, and the plan made afresh, its slots named so that they keep what they can, with units that go back
// home. The plan with the fewest moves is the answer, or of equal ones that with the smallest makespan. Small problems
// of few sizes come within two moves of the fewest there are, public models of few shapes within one
// (tests/daemon/plan/optimum_test.cc).
//
//   RESOURCE_EXHAUSTED/LIMIT  a unit finds no slot with room. Memory is packed as well as time is,
//                             so that a cap a few percent above total / slots is met as a rule.
absl::StatusOr<Assignment> Assign(const Problem& problem);

}  // namespace dmuon::plan
