// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// CUDA graphs of a stream: sequences of calls that were captured once and are launched as one. Those that have not been
// used for longest are forgotten.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace dmuon::kernels::cuda {

// All that the calls of a sequence depend on, but for the contents of memory.
using GraphKey = std::vector<double>;

struct DestroyGraph {
  void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
};
using Graph = std::unique_ptr<CUgraphExec_st, DestroyGraph>;

class Graphs {
 public:
  static constexpr size_t kMost = 32;

  struct Entry {
    Graph graph;           // null: not captured yet
    bool refused = false;  // it cannot be
    uint64_t used = 0;
  };

  // Of a sequence that has been issued before; null otherwise. Until the next call.
  const Entry* Find(const GraphKey& key);
  void Keep(const GraphKey& key, Graph graph, bool refused);
  void Clear() { entries_.clear(); }

 private:
  std::map<GraphKey, Entry> entries_;
  uint64_t clock_ = 0;
};

}  // namespace dmuon::kernels::cuda
