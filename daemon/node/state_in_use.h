// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The state that a job's nodes are using, as arrays: this node's, to be copied out, or those of all nodes under a plan, to
// be handed over to the owners of another one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/checkpoint/array_source.h"
#include "daemon/node/owned_state.h"
#include "daemon/node/restore_source.h"
#include "daemon/node/unit_values.h"
#include "dmuon/v1/plan.pb.h"
#include "dmuon/v1/tensor.pb.h"

namespace dmuon::node {

// Of one node's units, one slot after the other. Nothing may change them meanwhile.
class ArraysInUse final : public checkpoint::ArraySource {
 public:
  using States = std::vector<std::unique_ptr<OwnedState>>;  // by slot
  // `job` and `states` outlive it.
  ArraysInUse(const v1::JobSpec& job, const States& states);

  [[nodiscard]] const std::vector<checkpoint::Entry>& entries() const override { return entries_; }
  [[nodiscard]] absl::Status Read(size_t i, std::span<float> to) const override;
  // The first of a slot, and behind its last one.
  [[nodiscard]] size_t first(size_t slot) const { return first_[slot]; }
  [[nodiscard]] size_t end(size_t slot) const { return first_[slot + 1]; }

 private:
  struct Array {
    const OwnedUnit* unit;
    UnitArray array;
  };
  std::vector<Array> arrays_;
  std::vector<checkpoint::Entry> entries_;
  std::vector<size_t> first_;  // by slot, and the end
};

// Of all nodes of `plan`, after `step`; each node has its own.
class StateInUse final : public RestoreSource {
 public:
  // All outlive it.
  StateInUse(const v1::JobSpec& job, const v1::Plan& plan, uint32_t self, uint64_t step, const ArraysInUse::States& states);

  [[nodiscard]] std::string name() const override;
  [[nodiscard]] absl::StatusOr<Contents> Find() const override;
  [[nodiscard]] absl::StatusOr<Opened> Open(const std::string& contents) const override;

 private:
  const v1::JobSpec* const job_;
  const v1::Plan* const plan_;
  const uint32_t self_;
  const uint64_t step_;
  const ArraysInUse::States* const states_;
};

}  // namespace dmuon::node
