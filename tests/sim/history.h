// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What happened in a schedule, as the processes saw it: only ever appended to, and judged afterwards (invariants.h).
// Digests stand for bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace dmuon::sim {

using Digest = uint64_t;

enum class What : uint8_t {
  kPlanned,    // coordinator `life` gave out `generation`; `digests`: of each unit's owners; `number`: elements owned
  kAccepted,   // the coordinator took a call of `who` for valid; `life`: the caller's; `number`: its latest that joined
  kAdopted,    // node: `generation`, `digest` of the plan
  kLoaded,     // node: masters from initial parameters; `digests` by unit, 0 where it is not the owner
  kApplied,    // node: to `step`, from `before`, to `digest`, of its masters; `digests` as above; `skipped`; `number`: of
               // which batches the ranks' gradients are; `flag`: it owns something
  kRecovered,  // node: in recovery `number` of the job, at `step` with `digests`, from where it was (`before`)
  kReadmitted, // node: owns nothing, has begun anew, and is at `step` with the others
  kHandedOver, // node: has gone over from generation `before`, at `step` with `digests`
  kDrained,    // coordinator: has heard that `who` is to own nothing, or (`flag`) may own again
  kSafe,       // node: has its state at a step, and the copies of its ward's; `number`: of the recovery, 0 at the beginning
  kRan,        // node: a round for `step` ended with `status`; masters `before` and after (`digest`)
  kBegun,      // worker: `step` is the last one; `digest` of its parameters; `flag`: resumed, `must`: it counted on state;
               // `skipped`: the parameters are of another step by now
  kCalled,     // worker: sends `step`
  kAcked,      // worker: `step` is done; `digest` of its parameters; `skipped` as above
  kTold,       // worker: its call ended with `status`; `flag`: the trainer takes it for the end
  kLeft,       // worker: its process is over; `flag`: it closed in order
  kSaved,      // node: checkpoint of `step` exists; `digest` of the part that it has of it
  kHeard,      // coordinator: `who`, `life`, has said that it has its part of `job`'s state
  kOutOfTurn,  // coordinator: a join of `who`'s former process, `life`, came after that of a later one
  kLeftOut,    // coordinator: `job` ended without `who`, which was silent for longer than a lease
  kMistaken,   // node: took a message for another, as `text` says
  kCrashed,    // a process
  kStarted,    // a process
  kCalm,       // no fault from here on
  kBaseline,   // `text`: what is left of dead clients where nothing should be; empty: nothing
};

struct Event {
  What what = What::kCalm;
  absl::Time at;
  std::string who;        // "node-1", "rank-0"
  std::string job;
  uint64_t life = 0;      // of the process
  uint64_t generation = 0;
  uint64_t step = 0;
  Digest before = 0;
  Digest digest = 0;
  uint64_t number = 0;
  bool flag = false;
  bool must = false;
  bool skipped = false;
  double clip = 1.0;
  absl::Status status;
  std::string text;
  std::vector<Digest> digests;
};

using History = std::vector<Event>;

}  // namespace dmuon::sim
