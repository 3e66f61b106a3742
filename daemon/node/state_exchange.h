// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A job's state on its way to workers and from them, in a memfd instead of a checkpoint's files.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "daemon/checkpoint/head.h"
#include "daemon/checkpoint/shared_part.h"
#include "daemon/node/memory_budget.h"
#include "daemon/node/restore_source.h"
#include "daemon/node/step_pipeline.h"

namespace dmuon::node {

// What workers have been given; as long as one of them has it, it is charged to the node.
struct GivenState {
  checkpoint::SharedPart part;
  MemoryBudget::Share share;
};

// A copy of this node's state. `head` has neither entries nor checksums. RESOURCE_EXHAUSTED/LIMIT.
absl::StatusOr<std::shared_ptr<const GivenState>> CopyState(checkpoint::Head head, StepPipeline& pipeline,
                                                            MemoryBudget& budget);

// A state that workers have brought, in one file.
class BroughtState final : public RestoreSource {
 public:
  // NOT_FOUND: nobody has brought it to this node.
  using Part = absl::StatusOr<std::shared_ptr<const checkpoint::DiskPart>>;
  // `name` has its digest, so that nodes that were brought something else are not taken for the same.
  BroughtState(std::string name, Part part) : name_(std::move(name)), part_(std::move(part)) {}

  [[nodiscard]] std::string name() const override { return name_; }
  // Its step, and its number of arrays.
  [[nodiscard]] absl::StatusOr<Contents> Find() const override;
  [[nodiscard]] absl::StatusOr<Opened> Open(const std::string& contents) const override;

 private:
  const std::string name_;
  const Part part_;
};

}  // namespace dmuon::node
