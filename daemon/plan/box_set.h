// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Geometry of the boxes that many workers hold of one tensor: which are distinct, whether two of
// them overlap, where they leave a hole. Nothing here knows names or ranks' meaning.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "dmuon/v1/tensor.pb.h"
#include "wire/box.h"

namespace dmuon::plan {

// All of a tensor.
wire::Box WholeOf(const v1::Tensor& tensor);

// Whether two boxes of one tensor, neither of them empty, share an element.
bool Overlap(const wire::Box& a, const wire::Box& b);

// A box and the first rank that holds it. Points into the caller's boxes.
struct HeldBox {
  const wire::Box* box;
  uint32_t rank;
};

// The distinct non-empty boxes of `held`, sorted by box; of equal ones the lowest rank stays.
// Sorts in place; linear when all boxes are equal.
void KeepDistinct(std::vector<HeldBox>& held);

// Sum of elements, not above `cap + 1` (boxes may overlap, and the true sum may not fit a number).
int64_t CappedVolume(std::span<const HeldBox> boxes, int64_t cap);

// Two boxes that share an element, as indices into `boxes`, which are distinct and not empty.
// Sorts by the dimension with most distinct offsets and compares only what overlaps there: n log n
// for slabs and close to it for grids.
std::optional<std::pair<size_t, size_t>> FindOverlap(std::span<const HeldBox> boxes);

// A box of `whole` that none of `boxes` touches, or nothing when they cover it; overlaps are fine.
// Cuts every box out of what is left. RESOURCE_EXHAUSTED/LIMIT when what is left falls into more
// than kMaxPieces pieces, which no sharding in use comes near; this also bounds the time.
inline constexpr size_t kMaxPieces = 4'096;
absl::StatusOr<std::optional<wire::Box>> FindHole(std::span<const HeldBox> boxes,
                                                  const wire::Box& whole);

// True when `boxes` (distinct, not empty) cover `whole` and no two overlap.
bool TileExactly(std::span<const HeldBox> boxes, const wire::Box& whole);

}  // namespace dmuon::plan
