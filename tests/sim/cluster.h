// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What the processes of one schedule share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "dmuon/v1/tensor.pb.h"
#include "tests/sim/history.h"
#include "tests/sim/network.h"
#include "tests/sim/plants.h"
#include "tests/sim/world.h"

namespace dmuon::sim {

class CoordinatorProcess;
class NodeProcess;

// About a tenth of the daemon's defaults, and in their order.
struct Timeouts {
  absl::Duration lease = absl::Seconds(2);
  absl::Duration coordinator_call = absl::Seconds(1);
  absl::Duration attach = absl::Seconds(1);
  absl::Duration attempt = absl::Seconds(1);  // to connect
  absl::Duration step = absl::Seconds(6);     // how long workers and nodes wait for each other
  absl::Duration client_call = absl::Seconds(8);
  absl::Duration client_attempt = absl::Seconds(1);
  absl::Duration orphan = absl::Seconds(60);
};

struct Cluster {
  Cluster(uint64_t seed, bool trace, Plant planted) : world(seed, trace), network(&world), plant(planted) {}

  void Record(Event event) {
    event.at = world.now();
    history.push_back(std::move(event));
  }
  [[nodiscard]] bool Planted(Plant which) const { return plant == which; }
  // Whether a planted fault comes true at this one of its chances.
  [[nodiscard]] bool Strikes(Plant which) { return Planted(which) && world.random.Chance(0.5); }
  // As daemon/node/engine.h: a little before the caller's deadline, so that an error that says why comes in time.
  [[nodiscard]] absl::Time AnswerBy(absl::Duration budget) const {
    return world.now() + std::max(budget / 2, budget - absl::Milliseconds(250));
  }

  World world;
  Network network;
  const Plant plant;
  const Timeouts timeouts;
  History history;
  uint64_t last_session = 0;
  double no_memory = 0.0;  // chance that a node has no room for the state of a successor
  CoordinatorProcess* coordinator = nullptr;
  std::vector<NodeProcess*> nodes;
  std::vector<std::weak_ptr<void>> addresses;  // where nodes listen for each other
};

}  // namespace dmuon::sim
