// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Units as a checkpoint has them: arrays of the tensor's own elements, whatever matrices the service sees in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "daemon/checkpoint/entry.h"
#include "daemon/node/owned_state.h"
#include "dmuon/v1/plan.pb.h"
#include "dmuon/v1/tensor.pb.h"
#include "kernels/optimizer.h"
#include "wire/box.h"

namespace dmuon::node {

// One array of a unit. A state tensor of the shape of its matrix is one array for all matrices of the unit; another one
// is an array a matrix.
struct UnitArray {
  static constexpr size_t kOfWeight = SIZE_MAX;
  checkpoint::Entry entry;
  size_t state = kOfWeight;  // else which of kernels::StateTensors
};

// "muon(ema)", "normuon(accumulate)", "adamw": equal names, equal meaning of the state.
std::string OptimizerName(const v1::Group& group);

// All of a unit of `tensor`, with 0 updates.
std::vector<UnitArray> ArraysOf(const v1::JobSpec& job, const v1::Tensor& tensor, const wire::Box& unit);

// Values of a unit beside it.
struct UnitValues {
  std::vector<float> weight;                           // as OwnedUnit::weight
  std::vector<std::vector<std::vector<float>>> state;  // by matrix, as OwnedMatrix::state
  int64_t updates = 0;

  // All zero, as large as the unit's.
  static UnitValues Like(const OwnedUnit& unit);
};

// Copies an array of ArraysOf(`unit`) out of the unit.
void CopyOut(const OwnedUnit& unit, const UnitArray& array, std::span<float> to);
// Copies what `box` and the unit share of the array into `values`, which are like the unit; `from` is row-major over
// `box`. An array of one matrix is taken whole.
void CopyIn(const OwnedUnit& unit, const UnitArray& array, const wire::Box& box, std::span<const float> from,
            UnitValues& values);
// The unit becomes what `values`, which are like it, say; they get what it was.
void Exchange(OwnedUnit& unit, UnitValues& values);

}  // namespace dmuon::node
