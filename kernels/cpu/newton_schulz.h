// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Newton-Schulz in place (kernels/newton_schulz.h), by blocked products: the cpu backend's Backend::Orthogonalize.
#pragma once

#include "absl/status/status.h"
#include "kernels/backend.h"

namespace dmuon::kernels {

// As Backend::Orthogonalize. Takes the first buffers of `scratch`: rows*cols floats, 2 (standard) or 4 (gram) of
// min(rows, cols)^2, and the panels of a product (products.h).
absl::Status OrthogonalizeFloat(const NewtonSchulz& newton_schulz, const Method& method, MatrixView x,
                                Scratch& scratch);

}  // namespace dmuon::kernels
