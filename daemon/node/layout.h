// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// How a box's elements lie in a buffer.
#pragma once

#include <cstdint>
#include <vector>

#include "dmuon/v1/tensor.pb.h"
#include "wire/box.h"

namespace dmuon::node {

// Row-major, or, of a unit whose matrices are interleaved, matrix by matrix and each row-major: rows change
// places on their way in and out, so that nothing in between knows of it.
class Layout {
 public:
  Layout() = default;
  explicit Layout(const wire::Box& box) : box_(box) {}
  // Of a unit of `tensor`.
  Layout(const v1::Tensor& tensor, const wire::Box& unit);

  [[nodiscard]] const wire::Box& box() const { return box_; }

  // As wire::ForEachRun of the box and `other`; `a` counts in this layout.
  template <typename Fn>
  void ForEachRun(const wire::Box& other, Fn&& fn) const {
    wire::ForEachRun(box_, other, [&](wire::Run run) {
      if (starts_.empty()) return fn(run);
      while (run.count > 0) {
        const wire::Run first = FirstOf(run);
        fn(first);
        run.a += first.count;
        run.b += first.count;
        run.count -= first.count;
      }
    });
  }

 private:
  // The part of a run of the row-major box that stays in one piece, where it lies.
  [[nodiscard]] wire::Run FirstOf(const wire::Run& run) const;

  wire::Box box_;
  std::vector<int64_t> starts_;  // of the blocks within a period, and its end; empty: row-major
  int64_t repeats_ = 1;
  int64_t cols_ = 0;
};

}  // namespace dmuon::node
