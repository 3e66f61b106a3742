// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/layout.h"

#include <algorithm>
#include <iterator>

#include "wire/validate.h"

namespace dmuon::node {

Layout::Layout(const v1::Tensor& tensor, const wire::Box& unit) : box_(unit) {
  if (!wire::IsInterleaved(tensor)) return;
  starts_.push_back(0);
  for (const int64_t block : tensor.row_blocks()) starts_.push_back(starts_.back() + block);
  repeats_ = tensor.row_repeats();
  cols_ = unit.elements() / (starts_.back() * repeats_);
}

wire::Run Layout::FirstOf(const wire::Run& run) const {
  const int64_t row = run.a / cols_;
  const int64_t col = run.a % cols_;
  const int64_t period = starts_.back();
  const int64_t repeat = row / period;
  const int64_t within = row % period;
  const auto end = std::upper_bound(starts_.begin(), starts_.end(), within);
  const int64_t begin = *std::prev(end);
  const int64_t block = *end - begin;
  // Before it: whole blocks of the matrices before this one, then of this one.
  const int64_t to = begin * repeats_ + repeat * block + (within - begin);
  return {to * cols_ + col, run.b, std::min(run.count, (*end - within) * cols_ - col)};
}

}  // namespace dmuon::node
