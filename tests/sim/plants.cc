// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "tests/sim/plants.h"

#include <array>

namespace dmuon::sim {
namespace {

constexpr std::array kPlants = {
    PlantInfo{Plant::kForgottenReached, "forgotten-reached", "I1",
              "a node whose round broke forgets that it has applied the step, and applies it again"},
    PlantInfo{Plant::kJumpedStep, "jumped-step", "I2", "a node counts a step twice"},
    PlantInfo{Plant::kLostFsync, "lost-fsync", "I3", "a generation is given out before it is on disk"},
    PlantInfo{Plant::kStaleConnection, "stale-connection", "I3",
              "the coordinator takes calls of a node's former process for its present one's"},
    PlantInfo{Plant::kOwnVerdict, "own-verdict", "I3",
              "a node decides by its own verdict, be it of another step, whether values go round"},
    PlantInfo{Plant::kStaleDelivery, "stale-delivery", "I4", "a worker keeps one parameter of the step before"},
    PlantInfo{Plant::kSilentRestart, "silent-restart", "I5",
              "a daemon without state begins with what lies in the arena of a worker that counts on state"},
    PlantInfo{Plant::kEagerUpdate, "eager-update", "I6", "state changes before all verdicts are known"},
    PlantInfo{Plant::kTwoOwners, "two-owners", "I8", "two nodes own the same unit"},
    PlantInfo{Plant::kUnansweredStep, "unanswered-step", "I9", "a step that was applied is never answered again"},
    PlantInfo{Plant::kNoReconnect, "no-reconnect", "I10", "a node whose connections broke asks for no new attempt"},
    PlantInfo{Plant::kHalfCheckpoint, "half-checkpoint", "I11", "a node takes its own part for the whole checkpoint"},
    PlantInfo{Plant::kLeakedSession, "leaked-session", "I12", "the end of a session is forgotten"},
    PlantInfo{Plant::kDoubledGradient, "doubled-gradient", "I13", "a worker's gradient is added twice"},
    PlantInfo{Plant::kUnawaitedCopy, "unawaited-copy", "I15",
              "with sync replication a step is answered before its copies have arrived"},
    PlantInfo{Plant::kUnkeptCopy, "unkept-copy", "I16", "a node does not keep every other copy that has arrived"},
    PlantInfo{Plant::kSilentRollback, "silent-rollback", "I16", "a client goes back by itself and tells nobody"},
    PlantInfo{Plant::kOwnStep, "own-step", "I17", "a node stays at its own step while the others recover"},
    PlantInfo{Plant::kForgottenCopies, "forgotten-copies", "I18",
              "a node does not say which copies of another one's state it has"},
    PlantInfo{Plant::kFreshStart, "fresh-start", "I18",
              "a node whose buddy is lost, too, begins with what lies in the arena"},
    PlantInfo{Plant::kStaleCopy, "stale-copy", "I19", "a buddy gives back an older copy than was agreed on"},
    PlantInfo{Plant::kUnreadyNode, "unready-node", "I22", "a node is never ready to go over to another plan"},
    PlantInfo{Plant::kKeptPlan, "kept-plan", "I20", "a node stays with its plan when all go over to another one"},
    PlantInfo{Plant::kLostInHandover, "lost-in-handover", "I21", "a new owner gets another value than the old one had"},
    PlantInfo{Plant::kDeafRecovery, "deaf-recovery", "I10", "a node takes part in one recovery and in no other"},
};

}  // namespace

std::span<const PlantInfo> Plants() { return kPlants; }

std::optional<Plant> PlantNamed(absl::string_view name) {
  for (const PlantInfo& info : kPlants) {
    if (info.name == name) return info.plant;
  }
  return std::nullopt;
}

}  // namespace dmuon::sim
