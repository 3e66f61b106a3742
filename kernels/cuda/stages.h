// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// All stages of an optimizer but Newton-Schulz on the device: cpu/stages.h with spans that may lie in device
// memory. Device errors go to `stream`; then the spans hold nothing of use until Staging::Finish says so.
#pragma once

#include <span>

#include "kernels/backend.h"
#include "kernels/cuda/staging.h"
#include "kernels/cuda/stream.h"

namespace dmuon::kernels::cuda {

// As Backend::Direction.
MatrixShape MakeDirection(const Optimizer& optimizer, const Hyper& hyper, double clip, std::span<const float> gradient,
                          const UnitState& state, std::span<float> update, Stream& stream, Staging& staging);

// As Backend::Apply.
void ApplyStep(const Optimizer& optimizer, const Hyper& hyper, double clip, std::span<const float> gradient,
               std::span<float> update, UnitState& state, Stream& stream, Staging& staging);

}  // namespace dmuon::kernels::cuda
