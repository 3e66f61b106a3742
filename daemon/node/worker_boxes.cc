// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/worker_boxes.h"

#include <algorithm>

namespace dmuon::node {

void WorkerBoxes::Finish() {
  grad_holders_.assign(tensors(), {});
  for (size_t tensor = 0; tensor < tensors(); ++tensor) {
    std::vector<Holders>& holders = grad_holders_[tensor];
    for (uint32_t rank = 0; rank < world_size(); ++rank) {
      const wire::Box& box = shards_[rank][tensor].grad;
      if (box.empty()) continue;
      const auto same = std::find_if(holders.begin(), holders.end(),
                                     [&](const Holders& h) { return h.box == box; });
      if (same != holders.end()) {
        same->ranks.push_back(rank);
      } else {
        holders.push_back({box, {rank}});
      }
    }
  }
}

MissingRanks WorkerBoxes::MissingIn(size_t tensor, uint64_t step) const {
  MissingRanks missing;
  const uint64_t ready = wire::MakeWord(step, wire::WordState::kReady);
  for (uint32_t rank = 0; rank < world_size(); ++rank) {
    if (shards_[rank][tensor].grad.empty()) continue;
    const uint64_t word =
        arenas_[rank]->entry(tensor).grad_word.load(std::memory_order_acquire);
    if (word != ready) missing.push_back(rank);
  }
  return missing;
}

void WorkerBoxes::MarkDelivered(uint64_t step, int64_t rank) const {
  const uint64_t word = wire::MakeWord(step, wire::WordState::kReady);
  for (uint32_t r = 0; r < world_size(); ++r) {
    if ((rank >= 0 && r != rank) || arenas_[r] == nullptr) continue;
    for (size_t tensor = 0; tensor < tensors(); ++tensor) {
      arenas_[r]->entry(tensor).param_word.store(word, std::memory_order_release);
    }
  }
}

}  // namespace dmuon::node
