// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Top-k in place (kernels/top_k.h): products and sums on the device, the bases and the small eigenproblem on the
// calling thread.
#pragma once

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/cuda/stream.h"

namespace dmuon::kernels::cuda {

// As Backend::OrthogonalizeTopK for `x` in device memory and `basis` in host memory. Device errors go to `stream`;
// then the result means nothing. Device memory, in elements of fp32, for a block of w vectors: 2*s*l, (w + 2*k)*l,
// 2*(w + k)*s, and w*w in fp64.
absl::Status OrthogonalizeTopKOnDevice(const TopK& top_k, int64_t step, MatrixView x, MatrixView basis,
                                       Scratch& scratch, Stream& stream);

}  // namespace dmuon::kernels::cuda
