// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Which faults a schedule has, from its seed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tests/sim/network.h"
#include "tests/sim/world.h"

namespace dmuon::sim {

enum class FaultKind : uint8_t {
  kCoordinatorCrash,
  kNodeCrash,
  kPowerLoss,
  kWorkerCrash,
  kCoordinatorFreeze,
  kNodeFreeze,
  kWorkerFreeze,
  kPartition,  // two ways; the coordinator is the process after the last node
  kOneWay,
  kReset,      // of the connections between nodes
  kSlowDisk,
};

struct Fault {
  FaultKind kind = FaultKind::kReset;
  absl::Duration at;
  absl::Duration lasts;  // until it restarts, wakes, heals
  uint32_t a = 0;        // node or worker
  uint32_t b = 0;        // the other end of a partition

  [[nodiscard]] std::string Describe() const;
};

// What may happen at all.
struct FaultMenu {
  bool loss = true;  // and duplicates
  bool delay = true;
  bool crash = true;
  bool freeze = true;
  bool partition = true;
  bool disk = true;
  bool drain = true;     // operators that drain nodes, and think better of it
  bool mistakes = true;  // of trainers: a forgotten gradient, other hyper-parameters

  // From "loss,crash,..."; "none", "all". INVALID_ARGUMENT names the word.
  static absl::StatusOr<FaultMenu> Parse(absl::string_view text);
};

// An operator's `dmuonctl drain` or `undrain`.
struct DrainCall {
  absl::Duration at;
  uint32_t node = 0;
  bool undo = false;
};

struct FaultPlan {
  NetworkOptions network;
  double mistakes = 0.0;
  std::vector<Fault> faults;
  std::vector<DrainCall> drains;
  double no_memory = 0.0;  // chance that a node has no room to go over to another plan
  absl::Duration calm;  // when the last one is over
};

// More of what replication is there for: nodes that lose their state, perhaps two at about the same time.
void AddNodeCrashes(const FaultMenu& menu, uint32_t nodes, absl::Duration activity, Random& random, FaultPlan& plan);

// Of two nodes or more. Never all of them at once.
void AddDrains(const FaultMenu& menu, uint32_t nodes, absl::Duration activity, Random& random, FaultPlan& plan);

FaultPlan DrawFaults(const FaultMenu& menu, uint32_t nodes, uint32_t workers, absl::Duration activity, Random& random);

}  // namespace dmuon::sim
