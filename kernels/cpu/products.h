// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The three matrix products of a Newton-Schulz iteration, in fp32 by OpenBLAS.
//
// A product is cut into tiles of the result whose size depends on the shape alone; each tile is one
// single-threaded BLAS call, and a team of threads shares the tiles. Hence the bits of a result do
// not depend on the number of threads, threads of one process may use teams of different sizes (a
// multi-threaded OpenBLAS keeps one team size for the whole process), and half of a symmetric
// product is never computed.
//
// Below, `s` is the shorter and `l` the longer side of the matrix. Every dimension fits an int.
// Results never overlap inputs.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/backend.h"
#include "kernels/coefficients.h"

namespace dmuon::kernels {

// Gives products called from this thread a team of `threads`, at least 1. Without it: 1.
void BindProductThreads(int threads);

// Lets OpenBLAS set itself up, which its OpenMP build does without a lock at first use. Returns
// after that is done, on whichever thread. Any number of calls.
void PrepareBlas();

// gram (s x s, both triangles) = x*x^T for a wide or square x, x^T*x for a tall one.
void Gram(const MatrixView& x, std::span<float> gram);

// out (s x s, both triangles) = a*I + b*gram + c*gram*gram for a symmetric `gram`.
void Polynomial(const Quintic& q, int64_t s, std::span<const float> gram, std::span<float> out);

// out (shape of x) = poly*x for a wide or square x, x*poly for a tall one; `poly` is symmetric.
void Multiply(std::span<const float> poly, const MatrixView& x, std::span<float> out);

}  // namespace dmuon::kernels
