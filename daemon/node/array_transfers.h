// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Which array goes from which node to which when a state is put together from what the nodes have, and in which rounds.
// Pure: from the same facts all nodes compute the same.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace dmuon::node {

// An array of one of a state's sources, which all nodes number alike.
struct ArrayRef {
  size_t source = 0;
  size_t index = 0;  // of the source's entries
  friend auto operator<=>(const ArrayRef&, const ArrayRef&) = default;
};

struct NeededArray {
  ArrayRef array;
  uint64_t elements = 0;  // fp32
  friend auto operator<=>(const NeededArray&, const NeededArray&) = default;
};

struct ArrayTransfer {
  NeededArray needed;
  uint32_t from = 0;  // nodes, by their numbers in the plan
  uint32_t to = 0;    // the same: is read where it is
  friend bool operator==(const ArrayTransfer&, const ArrayTransfer&) = default;
};

// `needs`: what each node needs, by node; each array once a node. `holders`: who has a source, by source; ascending, and
// somebody where any node needs one of its arrays. A node that has an array takes its own, another one that of the
// first who has it.
std::vector<ArrayTransfer> TransfersOf(std::span<const std::vector<NeededArray>> needs,
                                       std::span<const std::vector<uint32_t>> holders);

// Some elements of a transfer, one after the other.
struct ArrayPiece {
  size_t transfer = 0;
  uint64_t first = 0;
  uint64_t count = 0;
  friend bool operator==(const ArrayPiece&, const ArrayPiece&) = default;
};
using TransferRound = std::vector<ArrayPiece>;

// All elements of the transfers between nodes, in order. In a round no node sends, and none receives, more than `most`
// elements (1 or more). An array that fits goes in one piece; of those that do not, a node is never in the midst of
// sending, or of receiving, more than one.
std::vector<TransferRound> RoundsOf(std::span<const ArrayTransfer> transfers, size_t nodes, uint64_t most);

}  // namespace dmuon::node
