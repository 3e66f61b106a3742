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

void Standard(const NewtonSchulz& newton_schulz, Precision precision, Ops& ops) {
  for (int i = 0; i < newton_schulz.iterations; ++i) {
    ops.Gram(Ops::kGram);
    ops.MakePoly(newton_schulz.coefficients.at(i), precision);
    ops.MultiplyMatrix(Ops::kPoly);
  }
}

// Products of the Gram form on the smaller side. Rounding an operand leaves noise as large as the operand, and a
// multiple of the identity needs no product: what is rounded is without its mean eigenvalue, which of all multiples
// leaves the least.
class GramSquares {
 public:
  GramSquares(Precision precision, Ops& ops) : precision_(precision), ops_(ops) {}

  // kPoly = a I + b kGram + c kGram^2.
  void MakePoly(const Quintic& q, bool rounded) {
    if (rounded) Prepare(Ops::kGram);
    ops_.MakePoly(q, In(rounded));
    Prepare(Ops::kPoly);
  }

  // out = kPoly * square.
  void TimesPoly(Ops::Square square, Ops::Square out, bool rounded) {
    if (rounded) Prepare(square);
    ops_.Multiply(Ops::kPoly, square, out, In(rounded));
  }

 private:
  void Prepare(Ops::Square square) {
    if (precision_ != Precision::kFloat32) ops_.TakeMeanEigenvalue(square);
  }
  [[nodiscard]] Precision In(bool rounded) const { return rounded ? precision_ : Precision::kFloat32; }

  const Precision precision_;
  Ops& ops_;
};

void GramForm(const NewtonSchulz& newton_schulz, Precision precision, Ops& ops) {
  const auto passes_at = [&](int i) { return GramPassesAt(i, newton_schulz.iterations); };
  GramSquares squares(precision, ops);
  Ops::Square factor = Ops::kFactor;
  Ops::Square next = Ops::kNext;
  bool fresh = true;  // nothing has been put into `factor` since the matrix moved
  for (int i = 0; i < newton_schulz.iterations; ++i) {
    const bool last = passes_at(i + 1);
    if (fresh) ops.Gram(Ops::kGram);
    squares.MakePoly(newton_schulz.coefficients.at(i), last);
    if (fresh) {
      ops.Copy(Ops::kPoly, factor);
    } else {
      squares.TimesPoly(factor, next, true);
      std::swap(factor, next);
    }
    fresh = last;
    if (last) {
      // Here the matrix is rounded, too, and its noise grows in each singular direction by the square's eigenvalue there.
      ops.TakeMeanEigenvalue(factor);
      ops.MultiplyMatrix(factor);
    } else {
      squares.TimesPoly(Ops::kGram, next, false);
      squares.TimesPoly(next, Ops::kGram, passes_at(i + 2));
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

void Iterate(const NewtonSchulz& newton_schulz, const Method& method, Ops& ops) {
  if (method.form == Form::kGram) {
    GramForm(newton_schulz, method.precision, ops);
  } else {
    Standard(newton_schulz, method.precision, ops);
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

absl::Status RunNewtonSchulz(const NewtonSchulz& newton_schulz, const Method& method, int64_t rows, int64_t cols,
                             WholeNewtonSchulz& ops) {
  const absl::StatusOr<double> factor = StartFactor(newton_schulz, ops.Measure(), rows, cols);
  if (!factor.ok() || *factor == 0.0) return factor.status();
  ops.Start(*factor, Passes(newton_schulz, method.form));
  Iterate(newton_schulz, method, ops);
  ops.Finish();
  const bool sound = method.form == Form::kGram ? ops.WithinBound(newton_schulz) : ops.Measure().finite;
  return CheckResult(method.form, sound, rows, cols);
}

}  // namespace dmuon::kernels
