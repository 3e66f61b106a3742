// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// One schedule: a cluster, a training run on it, the faults of the seed, and the verdict over what happened.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/sim/faults.h"
#include "tests/sim/invariants.h"
#include "tests/sim/plants.h"

namespace dmuon::sim {

struct SimOptions {
  FaultMenu menu;
  Plant plant = Plant::kNone;
  bool trace = false;  // prints what happens
};

struct SimResult {
  uint64_t seed = 0;
  std::vector<Violation> violations;  // empty: all invariants hold
  uint64_t events = 0;
  uint64_t steps = 0;    // acknowledged, of the run that ended in order
  uint64_t starts = 0;   // of the job: more than one when state was lost
  bool replicated = false;
  uint64_t recoveries = 0;  // of nodes
  absl::Duration time;   // virtual
  // Known limitations, counted: workers that were not told of lost state before they lost patience, and jobs that the
  // coordinator has kept because their release did not arrive.
  uint64_t untold = 0;
  uint64_t kept = 0;
  uint64_t behind = 0;  // workers that came back after all others had ended, see README.md
};

// How long after the last fault the training must have ended, in order.
inline constexpr absl::Duration kProgressWithin = absl::Seconds(240);

// Deterministic: the same arguments give the same schedule.
SimResult RunSchedule(uint64_t seed, const SimOptions& options);

}  // namespace dmuon::sim
