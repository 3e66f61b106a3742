// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Eigenvectors of a dense symmetric matrix, in double: Householder reflections to a tridiagonal matrix, then
// implicit QR steps with Wilkinson's shift (Golub and Van Loan, "Matrix Computations", chapter 8). About 9 n^3
// operations, on the calling thread. Only + - * / and square roots, so the bits are those of IEEE arithmetic.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace dmuon::kernels {

struct Eigen {
  std::vector<double> values;   // the largest `count`, falling
  std::vector<double> vectors;  // of unit length and orthogonal, a row of n each
};

// The `count` largest eigenvalues of the n x n `matrix`, with an error of about 1e-15 times the largest magnitude.
// `matrix` is used up. None when the iteration does not end, which no finite matrix is known to cause.
std::optional<Eigen> LargestEigen(int64_t n, int64_t count, std::span<double> matrix);

}  // namespace dmuon::kernels
