// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda/graphs.h"

#include <algorithm>
#include <utility>

namespace dmuon::kernels::cuda {

const Graphs::Entry* Graphs::Find(const GraphKey& key) {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return nullptr;
  found->second.used = ++clock_;
  return &found->second;
}

void Graphs::Keep(const GraphKey& key, Graph graph, bool refused) {
  if (!entries_.contains(key) && entries_.size() == kMost) {
    entries_.erase(std::min_element(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) {
      return a.second.used < b.second.used;
    }));
  }
  entries_[key] = {std::move(graph), refused, ++clock_};
}

}  // namespace dmuon::kernels::cuda
