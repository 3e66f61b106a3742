// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The polar factor of what the largest singular values make: U_k V_k^T, in place. The cpu backend's
// Backend::OrthogonalizeTopK.
//
// Of the shorter side, s. Where a block of k + 8 vectors is narrow: block Krylov (Musco and Musco,
// arXiv 1504.05477), two iterations. The block starts from the last step's vectors, filled up with numbers that a
// counter and the shape decide:
//
//   B_1 = orthonormal(A B_0),  Q = orthonormal(B_1, A B_1)     A = X X^T, or X^T X of a tall X
//   T = Q^T X;  T T^T = E S^2 E^T;  short = Q E_k;  long = T^T E_k / S_k
//
// Where two such blocks reach s, Q is the identity and all of it is exact. Products with the matrix are fp32, in
// teams; the bases and the small eigenproblem are double, on the calling thread. Two steps of
// Z <- 1.5 Z - 0.5 Z Z^T Z put the singular values of the result to 1 within fp32.
#pragma once

#include "absl/status/status.h"
#include "kernels/backend.h"

namespace dmuon::kernels {

// As Backend::OrthogonalizeTopK. Takes the buffers of `scratch`: (w + k) l twice, k s and small ones for a block of
// w vectors, and the panels of a product.
absl::Status OrthogonalizeTopKFloat(const TopK& top_k, int64_t step, MatrixView x, MatrixView basis, Scratch& scratch);

}  // namespace dmuon::kernels
