// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Where the gradient of a unit comes from: its pieces, and for each the nodes that have it. Sums are
// always taken in the order of nodes, and on a node in the order of ranks, in fp32.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "daemon/node/layout.h"
#include "daemon/node/messages.h"
#include "daemon/node/worker_boxes.h"
#include "kernels/backend.h"
#include "wire/box.h"

namespace dmuon::node {

// One node's part of a piece: from its workers' arenas on this node, from a message of another.
struct GradientTerm {
  uint32_t node = 0;
  std::vector<uint32_t> ranks = {};  // of this node
  const Message* message = nullptr;  // of another node, with
  const Piece* piece = nullptr;      // the piece in it
};

struct GradientSource {
  wire::Box box;
  std::vector<GradientTerm> terms;  // by node
  uint32_t copies = 0;              // gradients that are summed; the mean counts
};

// The sources of a unit that this node owns, by box. `arrivals` are the pieces of its other nodes.
struct Arrival {
  const Message* message = nullptr;
  const Piece* piece = nullptr;
};
std::vector<GradientSource> SourcesOf(uint32_t tensor, const wire::Box& unit, uint32_t self,
                                      const WorkerBoxes& workers,
                                      std::span<const Arrival> arrivals);

// Workers of this node that hold exactly the piece `piece` of the unit, in rank order.
std::vector<uint32_t> RanksOf(uint32_t tensor, const wire::Box& unit, const wire::Box& piece,
                              const WorkerBoxes& workers);

// The sum of what `ranks` hold of `piece` into `to`, which is laid out as `layout`. Ranks in
// `missing` count as zeros. Of a reduced gradient the first rank that is not missing is enough.
void SumRanks(uint32_t tensor, const wire::Box& piece, std::span<const uint32_t> ranks,
              const MissingRanks& missing, const WorkerBoxes& workers, kernels::Backend& backend,
              const Layout& layout, std::span<float> to);

kernels::DType ToKernel(v1::DType dtype);

}  // namespace dmuon::node
