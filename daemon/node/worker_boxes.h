// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Where the workers of a job on this node have what: their boxes, and their arenas while they are
// attached.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dmuon/v1/tensor.pb.h"
#include "wire/arena.h"
#include "wire/box.h"
#include "wire/validate.h"

namespace dmuon::node {

// Ranks whose gradient of one tensor is missing in a step; empty for nearly all.
using MissingRanks = std::vector<uint32_t>;

class WorkerBoxes {
 public:
  WorkerBoxes(const v1::JobSpec* job, uint32_t world_size)
      : job_(job), shards_(world_size), arenas_(world_size, nullptr), attachments_(world_size, 0) {}

  // Once a rank of this node, in rank order, before anything else.
  void SetShards(uint32_t rank, std::vector<wire::ShardBoxes> shards) {
    shards_[rank] = std::move(shards);
    ranks_.push_back(rank);
  }

  // The arena of an attached worker, or null while it is away. Must outlive its use here.
  void SetArena(uint32_t rank, const wire::Arena* arena) {
    arenas_[rank] = arena;
    ++attachments_[rank];
  }

  // Of the workers of this node, ascending. Only these have shards and arenas.
  [[nodiscard]] const std::vector<uint32_t>& ranks() const { return ranks_; }
  [[nodiscard]] const wire::Arena* arena(uint32_t rank) const { return arenas_[rank]; }
  [[nodiscard]] const wire::ShardBoxes& shard(uint32_t rank, size_t tensor) const {
    return shards_[rank][tensor];
  }
  [[nodiscard]] const std::vector<wire::ShardBoxes>& shards(uint32_t rank) const {
    return shards_[rank];
  }
  [[nodiscard]] const v1::Tensor& tensor(size_t tensor) const {
    return job_->tensors(static_cast<int>(tensor));
  }
  [[nodiscard]] size_t tensors() const { return static_cast<size_t>(job_->tensors_size()); }

  // Ranks that hold a part of the tensor's gradient and have not marked it ready for `step`.
  [[nodiscard]] MissingRanks MissingIn(size_t tensor, uint64_t step) const;
  // Whether the worker is attached and has marked its gradient as ready for `step`.
  [[nodiscard]] bool IsReady(uint32_t rank, size_t tensor, uint64_t step) const;
  [[nodiscard]] bool AllAttached() const;
  // By rank: changes when a worker submits a gradient of a step again, and when another arena takes the
  // place of its.
  struct SubmissionStamp {
    uint64_t attachment = 0;
    uint64_t resubmissions = 0;
    bool operator==(const SubmissionStamp&) const = default;
  };
  [[nodiscard]] std::vector<SubmissionStamp> SubmissionStamps() const;
  // Marks one tensor as delivered for `step`, to all workers of this node; who waits for it wakes.
  void MarkTensor(size_t tensor, uint64_t step) const;
  // Marks every tensor of one worker (or of all, rank < 0) as delivered for `step`.
  void MarkDelivered(uint64_t step, int64_t rank = -1) const;
  // Forgets which gradients were submitted, while all workers of this node wait.
  void ClearGradients() const;
  // Tells all workers of this node that `step` is applied, on every node, and what became of it.
  void Answer(uint64_t step, const wire::StepAnswer& answer) const;
  // Tells one worker that the answer to its RPC says what became of `step`.
  void Refer(uint32_t rank, uint64_t step) const;

 private:
  const v1::JobSpec* job_;
  std::vector<uint32_t> ranks_;
  std::vector<std::vector<wire::ShardBoxes>> shards_;  // [rank][tensor]
  std::vector<const wire::Arena*> arenas_;             // [rank]
  std::vector<uint64_t> attachments_;                  // [rank]: times that its arena was set
};

}  // namespace dmuon::node
