// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Copies of a node's masters on another node: a model of daemon/node/replicas.cc, message by message. Of which steps
// they are is the real daemon/node/copy_steps.h.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "daemon/node/copy_steps.h"
#include "dmuon/v1/peer.pb.h"
#include "dmuon/v1/plan.pb.h"
#include "dmuon/v1/tensor.pb.h"
#include "tests/sim/cluster.h"
#include "tests/sim/lane.h"
#include "tests/sim/task.h"
#include "tests/sim/training.h"

namespace dmuon::sim {

class Copies {
 public:
  // `peers` is null on one node, which has no copies.
  Copies(Cluster* cluster, const v1::JobSpec& job, const v1::Plan& plan, uint32_t self, Peers* peers);

  // Each as its namesake in daemon/node/replicas.h. `masters` are of all units; only those of this node count.
  [[nodiscard]] bool on() const { return ward_.has_value(); }
  [[nodiscard]] bool sync() const;
  [[nodiscard]] bool underway() const { return sending_.has_value() && peers_->copies_are_open(); }
  void Begin(uint64_t step);
  void Pack(const Values& masters, bool send);
  void SendRest();
  Task<absl::Status> End(absl::Time until);
  Task<absl::Status> Exchange(uint64_t step, Values masters, absl::Time until);
  void Extend(uint64_t step);
  void ForgetAfter(uint64_t step);
  void Describe(v1::PeerReport& report) const;
  [[nodiscard]] std::optional<Values> GoBack(uint64_t step);
  Task<absl::Status> GiveBack(std::vector<bool> lost, uint64_t step, absl::Time until, Values* masters);

 private:
  struct Pair {
    node::CopySteps steps;
    std::array<Values, 2> values;
  };

  Cluster* const cluster_;
  const uint32_t nodes_;
  const uint32_t self_;
  const uint32_t buddy_;
  const bool sync_;
  Peers* const peers_;
  std::optional<uint32_t> ward_;
  std::vector<bool> owns_nothing_;  // by node: its mails are empty
  Pair kept_;
  Pair copied_;
  std::optional<size_t> sending_;  // of kept_; nullopt: nothing is on its way
  size_t receiving_ = 0;
  uint64_t step_ = 0;
  bool sent_ = false;
};

}  // namespace dmuon::sim
