// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The cpu backend's Backend::OrthogonalizeTopK: kernels/top_k.h with products by the calling thread's team.
#pragma once

#include "absl/status/status.h"
#include "kernels/backend.h"

namespace dmuon::kernels {

// As Backend::OrthogonalizeTopK. Takes the buffers of `scratch`: (w + 2 k) l, (w + k) s and small ones for a block of
// w vectors, and the panels of a product.
absl::Status OrthogonalizeTopKFloat(const TopK& top_k, int64_t step, MatrixView x, MatrixView basis, Scratch& scratch);

}  // namespace dmuon::kernels
