// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/newton_schulz.h"

#include <algorithm>
#include <cmath>
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
      ops.MultiplyMatrixAboutMean(factor);
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

absl::StatusOr<double> StartFactor(const NewtonSchulz& newton_schulz, const GradientStats& stats, int64_t rows,
                                   int64_t cols) {
  // Squares of fp32 numbers, even subnormal ones, are normal numbers in double: no rescaling.
  if (!stats.finite) {
    return absl::InvalidArgumentError(
        absl::StrCat("input of Newton-Schulz is not finite (", rows, " x ", cols, ")"));
  }
  if (stats.max_abs == 0.0) return 0.0;  // zero stays zero, 0/0 otherwise
  return Reciprocal(newton_schulz, std::sqrt(stats.sum_squares));
}

int Passes(const NewtonSchulz& newton_schulz, Form form) {
  return form == Form::kGram ? GramPasses(newton_schulz.iterations) : newton_schulz.iterations;
}

void Iterate(const NewtonSchulz& newton_schulz, Form form, Ops& ops) {
  if (form == Form::kGram) {
    GramForm(newton_schulz, ops);
  } else {
    Standard(newton_schulz, ops);
  }
}

absl::Status CheckResult(Form form, bool sound, int64_t rows, int64_t cols) {
  if (sound) return absl::OkStatus();
  if (form == Form::kGram) {
    return absl::AbortedError(
        absl::StrCat("the Gram form of Newton-Schulz diverged on a ", rows, " x ", cols, " matrix"));
  }
  return absl::InternalError(
      absl::StrCat("Newton-Schulz of a finite ", rows, " x ", cols, " matrix gave a non-finite result"));
}

absl::Status RunNewtonSchulz(const NewtonSchulz& newton_schulz, Form form, int64_t rows, int64_t cols,
                             WholeNewtonSchulz& ops) {
  const absl::StatusOr<double> factor = StartFactor(newton_schulz, ops.Measure(), rows, cols);
  if (!factor.ok() || *factor == 0.0) return factor.status();
  ops.Start(*factor, Passes(newton_schulz, form));
  Iterate(newton_schulz, form, ops);
  ops.Finish();
  const bool sound = form == Form::kGram ? ops.WithinBound(newton_schulz) : ops.Measure().finite;
  return CheckResult(form, sound, rows, cols);
}

}  // namespace dmuon::kernels
