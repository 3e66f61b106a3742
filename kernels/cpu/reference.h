// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The judge: Newton-Schulz in double and in plain loops, to be read beside the formulas. Slow, and meant to
// stay so; whatever is faster is compared with this. The other stages are those of stages.h with doubles.
//
// Matrices are row-major. Nothing here can fail: callers pass what Validate accepted, and finite input.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/optimizer.h"

namespace dmuon::kernels::reference {

// sqrt(sum of squares), taken relative to the largest element, so that neither huge nor tiny
// elements leave the range of double.
double FrobeniusNorm(std::span<const double> x);

// x <- NewtonSchulz(x) of a rows x cols matrix; a matrix taller than wide is transposed first. A
// zero matrix stays zero in every EpsMode.
void Orthogonalize(const NewtonSchulz& newton_schulz, int64_t rows, int64_t cols,
                   std::span<double> x);

}  // namespace dmuon::kernels::reference
