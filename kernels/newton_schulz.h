// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Newton-Schulz as a sequence of operations on one matrix: one text for every backend that computes it fast. A
// tall matrix is worked on as it lies, without a transpose.
//
//   standard   A = X X^T;  X <- (a I + b A + c A^2) X                            each iteration
//   gram       R = X X^T;  Z = b R + c R^2;  Q <- (Z + a I) Q;  R <- (Z + a I) R (Z + a I)
//              and X <- Q X at the end and at restarts, which take R from X anew
//
// All of R, Z and Q are polynomials in the first R: symmetric, and they commute. So where the matrix is
// not square, Gram does most of its work on the smaller side. Rounding makes R drift away from X X^T, and
// Q amplifies what has drifted; hence restarts, after 2, 5, 8, ... iterations. (Dao-AILab,
// "Gram Newton-Schulz", 2026.) In bf16 are the products with X, and those whose rounding no R is multiplied with
// again: all with Q, R^2 of the last iteration before X moves, and the second product to the R of that. The others
// stay fp32, without which the small eigenvalues of R are noise, and the form diverges on many inputs.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace dmuon::kernels {

// One matrix X, rows x cols, and four symmetric matrices on its shorter side s, with the operations that the
// iterations are made of; or a batch of matrices of one shape, each with its own. Nothing is returned, so results may
// be asynchronous, and the operations may be recorded.
//
// A square is what is stored of it plus a multiple of the identity, its shift, which the operations keep: no product
// needs that, and none rounds it.
class NewtonSchulzOperations {
 public:
  enum Square : size_t { kGram, kPoly, kFactor, kNext };
  static constexpr size_t kSquares = 4;

  virtual ~NewtonSchulzOperations() = default;

  // out = X X^T, or X^T X of a tall X: s x s, without a shift.
  virtual void Gram(Square out) = 0;
  // The mean of the stored diagonal goes over into the shift.
  virtual void TakeMeanEigenvalue(Square square) = 0;
  // kPoly = a I + b kGram + c kGram^2, with kGram in `precision`. Of the shift of kPoly is all that needs no product.
  virtual void MakePoly(const Quintic& q, Precision precision) = 0;
  // out = left*right, with both in `precision`, without a shift. They commute; out is none of them.
  virtual void Multiply(Square left, Square right, Square out, Precision precision) = 0;
  // to = from, without a shift.
  virtual void Copy(Square from, Square to) = 0;
  // X <- square*X, from the right for a tall X; both are rounded to the precision, X times the shift is not.
  virtual void MultiplyMatrix(Square square) = 0;
};

// What goes with the iterations of one matrix.
class WholeNewtonSchulz : public NewtonSchulzOperations {
 public:
  // Of the caller's matrix, before and after.
  virtual GradientStats Measure() = 0;
  // X <- factor * the caller's matrix; it will be multiplied `passes` times before Finish.
  virtual void Start(double factor, int passes) = 0;
  // The caller's matrix <- X.
  virtual void Finish() = 0;
  // Whether the caller's matrix can be a result of `newton_schulz` (cpu/singular_bound.h).
  virtual bool WithinBound(const NewtonSchulz& newton_schulz) = 0;
};

// As Backend::Orthogonalize. `rows` and `cols` are those of the caller's matrix, at least 0.
absl::Status RunNewtonSchulz(const NewtonSchulz& newton_schulz, const Method& method, int64_t rows, int64_t cols,
                             WholeNewtonSchulz& operations);

// Its parts, for a batch. What X is multiplied with at the start; 0 when it is zero, and stays as it is.
// INVALID_ARGUMENT when it is not finite.
absl::StatusOr<double> StartFactor(const NewtonSchulz& newton_schulz, const GradientStats& stats, int64_t rows,
                                   int64_t cols);
// How often X is multiplied.
int Passes(const NewtonSchulz& newton_schulz, Form form);
// From the start to the end, but for both.
void Iterate(const NewtonSchulz& newton_schulz, const Method& method, NewtonSchulzOperations& operations);
// `sound`: the result is finite, and WithinBound in the Gram form.
absl::Status CheckResult(Form form, bool sound, int64_t rows, int64_t cols);

// OK, or INVALID_ARGUMENT when a dimension is negative.
absl::Status CheckDimensions(MatrixView x);

}  // namespace dmuon::kernels
