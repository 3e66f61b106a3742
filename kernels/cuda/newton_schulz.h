// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Newton-Schulz in place (kernels/newton_schulz.h) on the device, of one matrix or of several of one shape, which
// then share each launch and each product.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/cuda/stream.h"

namespace dmuon::kernels::cuda {

// Matrices in device memory, one behind the other.
struct MatrixBatch {
  float* data;
  int64_t rows, cols;
  int64_t items;
};

// How many small matrices of this shape are worked on at one time: 1 beyond 2^22 elements, and otherwise as many as
// fit into 512 MiB of device memory, at most 32.
size_t DeviceBatchSize(const MatrixShape& shape);

// As Backend::OrthogonalizeBatch; at most DeviceBatchSize of them. Device errors go to `stream`; then results and
// statuses mean nothing. Device memory for each matrix of s x l, s the shorter side, in elements: 2*s*l and 2
// (standard) or 4 (gram) of s*s in fp32, and in bf16 half as large copies of the matrix and of one or two squares.
void OrthogonalizeOnDevice(const NewtonSchulz& newton_schulz, const Method& method, const MatrixBatch& x,
                           std::span<absl::Status> statuses, Stream& stream);

// As Backend::Measure, for `count` numbers in device memory.
GradientStats MeasureOnDevice(Stream& stream, const float* values, int64_t count);

}  // namespace dmuon::kernels::cuda
