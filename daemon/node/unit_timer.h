// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Measures how long a slot works on a unit in a step, with all slots at work on units like it: cores that share a
// memory, or a clock, are slower together than one of them alone.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "daemon/node/slot_threads.h"
#include "kernels/backend.h"
#include "kernels/optimizer.h"

namespace dmuon::node {

class UnitTimer {
 public:
  UnitTimer(uint32_t slots, int threads_per_slot, kernels::Backend* backend);
  ~UnitTimer();

  // Units of one optimizer and shape. `methods` has one entry, of no meaning, for element-wise units.
  struct Class {
    kernels::Optimizer optimizer;
    kernels::MatrixShape shape;
    std::vector<kernels::Method> methods;
    size_t batch = 1;  // units that a slot works on together, as the step does (OwnedState::BatchEnd)
  };
  struct Result {
    double seconds = 0.0;  // of one unit
    // Of Newton-Schulz, from the standard form in fp32; infinite when it failed. 0 for element-wise units.
    double error = 0.0;
  };

  // Bytes that Measure takes.
  [[nodiscard]] uint64_t BytesFor(const Class& units) const;
  // One result a method. The gradients are random numbers, the same on every run. A method is run for about
  // half a second, but at least twice unless a run takes seconds.
  std::vector<Result> Measure(const Class& units);

 private:
  struct Bench;  // the buffers of a slot

  void Prepare(const Class& units);
  Result Measure(const Class& units, const kernels::Method& method);
  // One step on all slots; the mean of their seconds. `first`: the result of Newton-Schulz is kept.
  double Run(const Class& units, const kernels::Method& method, bool first);
  // Of what the first slot has kept.
  [[nodiscard]] double ErrorFrom(const std::vector<float>& exact) const;

  kernels::Backend* const backend_;
  std::vector<std::unique_ptr<Bench>> benches_;  // by slot
  SlotThreads slots_;
};

}  // namespace dmuon::node
