// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The functions of a MicroKernel, written once over a set of vector instructions. Files that include this
// are compiled for CPUs that not everybody has. So everything here is theirs alone, and they use no
// function of the standard library that might be shared with files for all CPUs.
//
// `Isa` has, beside the sizes that are used below:
//   Vector              kLanes units of 32 bits: a fp32 number, or two bf16 of successive depths
//   Sum                 kLanes fp32 numbers
//   AlongDepth(from)    units of one line from its contiguous elements
//   AlongLines(from, depth_stride, u)
//                       unit u of kLanes lines, contiguous for each depth
//   Transpose(v)        kLanes vectors as a matrix
//   Load, Store, Zero, Broadcast, MultiplyAdd and the other moves and sums that are used below
#pragma once

#include <cstdint>

#include "kernels/cpu/micro_kernels.h"

// A tile's sums stay in registers only when the loops over them are unrolled.
#ifdef __clang__
#define DMUON_UNROLL _Pragma("unroll")
#else
#define DMUON_UNROLL _Pragma("GCC unroll 32")
#endif

namespace dmuon::kernels {
namespace {

// A line of a left panel; one cache line more than its units, lest all lines meet in one set.
template <class Isa>
constexpr int64_t kLeftStride = Stretch(Isa::kPrecision) / Isa::kDepthsPerUnit + 16;

template <class Isa>
constexpr int64_t kCols = Isa::kVectors * Isa::kLanes;

// kLanes lines by kLanes units of a source.
template <class Isa>
struct Block {
  static constexpr int64_t kDepth = Isa::kLanes * Isa::kDepthsPerUnit;

  // `whole`: so many lines must be there to be read in place. What is not there becomes zeros.
  Block(const PanelSource& source, int64_t line, int64_t k, int64_t whole) {
    const Operand& o = source.operand;
    from = o.data + (source.line + line) * o.line_stride + (source.k + k) * o.depth_stride;
    line_stride = o.line_stride;
    depth_stride = o.depth_stride;
    const int64_t lines = source.lines - line;
    const int64_t depth = source.depth - k;
    if (lines >= whole && depth >= kDepth) return;
    for (int64_t r = 0; r < Isa::kLanes; ++r) {
      for (int64_t d = 0; d < kDepth; ++d) {
        copy[r * kDepth + d] = r < lines && d < depth ? from[r * line_stride + d * depth_stride] : 0.0F;
      }
    }
    from = copy;
    line_stride = kDepth;
    depth_stride = 1;
  }

