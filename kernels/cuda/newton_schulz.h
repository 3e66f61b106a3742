// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Newton-Schulz in place (kernels/newton_schulz.h) on the device.
#pragma once

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/cuda/stream.h"

namespace dmuon::kernels::cuda {

// As Backend::Orthogonalize for `x` in device memory. Device errors go to `stream`; then the result means nothing.
// Device memory for a matrix of s x l, s the shorter side, in elements: 2*s*l and 2 (standard) or 4 (gram) of s*s
// in fp32, and in bf16 half as large copies of the matrix and of a square.
absl::Status OrthogonalizeOnDevice(const NewtonSchulz& newton_schulz, const Method& method, MatrixView x,
                                   Stream& stream);

// As Backend::Measure, for `count` numbers in device memory.
GradientStats MeasureOnDevice(Stream& stream, const float* values, int64_t count);

}  // namespace dmuon::kernels::cuda
