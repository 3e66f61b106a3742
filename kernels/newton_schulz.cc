// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/newton_schulz.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace dmuon::kernels {
namespace {

using Ops = NewtonSchulzOperations;

// 1 / (norm, after eps). `norm` is above zero.
double Reciprocal(const NewtonSchulz& newton_schulz, double norm) {
  switch (newton_schulz.eps_mode) {
    case EpsMode::kAdd:
      return 1.0 / (norm + newton_schulz.eps);
    case EpsMode::kClamp:
      return 1.0 / std::max(norm, newton_schulz.eps);
    case EpsMode::kNone:
      break;
  }
  return 1.0 / norm;
}

void Standard(const NewtonSchulz& newton_schulz, Ops& ops) {
  for (int i = 0; i < newton_schulz.iterations; ++i) {
    const Quintic q = newton_schulz.coefficients.at(i);
    ops.Gram(Ops::kGram);
    ops.Multiply(Ops::kGram, Ops::kGram, q.c, q.b, Ops::kGram, Ops::kPoly);
    ops.MultiplyMatrix(Ops::kPoly, q.a);
  }
}

void GramForm(const NewtonSchulz& newton_schulz, Ops& ops) {
  Ops::Square factor = Ops::kFactor;
  Ops::Square next = Ops::kNext;
  bool fresh = true;  // nothing has been put into `factor` since the matrix moved
  for (int i = 0; i < newton_schulz.iterations; ++i) {
    if (fresh) ops.Gram(Ops::kGram);
    const Quintic q = newton_schulz.coefficients.at(i);
    ops.Multiply(Ops::kGram, Ops::kGram, q.c, q.b, Ops::kGram, Ops::kPoly);
    if (fresh) {
      ops.AddIdentity(Ops::kPoly, q.a, factor);
    } else {
      ops.Multiply(factor, Ops::kPoly, 1.0, q.a, factor, next);
      std::swap(factor, next);
    }
    fresh = i + 1 == newton_schulz.iterations || GramRestartsAt(i + 1);
    if (fresh) {
      // A product reads the matrix rounded to the precision, and that noise grows in each singular direction by
      // the square's eigenvalue there. So the mean eigenvalue is taken out of the product, to be multiplied with
      // the matrix as it is: of all multiples of the identity, this one leaves the least noise.
      const double mean = ops.TakeMeanEigenvalue(factor);
      ops.MultiplyMatrix(factor, mean);
    } else {
      ops.Multiply(Ops::kGram, Ops::kPoly, 1.0, q.a, Ops::kGram, next);
      ops.Multiply(Ops::kPoly, next, 1.0, q.a, next, Ops::kGram);
    }
  }
}

}  // namespace

absl::Status CheckDimensions(MatrixView x) {
  if (x.rows >= 0 && x.cols >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("matrix is ", x.rows, " x ", x.cols, "; each dimension must be at least 0"));
}

absl::Status RunNewtonSchulz(const NewtonSchulz& newton_schulz, Form form, int64_t rows, int64_t cols, Ops& ops) {
  const std::string shape = absl::StrCat(rows, " x ", cols);
  // Squares of fp32 numbers, even subnormal ones, are normal numbers in double: no rescaling.
  const GradientStats stats = ops.Measure();
  if (!stats.finite) {
    return absl::InvalidArgumentError(absl::StrCat("input of Newton-Schulz is not finite (", shape, ")"));
  }
  if (stats.max_abs == 0.0) return absl::OkStatus();  // zero stays zero, 0/0 otherwise

  const bool gram = form == Form::kGram;
  ops.Start(Reciprocal(newton_schulz, std::sqrt(stats.sum_squares)),
            gram ? GramPasses(newton_schulz.iterations) : newton_schulz.iterations);
  if (gram) {
    GramForm(newton_schulz, ops);
  } else {
    Standard(newton_schulz, ops);
  }
  ops.Finish();
  if (!gram) {
    if (ops.Measure().finite) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat("Newton-Schulz of a finite ", shape, " matrix gave a non-finite result"));
  }
  if (ops.WithinBound(newton_schulz)) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("the Gram form of Newton-Schulz diverged on a ", shape, " matrix"));
}

}  // namespace dmuon::kernels
