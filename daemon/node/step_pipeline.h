// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The step of one job on this node: the file to read first. Collect, agree on a verdict over the
// whole gradient, orthogonalize, apply, deliver. On one node `reduce` is the verdict alone and
// `publish` has nothing to move.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/node/owned_state.h"
#include "daemon/node/slot_threads.h"
#include "daemon/node/worker_boxes.h"
#include "kernels/backend.h"

namespace dmuon::node {

// The seven verbs, in the order of a gradient's journey.
enum class Stage : uint8_t { kSubmit, kCollect, kReduce, kOrthogonalize, kApply, kPublish, kDeliver };
inline constexpr std::array<const char*, 7> kStageNames = {
    "submit", "collect", "reduce", "orthogonalize", "apply", "publish", "deliver"};

// What the whole gradient says before any state changes.
struct Verdict {
  bool skip = false;
  std::string skip_reason;
  double grad_norm = 0.0;
  double clip = 1.0;
};

// What a step did.
struct StepReport {
  uint64_t step = 0;
  Verdict verdict;
  uint64_t newton_schulz_calls = 0;       // in this step
  uint64_t newton_schulz_iterations = 0;  // in this step
  double newton_schulz_flops = 0.0;
  // Seconds by Stage; work that slots do at the same time counts as their mean.
  std::array<double, kStageNames.size()> stage_seconds{};
};

class StepPipeline {
 public:
  // `job`, `plan` and `workers` must outlive the pipeline. One OwnedState a slot of `node`.
  StepPipeline(const v1::JobSpec& job, const v1::Plan& plan, uint32_t node,
               const WorkerBoxes* workers, kernels::Backend* backend, SlotThreads* slots);

  // Masters from the workers' initial parameters. INVALID_ARGUMENT names a tensor that is not finite.
  absl::Status Initialize();

  // FAILED_PRECONDITION: a gradient is missing; nothing changed. INTERNAL: the state is broken.
  // OK: applied or skipped, and delivered to all attached workers.
  absl::Status Run(uint64_t step, const std::vector<kernels::Hyper>& hypers, StepReport& report);

  // The current parameters to one worker, as of `step`.
  void Deliver(uint64_t step, uint32_t rank);

  [[nodiscard]] uint64_t state_bytes() const { return state_bytes_; }
  [[nodiscard]] uint64_t matrix_units() const { return matrix_units_; }
  [[nodiscard]] uint64_t elementwise_units() const { return elementwise_units_; }
  // Read between steps only.
  [[nodiscard]] const OwnedState& slot_state(size_t slot) const { return *states_[slot]; }

 private:
  struct SlotWork;

  absl::Status CheckSubmitted(uint64_t step);
  void Collect(StepReport& report);
  Verdict Agree(const std::vector<kernels::Hyper>& hypers) const;
  absl::Status Update(const std::vector<kernels::Hyper>& hypers, StepReport& report);
  [[nodiscard]] bool skipped(uint32_t tensor) const;

  const v1::JobSpec* const job_;
  const WorkerBoxes* const workers_;
  SlotThreads* const slots_;
  std::vector<std::unique_ptr<OwnedState>> states_;  // by slot
  std::vector<MissingRanks> missing_;                // by tensor, of the step in flight
  uint64_t matrix_units_ = 0;
  uint64_t elementwise_units_ = 0;
  uint64_t state_bytes_ = 0;
};

}  // namespace dmuon::node
