// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The judge: Newton-Schulz and singular vectors in double and in plain loops, to be read beside the formulas. Slow, and meant to
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

// x <- U V^T of the `rank` largest singular values of a rows x cols matrix, without those below SmallestKept; by
// Jacobi rotations of the lines of its shorter side. A zero matrix stays zero. `basis` gets the singular vectors of
// that side, a row each, as many as it holds, and zeros behind them.
void OrthogonalizeTopK(int64_t rank, int64_t rows, int64_t cols, std::span<double> x, std::span<double> basis);

}  // namespace dmuon::kernels::reference
