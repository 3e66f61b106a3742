// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A state that a job is to be restored from, whatever the job ran on when it was saved, and wherever its arrays lie.
// Opening it proves, by what the sources say of themselves, that they have every element of the job's units, once, and
// nothing that the job has no place for. From the same sources all nodes find the same.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/checkpoint/entry.h"
#include "daemon/node/array_transfers.h"
#include "daemon/node/restore_source.h"
#include "daemon/node/unit_values.h"
#include "dmuon/v1/plan.pb.h"
#include "dmuon/v1/tensor.pb.h"

namespace dmuon::node {

class SavedJob {
 public:
  // `name`: as people call the state, "checkpoint 'best'". All sources have arrays; those that are not here tell of them
  // only. FAILED_PRECONDITION/CHECKPOINT naming the tensor when the state does not fit the job; DATA_LOSS naming what leaves
  // a hole or overlaps. `job` and `plan` outlive it.
  static absl::StatusOr<std::unique_ptr<SavedJob>> Open(std::string name, uint64_t step, std::vector<SavedSource> sources,
                                                        const v1::JobSpec& job, const v1::Plan& plan);

  [[nodiscard]] uint64_t step() const { return step_; }

  // By node: what its units are made of; each array once, in order, and none without elements.
  [[nodiscard]] std::vector<std::vector<NeededArray>> NeedsOf(size_t nodes) const;

  [[nodiscard]] bool IsHere(const ArrayRef& array) const { return sources_[array.source].here; }
  [[nodiscard]] const checkpoint::Entry& entry(const ArrayRef& array) const {
    return sources_[array.source].arrays->entries()[array.index];
  }
  // All values of an array that is here, finite. Any thread. DATA_LOSS naming source and array.
  absl::Status Read(const ArrayRef& array, std::span<float> to) const;

  // What a unit of the job is made of: `saved` has something of `array`, or all of it.
  struct Piece {
    UnitArray array;
    ArrayRef saved;
  };
  [[nodiscard]] std::vector<Piece> PiecesOf(uint32_t tensor, const wire::Box& unit) const;

 private:
  using Quantity = std::pair<std::string, std::string>;  // tensor, quantity

  SavedJob(std::string name, uint64_t step, std::vector<SavedSource> sources, const v1::JobSpec& job, const v1::Plan& plan);
  absl::Status CheckTensor(const v1::Tensor& tensor) const;
  absl::Status CheckUnit(const v1::Tensor& tensor, const wire::Box& unit) const;
  absl::Status CheckNothingElse() const;
  [[nodiscard]] std::vector<ArrayRef> Find(const checkpoint::Entry& wanted) const;
  [[nodiscard]] absl::Status Unfit(const std::string& why) const;

  const std::string name_;
  const uint64_t step_;
  const std::vector<SavedSource> sources_;
  const v1::JobSpec* const job_;
  const v1::Plan* const plan_;
  std::map<Quantity, std::vector<ArrayRef>> arrays_;
};

}  // namespace dmuon::node
