// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include "daemon/plan/units.h"

#include <cstddef>

#include "daemon/plan/box_set.h"

namespace dmuon::plan {
namespace {

using wire::Box;

void AddRowBlocks(const v1::Tensor& tensor, uint32_t index, const Box& whole,
                  std::vector<Unit>& units) {
  if (tensor.row_blocks().empty()) {
    units.push_back({index, whole});
    return;
  }
  Box block = whole;
  for (const int64_t rows : tensor.row_blocks()) {
    block.length[0] = rows;
    if (rows > 0) units.push_back({index, block});
    block.offset[0] += rows;
  }
}

void AddBoxes(std::vector<HeldBox>& held, uint32_t index, const Box& whole,
              std::vector<Unit>& units) {
  KeepDistinct(held);
  if (!TileExactly(held, whole)) {
    units.push_back({index, whole});
    return;
  }
  for (const HeldBox& piece : held) units.push_back({index, *piece.box});
}

}  // namespace

std::vector<Unit> MakeUnits(const v1::JobSpec& job, ShardsByRank shards) {
  std::vector<Unit> units;
  units.reserve(static_cast<size_t>(job.tensors_size()));
  std::vector<HeldBox> held;
  for (uint32_t i = 0; i < static_cast<uint32_t>(job.tensors_size()); ++i) {
    const v1::Tensor& tensor = job.tensors(static_cast<int>(i));
    const Box whole = WholeOf(tensor);
    if (whole.empty()) continue;
    if (job.groups(static_cast<int>(tensor.group())).has_muon()) {
      AddRowBlocks(tensor, i, whole, units);
      continue;
    }
    held.clear();
    for (uint32_t rank = 0; rank < shards.size(); ++rank) {
      held.push_back({&shards[rank][i].param, rank});
    }
    AddBoxes(held, i, whole, units);
  }
  return units;
}

}  // namespace dmuon::plan
