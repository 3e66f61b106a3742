// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/newton_schulz.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/products.h"
#include "kernels/cpu/singular_bound.h"

namespace dmuon::kernels {
namespace {

enum Buffer : size_t { kOther, kGram, kPoly, kFactor, kNext, kPanels };

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

// One matrix on its way: `from` holds it, `to` is as large. s is its shorter side.
class Run {
 public:
  Run(const NewtonSchulz& newton_schulz, const Method& method, MatrixView x, Scratch& scratch)
      : newton_schulz_(newton_schulz), kernel_(*MicroKernels(method.precision).front()),
        square_kernel_(method.form == Form::kGram ? *MicroKernels(Precision::kFloat32).front() : kernel_),
        scratch_(scratch), wide_(x.rows <= x.cols), s_(std::min(x.rows, x.cols)), l_(std::max(x.rows, x.cols)), from_(x), to_(x) {
    to_.data = scratch.Get(kOther, Elements()).data();
  }

  [[nodiscard]] size_t Elements() const { return static_cast<size_t>(s_) * static_cast<size_t>(l_); }

  // `passes`: how often the matrix moves to the other buffer; it shall end in the caller's.
  void Start(double factor, int passes) {
    const std::span<float> values(from_.data, Elements());
    if (passes % 2 != 0) std::swap(from_, to_);
    MultiplyFloat(factor, values, {from_.data, Elements()});
  }

  void Standard() {
    float* gram = Square(kGram);
    float* poly = Square(kPoly);
    for (int i = 0; i < newton_schulz_.iterations; ++i) {
      const Quintic q = newton_schulz_.coefficients.at(i);
      Gram(gram);
      Multiply(gram, gram, q.c, q.b, gram, poly);
      MultiplyMatrix(poly, q.a);
    }
  }

  void GramForm() {
    float* gram = Square(kGram);
    float* poly = Square(kPoly);
    float* factor = Square(kFactor);
    float* next = Square(kNext);
    bool fresh = true;  // nothing has been put into `factor` since the matrix moved
    for (int i = 0; i < newton_schulz_.iterations; ++i) {
      if (fresh) Gram(gram);
      const Quintic q = newton_schulz_.coefficients.at(i);
      Multiply(gram, gram, q.c, q.b, gram, poly);
      if (fresh) {
        std::copy_n(poly, s_ * s_, factor);
        AddToDiagonal(q.a, factor);
      } else {
        Multiply(factor, poly, 1.0, q.a, factor, next);
        std::swap(factor, next);
      }
      fresh = i + 1 == newton_schulz_.iterations || GramRestartsAt(i + 1);
      if (fresh) {
        const double mean = TakeMeanEigenvalue(factor);
        MultiplyMatrix(factor, mean);
      } else {
        Multiply(gram, poly, 1.0, q.a, gram, next);
        Multiply(poly, next, 1.0, q.a, next, gram);
      }
    }
  }

 private:
  float* Square(Buffer buffer) {
    return scratch_.Get(buffer, static_cast<size_t>(s_) * static_cast<size_t>(s_)).data();
  }
  // A matrix by its rows and by its columns.
  static Operand Rows(const float* data, int64_t cols) { return {data, cols, 1}; }
  static Operand Columns(const float* data, int64_t cols) { return {data, 1, cols}; }

  void Gram(float* out) {
    const Operand lines = wide_ ? Rows(from_.data, from_.cols) : Columns(from_.data, from_.cols);
    Compute({.rows = s_, .cols = s_, .depth = l_, .left = lines, .right = lines, .out = out, .symmetric = true},
            kernel_, scratch_, kPanels);
  }

  // out = alpha*left*right + beta*base, all symmetric s x s, and left and right commute.
  void Multiply(const float* left, const float* right, double alpha, double beta, const float* base, float* out) {
    Compute({.rows = s_, .cols = s_, .depth = s_, .left = Rows(left, s_), .right = Columns(right, s_), .out = out,
             .alpha = static_cast<float>(alpha), .base = base, .beta = static_cast<float>(beta), .symmetric = true},
            square_kernel_, scratch_, kPanels);
  }

  // A product reads the matrix rounded to the precision, and that noise grows in each singular direction by the
  // square's eigenvalue there. So the mean eigenvalue is taken out of the product, to be multiplied with the
  // matrix as it is: of all multiples of the identity, this one leaves the least noise.
  double TakeMeanEigenvalue(float* square) const {
    double trace = 0.0;
    for (int64_t i = 0; i < s_; ++i) trace += static_cast<double>(square[i * s_ + i]);
    const double mean = trace / static_cast<double>(s_);
    AddToDiagonal(-mean, square);
    return mean;
  }

  // to = (square + beta*I)*from, from the right for a tall matrix; then they change places.
  void MultiplyMatrix(const float* square, double beta) {
    Compute({.rows = from_.rows, .cols = from_.cols, .depth = s_,
             .left = wide_ ? Rows(square, s_) : Rows(from_.data, from_.cols),
             .right = wide_ ? Columns(from_.data, from_.cols) : Columns(square, s_), .out = to_.data,
             .base = from_.data, .beta = static_cast<float>(beta)},
            kernel_, scratch_, kPanels);
    std::swap(from_, to_);
  }

  void AddToDiagonal(double value, float* square) const {
    for (int64_t i = 0; i < s_; ++i) square[i * s_ + i] += static_cast<float>(value);
  }

  const NewtonSchulz& newton_schulz_;
  const MicroKernel& kernel_;         // of products with the matrix
  const MicroKernel& square_kernel_;  // of products on its smaller side
  Scratch& scratch_;
  const bool wide_;
  const int64_t s_, l_;
  MatrixView from_, to_;
};

}  // namespace

absl::Status OrthogonalizeFloat(const NewtonSchulz& newton_schulz, const Method& method, MatrixView x,
                                Scratch& scratch) {
  const std::string shape = absl::StrCat(x.rows, " x ", x.cols);
  if (x.rows < 0 || x.cols < 0) {
    return absl::InvalidArgumentError(absl::StrCat("matrix is ", shape, "; each dimension must be at least 0"));
  }
  const std::span<float> values(x.data, static_cast<size_t>(x.rows) * static_cast<size_t>(x.cols));
  // Squares of fp32 numbers, even subnormal ones, are normal numbers in double: no rescaling.
  const GradientStats stats = MeasureFloat(values);
  if (!stats.finite) {
    return absl::InvalidArgumentError(absl::StrCat("input of Newton-Schulz is not finite (", shape, ")"));
  }
  if (stats.max_abs == 0.0) return absl::OkStatus();  // zero stays zero, 0/0 otherwise

  const bool gram = method.form == Form::kGram;
  Run run(newton_schulz, method, x, scratch);
  run.Start(Reciprocal(newton_schulz, std::sqrt(stats.sum_squares)),
            gram ? GramPasses(newton_schulz.iterations) : newton_schulz.iterations);
  if (!gram) {
    run.Standard();
    if (AllFinite(values)) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat("Newton-Schulz of a finite ", shape, " matrix gave a non-finite result"));
  }
  run.GramForm();
  if (WithinSingularBound(newton_schulz, x)) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("the Gram form of Newton-Schulz diverged on a ", shape, " matrix"));
}

}  // namespace dmuon::kernels
