// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include "daemon/plan/units.h"

#include <algorithm>
#include <cstddef>

#include "daemon/plan/box_set.h"
#include "wire/validate.h"

namespace dmuon::plan {
namespace {

using wire::Box;

// Of one matrix, or of one of a stack.
void AddRowBlocks(const v1::Tensor& tensor, uint32_t index, Box matrix, std::vector<Unit>& units) {
  if (tensor.row_blocks().empty() || wire::IsInterleaved(tensor)) {
    units.push_back({index, matrix});
    return;
  }
  const auto rows = static_cast<size_t>(wire::RowDimension(tensor));
  for (const int64_t block : tensor.row_blocks()) {
    matrix.length[rows] = block;
    units.push_back({index, matrix});
    matrix.offset[rows] += block;
  }
}

void AddMatrices(const v1::Tensor& tensor, uint32_t index, const Box& whole, std::vector<Unit>& units) {
  const auto stacked = static_cast<size_t>(wire::RowDimension(tensor));  // dimensions
  Box matrix = whole;
  std::fill_n(matrix.length.begin(), stacked, 1);
  while (true) {
    AddRowBlocks(tensor, index, matrix, units);
    size_t d = stacked;
    while (d > 0 && ++matrix.offset[d - 1] == whole.length[d - 1]) matrix.offset[--d] = 0;
    if (d == 0) return;
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
      AddMatrices(tensor, i, whole, units);
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

std::vector<kernels::MatrixShape> MatricesOf(const v1::Tensor& tensor, const Box& unit) {
  const int row_dimension = wire::RowDimension(tensor);
  int64_t cols = 1;
  for (int d = row_dimension + 1; d < unit.ndim; ++d) cols *= unit.length[static_cast<size_t>(d)];
  if (!wire::IsInterleaved(tensor)) {
    return {{unit.ndim == 0 ? 1 : unit.length[static_cast<size_t>(row_dimension)], cols}};
  }
  std::vector<kernels::MatrixShape> matrices;
  for (const int64_t block : tensor.row_blocks()) matrices.push_back({block * tensor.row_repeats(), cols});
  return matrices;
}

}  // namespace dmuon::plan
