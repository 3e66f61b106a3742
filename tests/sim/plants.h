// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Faults of the program rather than of its surroundings, built into the models to prove that the invariants can fail:
// each is what a mistake in the daemon could do, and breaks the invariant that it names.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "absl/strings/string_view.h"

namespace dmuon::sim {

enum class Plant : uint8_t {
  kNone,
  kLostFsync,          // the store answers before its write is durable
  kForgottenReached,   // a node whose round broke forgets that it has applied the step
  kJumpedStep,         // a node counts a round twice
  kStaleConnection,    // the coordinator takes calls of a former process of a node
  kStaleDelivery,      // one worker keeps the parameters of the step before
  kSilentRestart,      // a node without state begins with what lies in the arena, though the worker counts on state
  kEagerUpdate,        // a node applies before all nodes' verdicts are known
  kTwoOwners,          // a plan gives one unit to two nodes
  kUnansweredStep,     // a step whose reply was lost is never answered again
  kNoReconnect,        // a node does not look for another attempt after one that failed
  kHalfCheckpoint,     // a node takes its own part for the whole checkpoint
  kLeakedSession,      // the end of a worker is not seen
  kOwnVerdict,         // a node decides by its own verdict whether values go round, as the daemon once did
  kDoubledGradient,    // a gradient that is submitted again is added once more
  kUnawaitedCopy,      // with sync, a step is answered before its copies have arrived
  kUnkeptCopy,         // every other copy that has arrived is not kept
  kSilentRollback,     // the client goes back by itself and does not tell its trainer
  kOwnStep,            // a node stays in a recovery at the step that it has
  kForgottenCopies,    // a node does not say which copies it has of another one's state
  kFreshStart,         // where copies are lost, too, a node begins with what lies in the arena
  kStaleCopy,          // a buddy gives back the copy before the one that was agreed on
  kUnreadyNode,        // nodes do not say that they are ready to go over to another plan
  kKeptPlan,           // a node stays with its plan when all go over to another one
  kLostInHandover,     // a new owner gets another value than the old one had
  kDeafRecovery,       // a node takes part in one recovery and in no other
};

struct PlantInfo {
  Plant plant;
  absl::string_view name;       // "lost-fsync"
  absl::string_view invariant;  // that must catch it: "I3"
  absl::string_view what;
};

// All but kNone.
std::span<const PlantInfo> Plants();
std::optional<Plant> PlantNamed(absl::string_view name);

}  // namespace dmuon::sim
