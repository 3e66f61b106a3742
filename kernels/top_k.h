// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The polar factor of what the largest singular values make: U_k V_k^T, in place; as operations on a matrix, one text
// for every backend that computes it fast.
//
// Of the shorter side, s. Where a block of k + 8 vectors is narrow: block Krylov (Musco and Musco,
// arXiv 1504.05477), two iterations. The block starts from the last step's vectors, filled up with numbers that a
// counter and the shape decide:
//
//   B_1 = orthonormal(A B_0),  Q = orthonormal(B_1, A B_1)     A = X X^T, or X^T X of a tall X
//   T = Q^T X;  T T^T = E S^2 E^T;  short = Q E_k;  long = T^T E_k / S_k
//
// Where two such blocks reach s, Q is the identity and all of it is exact. Products with the matrix are fp32, and
// the backend's; the bases and the small eigenproblem are double, on the calling thread. Two steps of
// Z <- 1.5 Z - 0.5 Z Z^T Z put the singular values of the result to 1 within fp32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend.h"

namespace dmuon::kernels {

// One matrix X, s x l, read through its transpose where it is tall, and what comes of it: the image, of `width`
// vectors, and the short and the long vectors, of those that are kept. Vectors are rows; those that calls are given,
// and fill, lie in host memory.
class TopKMatrix {
 public:
  virtual ~TopKMatrix() = default;

  // Of X, which begins as the caller's matrix.
  virtual GradientStats Measure() = 0;
  // X <- factor * X.
  virtual void Multiply(double factor) = 0;

  // to = from X X^T: `count` vectors of s.
  virtual void MultiplySquare(int64_t count, const float* from, float* to) = 0;
  // image = span X: vectors of l. Where span is null, it is the identity, and the image X itself.
  virtual void MakeImage(int64_t width, const float* span) = 0;
  // The inner products of the image's vectors, width x width, in double.
  virtual std::vector<double> ImageProducts() = 0;
  // short = left span; left: `kept` vectors of width. The caller gets the short vectors, too.
  virtual void MakeShort(int64_t kept, const float* left, float* to) = 0;
  // long = left image.
  virtual void MakeLong(int64_t kept, const float* left) = 0;
  // long <- 1.5 long - 0.5 (long long^T) long.
  virtual void Polish() = 0;
  // X <- the sum of the products of short and long vectors, short^T long; it is the caller's matrix then.
  virtual void Finish() = 0;
};

// The buffers of a Scratch that RunTopK takes, for a block of w vectors: (1.5 w + k) s and k w floats. Those from here
// on are the operations'.
inline constexpr size_t kTopKBuffers = 4;

// As Backend::OrthogonalizeTopK; `basis` lies in host memory.
absl::Status RunTopK(const TopK& top_k, int64_t step, int64_t rows, int64_t cols, MatrixView basis,
                     TopKMatrix& matrix, Scratch& scratch);

}  // namespace dmuon::kernels
