// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The training that the simulated job does, on digests instead of matrices: what a gradient is, what a step makes of it,
// and the same as one process would do it (the oracle).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "daemon/node/step_report.h"
#include "dmuon/v1/peer.pb.h"
#include "dmuon/v1/tensor.pb.h"
#include "tests/sim/history.h"

namespace dmuon::sim {

using Values = std::vector<Digest>;  // by unit

// A gradient, or a sum of some. Sums are exact, so that no topology gives another result.
struct Gradient {
  uint64_t sum = 0;
  bool finite = true;

  void Add(const Gradient& other) {
    sum += other.sum;
    finite = finite && other.finite;
  }
  bool operator==(const Gradient&) const = default;
};
using Gradients = std::vector<Gradient>;  // by unit

// What worker and daemon both map.
struct Arena {
  Values params;
  Gradients grads;
  uint64_t submitted = 0;      // step that `grads` are of
  bool incomplete = false;     // one of them is not marked
};

Digest DigestOf(const Values& values);
// What a rank computes from these parameters. One step in a few is not finite on one rank.
Gradients Backward(const Values& params, uint32_t rank, uint64_t step);
// The initial parameters of a process; all ranks of one start of a job have the same.
Values InitialValues(size_t units, uint64_t start);
// One unit's part of "not finite, or the sum of squares". Whole numbers, so that no order gives another sum.
void Judge(const Gradient& gradient, v1::StepVerdict& verdict);
Digest Applied(Digest master, const Gradient& gradient, const node::Verdict& verdict, uint64_t step);

// One process, all ranks: the values after `step` from those before it.
Values OracleStep(const v1::JobSpec& job, const Values& before, uint64_t step);

}  // namespace dmuon::sim
