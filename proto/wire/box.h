// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Axis-aligned pieces of row-major tensors, and walks over what two of them share.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "dmuon/v1/tensor.pb.h"

namespace dmuon::wire {

inline constexpr int kMaxDims = 8;
inline constexpr int64_t kMaxLength = int64_t{1} << 31;  // of one dimension

// A box inside a tensor. Built by ParseBox, so offsets and lengths are within the tensor and no
// product below overflows.
struct Box {
  int ndim = 0;
  std::array<int64_t, kMaxDims> offset{};
  std::array<int64_t, kMaxDims> length{};

  [[nodiscard]] int64_t elements() const;
  [[nodiscard]] bool empty() const { return elements() == 0; }
  // "[0:3, 16:32]"
  [[nodiscard]] std::string ToString() const;

  friend bool operator==(const Box&, const Box&) = default;
  // By offsets, then by lengths: the order of units in a plan.
  friend auto operator<=>(const Box&, const Box&) = default;
};

// The whole of a tensor of `shape` (at most kMaxDims dimensions).
Box WholeBox(std::span<const int64_t> shape);

// INVALID_ARGUMENT/INVALID_FIELD, beginning with `what`, when the box has not one entry a dimension,
// a negative number, or reaches past the shape.
absl::StatusOr<Box> ParseBox(const v1::Box& box, std::span<const int64_t> shape,
                             absl::string_view what);
v1::Box ToProto(const Box& box);
// Of a box that has been checked. At most kMaxDims dimensions.
Box FromProto(const v1::Box& box);

// Empty (length 0 in some dimension) when they share nothing. Both of one tensor.
Box Intersect(const Box& a, const Box& b);

// A stretch of elements that lies contiguous in both boxes' own row-major buffers.
struct Run {
  int64_t a;      // index of its first element in the buffer of box `a`
  int64_t b;      // and in that of box `b`
  int64_t count;  // elements
};

// Calls fn(const Run&) for each longest common run of `a` and `b`, in row-major order of the tensor.
template <typename Fn>
void ForEachRun(const Box& a, const Box& b, Fn&& fn);

// Product without overflow. INVALID_ARGUMENT naming `what` and the factors otherwise, or for a
// negative factor.
absl::StatusOr<int64_t> CheckedProduct(std::span<const int64_t> factors, absl::string_view what);

// ---------------------------------------------------------------------------------------------

template <typename Fn>
void ForEachRun(const Box& a, const Box& b, Fn&& fn) {
  const Box shared = Intersect(a, b);
  if (shared.empty()) return;
  // Dimensions [split, ndim) are whole in both boxes but for `split` itself: one run covers them.
  int split = shared.ndim - 1;
  while (split > 0 && shared.length[split] == a.length[split] &&
         shared.length[split] == b.length[split]) {
    --split;
  }
  split = split < 0 ? 0 : split;
  int64_t run = 1;
  for (int d = split; d < shared.ndim; ++d) run *= shared.length[d];
  std::array<int64_t, kMaxDims> at = shared.offset;
  while (true) {
    int64_t index_a = 0;
    int64_t index_b = 0;
    for (int d = 0; d < shared.ndim; ++d) {
      index_a = index_a * a.length[d] + (at[d] - a.offset[d]);
      index_b = index_b * b.length[d] + (at[d] - b.offset[d]);
    }
    fn(Run{index_a, index_b, run});
    int d = split - 1;
    while (d >= 0 && ++at[d] == shared.offset[d] + shared.length[d]) {
      at[d] = shared.offset[d];
      --d;
    }
    if (d < 0) return;
  }
}

}  // namespace dmuon::wire
