// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A checkpoint that a job is to be restored from, whatever the job ran on when it was saved. Opening it proves, by the
// heads of its files alone, that it holds every element of this node's units, and nothing that the job has no place for.
// Files that hold nothing of these need not be here.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/checkpoint/manifest.h"
#include "daemon/checkpoint/store.h"
#include "daemon/node/unit_values.h"
#include "dmuon/v1/plan.pb.h"
#include "dmuon/v1/tensor.pb.h"

namespace dmuon::node {

class SavedJob {
 public:
  // FAILED_PRECONDITION/CHECKPOINT naming the tensor when the checkpoint does not fit the job; DATA_LOSS or NOT_FOUND
  // of the store when a file is damaged, or is needed and not here. For node `self` of the plan. All outlive it.
  static absl::StatusOr<std::unique_ptr<SavedJob>> Open(const checkpoint::Store& store, checkpoint::Manifest manifest,
                                                        const v1::JobSpec& job, const v1::Plan& plan, uint32_t self);

  [[nodiscard]] uint64_t step() const { return manifest_.step; }

  // One thread's way to the files.
  class Reader {
   public:
    explicit Reader(const SavedJob* saved) : saved_(saved), parts_(saved->manifest_.parts.size()) {}
    // All values of `unit` of the job into `values`, which are like it. DATA_LOSS naming file and array.
    absl::Status Read(const OwnedUnit& unit, UnitValues& values);

   private:
    const SavedJob* saved_;
    std::vector<std::unique_ptr<checkpoint::PartReader>> parts_;  // opened as needed
    std::vector<float> buffer_;
  };

 private:
  // Where an array lies.
  struct Source {
    size_t part = 0;
    size_t index = 0;  // of the part's entries
    checkpoint::Entry entry;
  };
  using Quantity = std::pair<std::string, std::string>;  // tensor, quantity

  SavedJob(const checkpoint::Store& store, checkpoint::Manifest manifest, const v1::JobSpec& job)
      : store_(&store), manifest_(std::move(manifest)), job_(&job) {}
  absl::Status ReadHeads();
  absl::Status CheckTensor(const v1::Tensor& tensor) const;
  absl::Status CheckUnit(const v1::Tensor& tensor, const wire::Box& unit) const;
  absl::Status CheckNothingElse(const v1::Plan& plan) const;
  [[nodiscard]] std::vector<const Source*> SourcesOf(const checkpoint::Entry& wanted) const;
  [[nodiscard]] absl::Status Unfit(const std::string& why) const;

  const checkpoint::Store* const store_;
  const checkpoint::Manifest manifest_;
  const v1::JobSpec* const job_;
  std::map<Quantity, std::vector<Source>> sources_;
  absl::Status absent_;  // of the first file that is not here
};

}  // namespace dmuon::node
