// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Where the state of a replicated job is, as its history tells: which nodes have theirs, and which have their ward's.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/sim/history.h"

namespace dmuon::sim {

class StateLedger {
 public:
  // Nodes are "node-0", "node-1", ...; each one's buddy is the next.
  explicit StateLedger(uint32_t nodes) : nodes_(nodes) {}

  void See(const Event& event);

  // A node and its buddy were lost before a recovery was known to be over, here or at the coordinator; or one was lost
  // when a worker had left in order, or before it was back: that worker will not do again what has to be.
  [[nodiscard]] bool MayBeLost(uint64_t generation) const;
  [[nodiscard]] bool MayBeLost(const std::set<uint64_t>& generations) const;  // one of them
  // There is no process any more that has ever had a part of the state, after steps were acknowledged.
  [[nodiscard]] bool IsLost(uint64_t generation) const;
  // Whether `who` started after that.
  [[nodiscard]] bool CameAfterTheLoss(uint64_t generation, const std::string& who) const;

 private:
  struct Node {
    bool safe = false;     // has its state, and that is known to the others
    bool copied = false;   // its buddy has all of it
    bool heard = false;    // the coordinator knows that it has its state
    bool touched = false;  // its process has had state, or copies
  };
  struct Generation {
    std::vector<Node> nodes;
    bool acked = false;
    bool left = false;  // a worker, in order
    bool may_be_lost = false;
    bool is_lost = false;
    std::set<std::string> started_after;
  };

  [[nodiscard]] uint32_t Buddy(uint32_t node) const { return (node + 1) % nodes_; }
  [[nodiscard]] uint32_t Ward(uint32_t node) const { return (node + nodes_ - 1) % nodes_; }
  void Crash(Generation& generation, uint32_t node) const;

  const uint32_t nodes_;
  std::map<std::string, uint64_t> lives_;
  std::map<uint64_t, Generation> generations_;
};

}  // namespace dmuon::sim
