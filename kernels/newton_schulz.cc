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

void Standard(const NewtonSchulz& newton_schulz, Precision precision, Ops& ops) {
  for (int i = 0; i < newton_schulz.iterations; ++i) {
    const Quintic q = newton_schulz.coefficients.at(i);
    ops.Gram(Ops::kGram);
    ops.Multiply(Ops::kGram, Ops::kGram, q.c, q.b, Ops::kGram, Ops::kPoly, precision);
    ops.MultiplyMatrix(Ops::kPoly, q.a);
  }
}

// Products of the Gram form on the smaller side. Rounding an operand leaves noise as large as the operand, and a
// multiple of the identity needs no product: what is rounded is without its mean eigenvalue, which of all multiples
// leaves the least.
class GramSquares {
 public:
  GramSquares(Precision precision, Ops& ops) : rounds_(precision != Precision::kFloat32), ops_(ops) {}

  // kPoly + shift()*I = a I + b kGram + c kGram^2. Where it is rounded, kGram is spent.
  void MakePoly(const Quintic& q, bool rounded) {
    rounded = rounded && rounds_;
    const double mean = rounded ? ops_.TakeMeanEigenvalue(Ops::kGram) : 0.0;
    ops_.Multiply(Ops::kGram, Ops::kGram, q.c, q.b + 2.0 * q.c * mean, Ops::kGram, Ops::kPoly, In(rounded));
    shift_ = q.a + mean * (q.b + q.c * mean);
    if (rounds_) shift_ += ops_.TakeMeanEigenvalue(Ops::kPoly);
  }

  // out = (kPoly + shift()*I) * square. Where it is rounded, `square` is spent.
  void TimesPoly(Ops::Square square, Ops::Square out, bool rounded) {
    rounded = rounded && rounds_;
    const double mean = rounded ? ops_.TakeMeanEigenvalue(square) : 0.0;
    ops_.Multiply(Ops::kPoly, square, 1.0, shift_, square, out, In(rounded));
    if (!rounded) return;
    ops_.AddMultiple(mean, Ops::kPoly, out);
    ops_.AddIdentity(out, mean * shift_, out);
  }

  [[nodiscard]] double shift() const { return shift_; }

 private:
  [[nodiscard]] Precision In(bool rounded) const { return rounded ? Precision::kBFloat16 : Precision::kFloat32; }

  const bool rounds_;
  Ops& ops_;
  double shift_ = 0.0;
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
      ops.AddIdentity(Ops::kPoly, squares.shift(), factor);
    } else {
      squares.TimesPoly(factor, next, true);
      std::swap(factor, next);
    }
    fresh = last;
    if (last) {
      // Here the matrix is rounded, too, and its noise grows in each singular direction by the square's eigenvalue there.
      const double mean = ops.TakeMeanEigenvalue(factor);
      ops.MultiplyMatrix(factor, mean);
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

absl::Status RunNewtonSchulz(const NewtonSchulz& newton_schulz, const Method& method, int64_t rows, int64_t cols,
                             Ops& ops) {
  const std::string shape = absl::StrCat(rows, " x ", cols);
  // Squares of fp32 numbers, even subnormal ones, are normal numbers in double: no rescaling.
  const GradientStats stats = ops.Measure();
  if (!stats.finite) {
    return absl::InvalidArgumentError(absl::StrCat("input of Newton-Schulz is not finite (", shape, ")"));
  }
  if (stats.max_abs == 0.0) return absl::OkStatus();  // zero stays zero, 0/0 otherwise

  const bool gram = method.form == Form::kGram;
  ops.Start(Reciprocal(newton_schulz, std::sqrt(stats.sum_squares)),
            gram ? GramPasses(newton_schulz.iterations) : newton_schulz.iterations);
  if (gram) {
    GramForm(newton_schulz, method.precision, ops);
  } else {
    Standard(newton_schulz, method.precision, ops);
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
