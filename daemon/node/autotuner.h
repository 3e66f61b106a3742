// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What this node knows of the speed of its kernels: measures what a job needs and remembers it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "daemon/node/memory_budget.h"
#include "daemon/node/time_store.h"
#include "daemon/node/unit_timer.h"
#include "dmuon/v1/node.pb.h"
#include "dmuon/v1/tensor.pb.h"
#include "kernels/backend.h"
#include "wire/mutex.h"

namespace dmuon::node {

struct AutotunerOptions {
  // Where times outlive the process; empty: nowhere.
  std::string cache_directory;
  // What one job's measurements may take. Shapes that do not fit, or not into memory, are estimated from smaller
  // ones; when not even the smallest fits, nothing is known and plans go by operation counts.
  absl::Duration budget = absl::Seconds(30);
  uint32_t slots = 1;
  int threads_per_slot = 1;
};

// Thread-safe. One measurement runs at a time, so that none disturbs another.
class Autotuner {
 public:
  // The pointers outlive it.
  Autotuner(AutotunerOptions options, kernels::Backend* backend, MemoryBudget* memory);

  // Times of all that the job needs, as its `autotune` says; empty when it is off, or `cancelled` says yes, which
  // is asked between measurements. Blocks for the budget and one measurement, at most.
  std::vector<v1::UnitTime> TimesFor(const v1::JobSpec& job, const std::function<bool()>& cancelled);

  [[nodiscard]] v1::GetKernelsResponse Describe() const;

 private:
  class Session;  // the measurements of one job

  const AutotunerOptions options_;
  kernels::Backend* const backend_;
  MemoryBudget* const memory_;
  wire::Mutex measuring_;  // before mu_
  mutable wire::Mutex mu_;  // leaf lock
  TimeStore store_ ABSL_GUARDED_BY(mu_);
  std::string progress_ ABSL_GUARDED_BY(mu_);
};

}  // namespace dmuon::node
