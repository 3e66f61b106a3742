// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include "daemon/plan/box_set.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "wire/error.h"

namespace dmuon::plan {
namespace {

using wire::Box;

int64_t End(const Box& box, size_t d) { return box.offset[d] + box.length[d]; }

size_t CountDistinctOffsets(std::span<const HeldBox> boxes, size_t d) {
  std::vector<int64_t> offsets;
  offsets.reserve(boxes.size());
  for (const HeldBox& held : boxes) offsets.push_back(held.box->offset[d]);
  std::sort(offsets.begin(), offsets.end());
  return static_cast<size_t>(std::unique(offsets.begin(), offsets.end()) - offsets.begin());
}

size_t BestSweepDimension(std::span<const HeldBox> boxes) {
  size_t best = 0;
  size_t most = 0;
  for (size_t d = 0; d < static_cast<size_t>(boxes.front().box->ndim); ++d) {
    const size_t distinct = CountDistinctOffsets(boxes, d);
    if (distinct > most) {
      most = distinct;
      best = d;
    }
  }
  return best;
}

// Appends what `piece` keeps when `cut`, which overlaps it, is taken out: at most two slabs a
// dimension.
void Subtract(Box piece, const Box& cut, std::vector<Box>& rest) {
  for (size_t d = 0; d < static_cast<size_t>(piece.ndim); ++d) {
    if (piece.offset[d] < cut.offset[d]) {
      Box below = piece;
      below.length[d] = cut.offset[d] - piece.offset[d];
      rest.push_back(below);
      piece.length[d] -= below.length[d];
      piece.offset[d] = cut.offset[d];
    }
    if (End(piece, d) > End(cut, d)) {
      Box above = piece;
      above.offset[d] = End(cut, d);
      above.length[d] = End(piece, d) - End(cut, d);
      rest.push_back(above);
      piece.length[d] -= above.length[d];
    }
  }
}

}  // namespace

Box WholeOf(const v1::Tensor& tensor) {
  return wire::WholeBox({tensor.shape().data(), static_cast<size_t>(tensor.shape_size())});
}

bool Overlap(const Box& a, const Box& b) {
  for (size_t d = 0; d < static_cast<size_t>(a.ndim); ++d) {
    if (a.offset[d] >= End(b, d) || b.offset[d] >= End(a, d)) return false;
  }
  return true;
}

void KeepDistinct(std::vector<HeldBox>& held) {
  std::erase_if(held, [](const HeldBox& h) { return h.box->empty(); });
  if (held.empty()) return;
  const auto equal = [](const HeldBox& a, const HeldBox& b) { return *a.box == *b.box; };
  // Replicas are the common case: no sort for them.
  const bool one_box = std::all_of(held.begin(), held.end(),
                                   [&](const HeldBox& h) { return equal(h, held.front()); });
  if (!one_box) {
    std::stable_sort(held.begin(), held.end(),
                     [](const HeldBox& a, const HeldBox& b) { return *a.box < *b.box; });
  }
  held.erase(std::unique(held.begin(), held.end(), equal), held.end());
}

int64_t CappedVolume(std::span<const HeldBox> boxes, int64_t cap) {
  int64_t sum = 0;
  for (const HeldBox& held : boxes) sum = std::min(sum + held.box->elements(), cap + 1);
  return sum;
}

std::optional<std::pair<size_t, size_t>> FindOverlap(std::span<const HeldBox> boxes) {
  if (boxes.size() < 2) return std::nullopt;
  // Distinct boxes of a tensor without dimensions do not exist, so there is a dimension to sweep.
  const size_t sweep = BestSweepDimension(boxes);
  std::vector<size_t> order(boxes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return boxes[a].box->offset[sweep] < boxes[b].box->offset[sweep];
  });
  std::vector<size_t> active;
  for (const size_t next : order) {
    const Box& box = *boxes[next].box;
    std::erase_if(active, [&](size_t a) { return End(*boxes[a].box, sweep) <= box.offset[sweep]; });
    for (const size_t a : active) {
      if (Overlap(*boxes[a].box, box)) return std::pair(std::min(a, next), std::max(a, next));
    }
    active.push_back(next);
  }
  return std::nullopt;
}

absl::StatusOr<std::optional<Box>> FindHole(std::span<const HeldBox> boxes, const Box& whole) {
  std::vector<Box> left;
  if (!whole.empty()) left.push_back(whole);
  for (const HeldBox& held : boxes) {
    if (held.box->empty()) continue;
    // Backwards, so that neither the pieces that are appended nor the one that takes a freed place
    // (it was looked at before) are missed.
    for (size_t i = left.size(); i-- > 0;) {
      if (!Overlap(left[i], *held.box)) continue;
      const Box piece = std::exchange(left[i], left.back());
      left.pop_back();
      Subtract(piece, *held.box, left);
    }
    if (left.size() > kMaxPieces) {
      return wire::Error(absl::StatusCode::kResourceExhausted, v1::ERROR_REASON_LIMIT,
                         absl::StrCat("boxes cut the tensor into ", left.size(),
                                      " pieces; at most ", kMaxPieces));
    }
  }
  if (left.empty()) return std::nullopt;
  return *std::min_element(left.begin(), left.end());
}

bool TileExactly(std::span<const HeldBox> boxes, const Box& whole) {
  const int64_t elements = whole.elements();
  return CappedVolume(boxes, elements) == elements && !FindOverlap(boxes).has_value();
}

}  // namespace dmuon::plan
