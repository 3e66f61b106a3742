// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// All stages of an optimizer but Newton-Schulz and top-k, on one unit, by the calling thread's team (team.h). Loops, and
// the bits of elements and sums, are those of loops.h; T is double for the reference, float for the cpu backend. Stages
// that need no sum over the whole unit go over it together, block by block (blocks.h). So a result does not depend
// on where in a span an element lies, on the CPU, on the team, or on how a tensor was cut into boxes.
//
// Spans of one call do not overlap. Nothing here can fail: callers pass optimizers and hyper-parameters that
// Validate accepted, finite gradients, and a state that StateTensors describes.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/backend.h"

namespace dmuon::kernels {

// As Backend::Direction. T is float or double.
template <typename T>
MatrixShape MakeDirection(const Optimizer& optimizer, const Hyper& hyper, double clip, std::span<const T> gradient,
                          const BasicUnitState<T>& state, std::span<T> update);

// As Backend::Apply.
template <typename T>
void ApplyStep(const Optimizer& optimizer, const Hyper& hyper, double clip, std::span<const T> gradient,
               std::span<T> update, BasicUnitState<T>& state);

}  // namespace dmuon::kernels
