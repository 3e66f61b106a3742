// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A state that a job is to be restored from, whatever the job ran on when it was saved, and wherever its arrays lie.
// Opening it proves, by what the sources say of themselves, that they have every element of this node's units, once, and
// nothing that the job has no place for.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/checkpoint/array_source.h"
#include "daemon/checkpoint/entry.h"
#include "daemon/node/unit_values.h"
#include "dmuon/v1/plan.pb.h"
#include "dmuon/v1/tensor.pb.h"

namespace dmuon::node {

// Where arrays of a state are.
struct SavedSource {
  std::string name;  // of its file, or what else people call it
  std::shared_ptr<const checkpoint::ArraySource> arrays;
};

class SavedJob {
 public:
  // `name`: as people call the state, "checkpoint 'best'". `absent`: why a source is not among `sources`, if any is not;
  // the answer where something is missing. FAILED_PRECONDITION/CHECKPOINT naming the tensor when the state does not fit
  // the job; DATA_LOSS naming what leaves a hole or overlaps. For node `self` of the plan. `job` outlives it.
  static absl::StatusOr<std::unique_ptr<SavedJob>> Open(std::string name, uint64_t step, std::vector<SavedSource> sources,
                                                        const v1::JobSpec& job, const v1::Plan& plan, uint32_t self,
                                                        const absl::Status& absent = absl::OkStatus());

  [[nodiscard]] uint64_t step() const { return step_; }

  // All values of `unit` of the job into `values`, which are like it. Any thread. DATA_LOSS naming source and array.
  absl::Status Read(const OwnedUnit& unit, UnitValues& values) const;

 private:
  // Where an array lies.
  struct Located {
    size_t source = 0;
    size_t index = 0;  // of the source's entries
    const checkpoint::Entry* entry = nullptr;
  };
  using Quantity = std::pair<std::string, std::string>;  // tensor, quantity

  SavedJob(std::string name, uint64_t step, std::vector<SavedSource> sources, const v1::JobSpec& job, absl::Status absent);
  absl::Status CheckTensor(const v1::Tensor& tensor) const;
  absl::Status CheckUnit(const v1::Tensor& tensor, const wire::Box& unit) const;
  absl::Status CheckNothingElse(const v1::Plan& plan) const;
  [[nodiscard]] std::vector<Located> Find(const checkpoint::Entry& wanted) const;
  [[nodiscard]] absl::Status Unfit(const std::string& why) const;

  const std::string name_;
  const uint64_t step_;
  const std::vector<SavedSource> sources_;
  const v1::JobSpec* const job_;
  const absl::Status absent_;
  std::map<Quantity, std::vector<Located>> arrays_;
};

}  // namespace dmuon::node
