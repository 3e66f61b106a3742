// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What a step did, and how long each of its stages took.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/node/slot_threads.h"
#include "kernels/optimizer.h"

namespace dmuon::node {

// The seven verbs, in the order of a gradient's journey.
enum class Stage : uint8_t { kSubmit, kCollect, kReduce, kOrthogonalize, kApply, kPublish, kDeliver };
inline constexpr std::array<const char*, 7> kStageNames = {
    "submit", "collect", "reduce", "orthogonalize", "apply", "publish", "deliver"};
using StageSeconds = std::array<double, kStageNames.size()>;  // by Stage

// What the whole gradient says before any state changes.
struct Verdict {
  bool skip = false;
  std::string skip_reason;
  double grad_norm = 0.0;
  double clip = 1.0;
};

// What Newton-Schulz did, and what stands in its place.
struct NewtonSchulzWork {
  uint64_t calls = 0;  // matrices
  uint64_t iterations = 0;
  double flops = 0.0;
  std::array<uint64_t, kernels::kMethods> by_method{};  // runs, by kernels::IndexOf
  uint64_t recomputed = 0;                              // of these, once more in the standard form

  void Add(const NewtonSchulzWork& other);
};

// What a step did.
struct StepReport {
  uint64_t step = 0;
  Verdict verdict;
  NewtonSchulzWork newton_schulz;  // in this step, on this node
  uint64_t buckets = 0;        // of gradients that this node sends or sums
  uint64_t buckets_ahead = 0;  // of these, done before the step was called for
  uint64_t buckets_again = 0;  // done before it in vain: gradients were submitted again
  // Work that slots do at the same time counts as their mean.
  StageSeconds stage_seconds{};
  std::vector<double> slot_seconds;  // by slot: from collected gradients to new weights
  std::string save;  // name of a checkpoint that all nodes make after this step; empty: none
  bool reached = false;  // all nodes have come to where this one wanted to
};

// What one slot reports of its part of a step.
struct SlotWork {
  StageSeconds seconds{};
  NewtonSchulzWork newton_schulz;
  absl::Status status;
};

// `work(slot, what it has done)` on all slots at once, added up in `report`; the first error by slot.
absl::Status RunSlots(SlotThreads& slots, StepReport& report,
                      const std::function<void(size_t, SlotWork&)>& work);

}  // namespace dmuon::node
