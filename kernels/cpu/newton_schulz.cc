// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/newton_schulz.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/products.h"

namespace dmuon::kernels {
namespace {

enum Buffer : size_t { kOther, kGram, kPoly };

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

absl::Status CheckShape(const MatrixView& x) {
  constexpr int64_t kLargest = std::numeric_limits<int>::max();
  if (x.rows >= 0 && x.cols >= 0 && x.rows <= kLargest && x.cols <= kLargest) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("matrix is ", x.rows, " x ", x.cols,
                                                 "; each dimension must be in [0, ", kLargest,
                                                 "]"));
}

}  // namespace

absl::Status OrthogonalizeFloat(const NewtonSchulz& newton_schulz, MatrixView x, Scratch& scratch) {
  if (absl::Status shape = CheckShape(x); !shape.ok()) return shape;
  const std::span<float> values(x.data, static_cast<size_t>(x.rows) * static_cast<size_t>(x.cols));
  // Squares of fp32 numbers, even subnormal ones, are normal numbers in double: no rescaling.
  const GradientStats stats = MeasureFloat(values);
  if (!stats.finite) {
    return absl::InvalidArgumentError(
        absl::StrCat("input of Newton-Schulz is not finite (", x.rows, " x ", x.cols, ")"));
  }
  if (stats.max_abs == 0.0) return absl::OkStatus();  // zero stays zero, 0/0 otherwise

  const int64_t s = std::min(x.rows, x.cols);
  const size_t square = static_cast<size_t>(s) * static_cast<size_t>(s);
  MatrixView from = x;
  MatrixView to = x;
  to.data = scratch.Get(kOther, values.size()).data();
  const std::span<float> gram = scratch.Get(kGram, square);
  const std::span<float> poly = scratch.Get(kPoly, square);
  // Each iteration goes to the other buffer; start where the last one ends in `x`.
  if (newton_schulz.iterations % 2 != 0) std::swap(from, to);
  MultiplyFloat(Reciprocal(newton_schulz, std::sqrt(stats.sum_squares)), values,
                std::span<float>(from.data, values.size()));
  for (int i = 0; i < newton_schulz.iterations; ++i) {
    Gram(from, gram);
    Polynomial(Coefficient(newton_schulz.coefficients, i), s, gram, poly);
    Multiply(poly, from, std::span<float>(to.data, values.size()));
    std::swap(from, to);
  }
  if (AllFinite(values)) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("Newton-Schulz of a finite ", x.rows, " x ", x.cols,
                                          " matrix gave a non-finite result"));
}

}  // namespace dmuon::kernels
