// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Newton-Schulz in place: the cpu backend's Backend::Orthogonalize. A tall matrix is worked on as it lies,
// without a transpose.
//
//   standard   A = X X^T;  X <- (a I + b A + c A^2) X                            each iteration
//   gram       R = X X^T;  Z = b R + c R^2;  Q <- (Z + a I) Q;  R <- (Z + a I) R (Z + a I)
//              and X <- Q X at the end and at restarts, which take R from X anew
//
// All of R, Z and Q are polynomials in the first R: symmetric, and they commute. So where the matrix is
// not square, Gram does most of its work on the smaller side. Rounding makes R drift away from X X^T, and
// Q amplifies what has drifted; hence restarts, after 2, 5, 8, ... iterations. (Dao-AILab,
// "Gram Newton-Schulz", 2026.) In bf16 the products with X are; those of R, Z and Q stay fp32, without which
// the small eigenvalues of R are noise, and the form diverges on many inputs.
#pragma once

#include "absl/status/status.h"
#include "kernels/backend.h"

namespace dmuon::kernels {

// Takes the first buffers of `scratch`: rows*cols floats, 2 (standard) or 4 (gram) of min(rows, cols)^2,
// and the panels of a product (products.h).
//
// INVALID_ARGUMENT when a dimension is negative, or when `x` is not finite (`x` stays as it is). ABORTED
// when the Gram form diverged, which the standard form on the same input does not; INTERNAL when the
// standard form's result is not finite. After either `x` holds nothing of use.
absl::Status OrthogonalizeFloat(const NewtonSchulz& newton_schulz, const Method& method, MatrixView x,
                                Scratch& scratch);

}  // namespace dmuon::kernels
