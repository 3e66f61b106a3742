// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/array_transfers.h"

#include <algorithm>
#include <utility>

namespace dmuon::node {
namespace {

struct Unfinished {
  size_t transfer;
  uint64_t sent;
};

// Takes as much as goes in this round; `room` is what both ends have left.
uint64_t CountFor(uint64_t left, uint64_t sent, uint64_t room, uint64_t most) {
  if (left <= room) return left;
  // A long one begins where a whole round is free, and goes on before anything else.
  const bool may_split = sent > 0 || (left > most && room == most);
  return may_split ? room : 0;
}

}  // namespace

std::vector<ArrayTransfer> TransfersOf(std::span<const std::vector<NeededArray>> needs,
                                       std::span<const std::vector<uint32_t>> holders) {
  std::vector<ArrayTransfer> transfers;
  for (uint32_t node = 0; node < needs.size(); ++node) {
    for (const NeededArray& needed : needs[node]) {
      const std::vector<uint32_t>& have = holders[needed.array.source];
      const bool here = std::binary_search(have.begin(), have.end(), node);
      transfers.push_back({needed, here ? node : have.front(), node});
    }
  }
  return transfers;
}

std::vector<TransferRound> RoundsOf(std::span<const ArrayTransfer> transfers, size_t nodes, uint64_t most) {
  std::vector<Unfinished> rest;
  for (size_t i = 0; i < transfers.size(); ++i) {
    if (transfers[i].from != transfers[i].to && transfers[i].needed.elements > 0) rest.push_back({i, 0});
  }
  std::vector<TransferRound> rounds;
  while (!rest.empty()) {
    TransferRound& round = rounds.emplace_back();
    std::vector<uint64_t> out(nodes, most);
    std::vector<uint64_t> in(nodes, most);
    std::vector<Unfinished> begun;
    std::vector<Unfinished> others;
    for (auto [i, sent] : rest) {
      const ArrayTransfer& transfer = transfers[i];
      const uint64_t left = transfer.needed.elements - sent;
      const uint64_t count = CountFor(left, sent, std::min(out[transfer.from], in[transfer.to]), most);
      if (count > 0) round.push_back({i, sent, count});
      out[transfer.from] -= count;
      in[transfer.to] -= count;
      if (count < left) (sent + count > 0 ? begun : others).push_back({i, sent + count});
    }
    rest = std::move(begun);
    rest.insert(rest.end(), others.begin(), others.end());
  }
  return rounds;
}

}  // namespace dmuon::node
