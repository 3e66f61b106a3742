// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The training that the simulated job does, on digests instead of matrices: what a gradient is, what a step makes of it,
// and the same as one process would do it (the oracle).
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
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
  uint64_t batches = 0;  // a byte a rank: which batch it took, see Backward
  bool finite = true;

  void Add(const Gradient& other) {
    sum += other.sum;
    batches += other.batches;
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
  uint64_t delivered = 0;      // 1 + step that the words say that `params` are of; 0 while a recovery writes them
};

template <typename T>
std::string ToBytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

template <typename T>
std::vector<T> FromBytes(const std::string& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

Digest DigestOf(const Values& values);
// What a rank computes from these parameters. One step in a few is not finite on one rank. `batch`: how often the trainer
// has gone back, and has left out the data of a step that was undone; so a step that is done again is another one.
Gradients Backward(const Values& params, uint32_t rank, uint64_t step, uint64_t batch);
// The initial parameters of a process; all ranks of one start of a job have the same.
Values InitialValues(size_t units, uint64_t start);
// One unit's part of "not finite, or the sum of squares". Whole numbers, so that no order gives another sum.
void Judge(const Gradient& gradient, v1::StepVerdict& verdict);
Digest Applied(Digest master, const Gradient& gradient, const node::Verdict& verdict, uint64_t step);

// One process, all ranks: the values after `step` from those before it, where the ranks took these batches.
Values OracleStep(const v1::JobSpec& job, const Values& before, uint64_t step, uint64_t batches);

}  // namespace dmuon::sim
