// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "absl/status/status.h"
#include "kernels/backend.h"

namespace dmuon::kernels {

// Newton-Schulz in fp32, in place: the cpu backend's Backend::Orthogonalize. A tall matrix is
// worked on as it lies, without a transpose. Takes buffers 0 to 2 of `scratch`:
// rows*cols + 2*min(rows, cols)^2 floats.
//
// INVALID_ARGUMENT when a dimension is negative or beyond what BLAS can count, or when `x` is not
// finite (`x` stays as it is); INTERNAL when the result is not finite although `x` was.
absl::Status OrthogonalizeFloat(const NewtonSchulz& newton_schulz, MatrixView x, Scratch& scratch);

}  // namespace dmuon::kernels