  alignas(64) float copy[Isa::kLanes * kDepth];
  const float* from;
  int64_t line_stride, depth_stride;
};

// Left: a line after the other. A tile needs no more lines than its rows.
template <class Isa>
void PackLeft(const PanelSource& source, float* panel) {
  constexpr int64_t kLanes = Isa::kLanes;
  for (int64_t r = 0; r < Isa::kRows; r += kLanes) {
    const int64_t needed = Isa::kRows - r < kLanes ? Isa::kRows - r : kLanes;
    for (int64_t k = 0, u = 0; k < source.depth; k += Block<Isa>::kDepth, u += kLanes) {
      const Block<Isa> block(source, r, k, source.operand.depth_stride == 1 ? needed : kLanes);
      float* to = panel + r * kLeftStride<Isa> + u;
      if (block.depth_stride == 1) {
        for (int64_t i = 0; i < needed; ++i) {
          Isa::Store(to + i * kLeftStride<Isa>, Isa::AlongDepth(block.from + i * block.line_stride));
        }
        continue;
      }
      typename Isa::Vector v[kLanes];
      DMUON_UNROLL
      for (int64_t i = 0; i < kLanes; ++i) v[i] = Isa::AlongLines(block.from, block.depth_stride, i);
      Isa::Transpose(v);
      for (int64_t i = 0; i < needed; ++i) Isa::Store(to + i * kLeftStride<Isa>, v[i]);
    }
  }
}

// Right: all lines of a unit of depth, then those of the next.
template <class Isa>
void PackRight(const PanelSource& source, float* panel) {
  constexpr int64_t kLanes = Isa::kLanes;
  for (int64_t k = 0, u = 0; k < source.depth; k += Block<Isa>::kDepth, u += kLanes) {
    for (int64_t c = 0; c < kCols<Isa>; c += kLanes) {
      const Block<Isa> block(source, c, k, kLanes);
      typename Isa::Vector v[kLanes];
      if (block.depth_stride == 1) {
        DMUON_UNROLL
        for (int64_t i = 0; i < kLanes; ++i) {
          v[i] = Isa::AlongDepth(block.from + i * block.line_stride);
        }
        Isa::Transpose(v);
      } else {
        DMUON_UNROLL
        for (int64_t i = 0; i < kLanes; ++i) v[i] = Isa::AlongLines(block.from, block.depth_stride, i);
      }
      DMUON_UNROLL
      for (int64_t i = 0; i < kLanes; ++i) Isa::Store(panel + (u + i) * kCols<Isa> + c, v[i]);
    }
  }
}

// From the column of vector kFirst on.
template <class Isa, int64_t kFirst>
void MultiplyTile(int64_t depth, const float* left, const float* right, const TileResult& result) {
  constexpr int64_t kRows = Isa::kRows, kVectors = Isa::kVectors, kLanes = Isa::kLanes;
  typename Isa::Sum sum[kRows][kVectors];
  DMUON_UNROLL
  for (int64_t r = 0; r < kRows; ++r) {
    DMUON_UNROLL
    for (int64_t v = kFirst; v < kVectors; ++v) sum[r][v] = Isa::Zero();
  }
  const int64_t units = Isa::Units(depth);
  for (int64_t u = 0; u < units; ++u) {
    typename Isa::Vector b[kVectors];
    DMUON_UNROLL
    for (int64_t v = kFirst; v < kVectors; ++v) b[v] = Isa::Load(right + u * kCols<Isa> + v * kLanes);
    DMUON_UNROLL
    for (int64_t r = 0; r < kRows; ++r) {
      const typename Isa::Vector a = Isa::Broadcast(left + r * kLeftStride<Isa> + u);
      DMUON_UNROLL
      for (int64_t v = kFirst; v < kVectors; ++v) sum[r][v] = Isa::MultiplyAdd(a, b[v], sum[r][v]);
    }
  }
  const TileResult to = result;
  DMUON_UNROLL
  for (int64_t r = 0; r < kRows; ++r) {
    DMUON_UNROLL
    for (int64_t v = kFirst; v < kVectors; ++v) {
      const int64_t at = r * to.stride + v * kLanes;
      const typename Isa::Sum scaled = Isa::Scale(to.alpha, sum[r][v]);
      Isa::StoreSum(to.out + at, to.base == nullptr ? scaled : Isa::AddScaled(to.beta, to.base + at, scaled));
    }
  }
}

// Vectorised for the CPU of the file.
template <class Isa>
void Combine(int64_t count, const float* sums, const TileResult& result) {
  const TileResult to = result;
  for (int64_t i = 0; i < count; ++i) {
    const float scaled = to.alpha * sums[i];
    to.out[i] = to.base == nullptr ? scaled : __builtin_fmaf(to.beta, to.base[i], scaled);
  }
}

template <class Isa>
void TransposeBlock(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
  typename Isa::Vector v[Isa::kLanes];
  DMUON_UNROLL
  for (int64_t i = 0; i < Isa::kLanes; ++i) v[i] = Isa::LoadAnywhere(from + i * from_stride);
  Isa::Transpose(v);
  DMUON_UNROLL
  for (int64_t i = 0; i < Isa::kLanes; ++i) Isa::StoreAnywhere(to + i * to_stride, v[i]);
}

template <class Isa>
constexpr MicroKernel MakeMicroKernel(std::string_view name) {
  return {.name = name,
          .precision = Isa::kPrecision,
          .rows = Isa::kRows,
          .cols = kCols<Isa>,
          .left_floats = static_cast<size_t>(Isa::kRows * kLeftStride<Isa>),
          .right_floats = static_cast<size_t>(Stretch(Isa::kPrecision) / Isa::kDepthsPerUnit * kCols<Isa>),
          .transposed_edge = Isa::kLanes,
          .pack_left = PackLeft<Isa>,
          .pack_right = PackRight<Isa>,
          .multiply = MultiplyTile<Isa, 0>,
          .multiply_right_half = MultiplyTile<Isa, Isa::kVectors / 2>,
          .combine = Combine<Isa>,
          .transpose = TransposeBlock<Isa>};
}

}  // namespace
}  // namespace dmuon::kernels
