// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "tests/sim/ledger.h"

#include <algorithm>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace dmuon::sim {
namespace {

std::optional<uint32_t> NodeOf(absl::string_view who) {
  uint32_t node = 0;
  if (!absl::ConsumePrefix(&who, "node-") || !absl::SimpleAtoi(who, &node)) return std::nullopt;
  return node;
}

}  // namespace

void StateLedger::Crash(Generation& generation, uint32_t node) const {
  std::vector<Node>& nodes = generation.nodes;
  nodes[node].safe = nodes[node].heard = nodes[node].touched = false;
  nodes[Ward(node)].copied = false;
  generation.may_be_lost |= generation.left;
  for (uint32_t n = 0; n < nodes_; ++n) {
    const Node& buddy = nodes[Buddy(n)];
    generation.may_be_lost |= (!nodes[n].safe && !nodes[n].copied) || (!nodes[n].heard && !buddy.heard);
    generation.is_lost |= generation.acked && !nodes[n].touched && !buddy.touched;
  }
}

void StateLedger::See(const Event& event) {
  if (event.what == What::kAcked) {
    generations_[event.generation].acked = true;
    return;
  }
  if (event.what == What::kPlanned) {  // the coordinator takes all processes for safe until it hears otherwise
    generations_[event.generation].nodes.assign(nodes_, Node{.heard = true});
    return;
  }
  if (event.what == What::kLeft && event.flag) {
    Generation& generation = generations_[event.generation];
    generation.left = true;
    for (const Node& node : generation.nodes) generation.may_be_lost |= !node.safe;
  }
  const std::optional<uint32_t> node = NodeOf(event.who);
  if (!node.has_value()) return;
  if (event.what == What::kStarted) {
    lives_[event.who] = event.life;
    for (auto& [number, generation] : generations_) {
      if (generation.is_lost) generation.started_after.insert(event.who);
    }
  } else if (event.what == What::kCrashed) {
    for (auto& [number, generation] : generations_) {
      if (!generation.nodes.empty()) Crash(generation, *node);
    }
  } else if (event.generation != 0) {
    std::vector<Node>& nodes = generations_[event.generation].nodes;
    nodes.resize(nodes_);
    const bool has = event.what == What::kLoaded || event.what == What::kRecovered || event.what == What::kApplied;
    if (has) nodes[*node].touched = true;
    if (event.what == What::kHeard && lives_[event.who] == event.life) nodes[*node].heard = true;
    if (event.what != What::kSafe) return;
    nodes[*node].safe = true;
    nodes[Ward(*node)].copied = true;
  }
}

bool StateLedger::MayBeLost(uint64_t generation) const {
  const auto found = generations_.find(generation);
  return found != generations_.end() && found->second.may_be_lost;
}

bool StateLedger::MayBeLost(const std::set<uint64_t>& generations) const {
  return std::any_of(generations.begin(), generations.end(), [this](uint64_t generation) { return MayBeLost(generation); });
}

bool StateLedger::IsLost(uint64_t generation) const {
  const auto found = generations_.find(generation);
  return found != generations_.end() && found->second.is_lost;
}

bool StateLedger::CameAfterTheLoss(uint64_t generation, const std::string& who) const {
  const auto found = generations_.find(generation);
  return found != generations_.end() && found->second.started_after.contains(who);
}

}  // namespace dmuon::sim
