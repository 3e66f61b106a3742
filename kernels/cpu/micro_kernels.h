// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The innermost loop of a matrix product, once for each kind of CPU, and the layout that it reads.
//
// A product out(i, j) = sum over k of left(i, k) * right(j, k) is computed tile by tile, each tile in
// registers. Stretches of both operands are first copied into panels as wide as a tile, which the loop
// reads from front to back.
//
// Every element is one chain of fused multiply-adds in fp32, k rising, whatever the vectors' width: all
// kernels of one precision give the same bits, on every CPU. In bf16 operands are rounded to bf16, their
// products are exact in fp32, and k goes 1, 0, 3, 2, 5, 4, ..., which is the order of VDPBF16PS (Intel
// SDM, volume 2). Where a CPU lacks it, fp32 kernels read rounded operands in that order.
//
// Thread-safe; nothing here holds state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/precision.h"

namespace dmuon::kernels {

// The longest chain: depth of a panel. Longer sums are made of several, so it decides bits. Panels of either
// precision have the same size.
constexpr int64_t Stretch(Precision precision) { return precision == Precision::kFloat32 ? 256 : 512; }

// A matrix to read: element (line, k) is at data[line * line_stride + k * depth_stride], and one of the
// strides is 1.
struct Operand {
  const float* data;
  int64_t line_stride;
  int64_t depth_stride;
};

// What becomes one panel: lines from `line` on, depth from `k` on. The operand has `lines` more of them
// and at least `depth`, at most a stretch, more of k; what a panel is wider or deeper is filled with zeros.
struct PanelSource {
  Operand operand;
  int64_t line, lines;
  int64_t k, depth;
};

// What becomes of a tile of sums: out(r, c) = alpha * sum(r, c) + beta * base(r, c), the latter fused.
struct TileResult {
  float* out;
  int64_t stride;  // from row to row, of `base` too
  float alpha;
  const float* base;  // null: nothing is added. May be `out`
  float beta;
};

struct MicroKernel {
  std::string_view name;
  Precision precision;
  int64_t rows, cols;                // of a tile
  size_t left_floats, right_floats;  // of a panel; panels are aligned to 64 bytes
  int64_t transposed_edge;           // of what `transpose` transposes
  void (*pack_left)(const PanelSource& source, float* panel);
  void (*pack_right)(const PanelSource& source, float* panel);
  void (*multiply)(int64_t depth, const float* left, const float* right, const TileResult& result);
  // Leaves the left half of the columns alone.
  void (*multiply_right_half)(int64_t depth, const float* left, const float* right, const TileResult& result);
  // The same for sums that were written to memory, of `count` elements of a row.
  void (*combine)(int64_t count, const float* sums, const TileResult& result);
  void (*transpose)(const float* from, int64_t from_stride, float* to, int64_t to_stride);
};

// What this CPU can run, the fastest first. Never empty.
std::span<const MicroKernel* const> MicroKernels(Precision precision);

}  // namespace dmuon::kernels
