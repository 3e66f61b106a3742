// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include "daemon/plan/cover.h"

#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "daemon/plan/box_set.h"
#include "wire/error.h"

namespace dmuon::plan {
namespace {

using wire::Box;
using wire::ShardBoxes;

absl::Status CoverageError(const v1::Tensor& tensor, absl::string_view what) {
  return wire::Error(absl::StatusCode::kInvalidArgument, v1::ERROR_REASON_COVERAGE,
                     absl::StrCat("tensor '", tensor.name(), "': ", what));
}

// `verb` says what nobody does with the missing elements.
absl::Status HoleError(const v1::Tensor& tensor, std::span<const HeldBox> boxes, const Box& whole,
                       absl::string_view verb) {
  absl::StatusOr<std::optional<Box>> hole = FindHole(boxes, whole);
  if (!hole.ok()) {
    return wire::Error(hole.status().code(), wire::ReasonOf(hole.status()),
                       absl::StrCat("tensor '", tensor.name(), "': ", hole.status().message()));
  }
  if (!hole->has_value()) return absl::OkStatus();
  return CoverageError(tensor, absl::StrCat((*hole)->ToString(), " of ", whole.ToString(), " is ",
                                            verb, " by no worker"));
}

// Distinct boxes of one tensor, filled anew for each tensor without allocating.
class TensorBoxes {
 public:
  std::span<const HeldBox> Collect(ShardsByRank shards, size_t tensor, Box ShardBoxes::*which) {
    held_.clear();
    for (size_t rank = 0; rank < shards.size(); ++rank) {
      held_.push_back({&(shards[rank][tensor].*which), static_cast<uint32_t>(rank)});
    }
    KeepDistinct(held_);
    return held_;
  }

 private:
  std::vector<HeldBox> held_;
};

absl::Status CheckParams(const v1::Tensor& tensor, const Box& whole,
                         std::span<const HeldBox> boxes) {
  if (boxes.size() == 1 && *boxes.front().box == whole) return absl::OkStatus();
  if (TileExactly(boxes, whole)) return absl::OkStatus();
  return HoleError(tensor, boxes, whole, "wanted");
}

absl::Status CheckGrads(const v1::Tensor& tensor, const Box& whole,
                        std::span<const HeldBox> boxes) {
  if (const auto overlap = FindOverlap(boxes)) {
    const HeldBox& a = boxes[overlap->first];
    const HeldBox& b = boxes[overlap->second];
    return CoverageError(
        tensor, absl::StrCat("gradient boxes of rank ", a.rank, " ", a.box->ToString(),
                             " and rank ", b.rank, " ", b.box->ToString(), " share ",
                             wire::Intersect(*a.box, *b.box).ToString(),
                             "; boxes must be identical or disjoint"));
  }
  const int64_t elements = whole.elements();
  if (CappedVolume(boxes, elements) == elements) return absl::OkStatus();
  return HoleError(tensor, boxes, whole, "submitted");
}

absl::Status CheckReduced(const v1::Tensor& tensor, ShardsByRank shards, size_t index) {
  std::optional<size_t> first;
  for (size_t rank = 0; rank < shards.size(); ++rank) {
    const ShardBoxes& shard = shards[rank][index];
    if (shard.grad.empty()) continue;  // submits nothing, so its flag says nothing
    if (!first) first = rank;
    if (shard.reduced == shards[*first][index].reduced) continue;
    return CoverageError(tensor, absl::StrCat("rank ", *first, " says reduced=",
                                              shard.reduced ? "false" : "true", ", rank ", rank,
                                              " says reduced=", shard.reduced ? "true" : "false"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ProveCoverage(const v1::JobSpec& job, ShardsByRank shards) {
  TensorBoxes collected;
  for (size_t i = 0; i < static_cast<size_t>(job.tensors_size()); ++i) {
    const v1::Tensor& tensor = job.tensors(static_cast<int>(i));
    const Box whole = WholeOf(tensor);
    if (whole.empty()) continue;
    DMUON_RETURN_IF_ERROR(CheckReduced(tensor, shards, i));
    DMUON_RETURN_IF_ERROR(
        CheckParams(tensor, whole, collected.Collect(shards, i, &ShardBoxes::param)));
    DMUON_RETURN_IF_ERROR(
        CheckGrads(tensor, whole, collected.Collect(shards, i, &ShardBoxes::grad)));
  }
  return absl::OkStatus();
}

}  // namespace dmuon::plan
