// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/newton_schulz.h"

#include <algorithm>
#include <span>
#include <utility>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/products.h"
#include "kernels/cpu/singular_bound.h"
#include "kernels/newton_schulz.h"

namespace dmuon::kernels {
namespace {

// Of the scratch: the squares, then these.
enum Buffer : size_t { kOther = NewtonSchulzOperations::kSquares, kPanels };

// The matrix on its way: `from` holds it, `to` is as large. s is its shorter side.
class CpuOperations final : public WholeNewtonSchulz {
 public:
  CpuOperations(const Method& method, MatrixView x, Scratch& scratch)
      : kernel_(*MicroKernels(method.precision).front()),
        square_kernel_(method.form == Form::kGram ? *MicroKernels(Precision::kFloat32).front() : kernel_),
        scratch_(scratch), wide_(x.rows <= x.cols), s_(std::min(x.rows, x.cols)), l_(std::max(x.rows, x.cols)), x_(x), from_(x), to_(x) {}

  GradientStats Measure() override { return MeasureFloat({x_.data, Elements()}); }

  // The matrix moves to the other buffer at each pass; it shall end in the caller's.
  void Start(double factor, int passes) override {
    to_.data = scratch_.Get(kOther, Elements()).data();
    if (passes % 2 != 0) std::swap(from_, to_);
    MultiplyFloat(factor, {x_.data, Elements()}, {from_.data, Elements()});
  }
  void Finish() override {}

  void Gram(Square out) override {
    const Operand lines = wide_ ? Rows(from_.data, from_.cols) : Columns(from_.data, from_.cols);
    Compute({.rows = s_, .cols = s_, .depth = l_, .left = lines, .right = lines, .out = At(out), .symmetric = true},
            kernel_, scratch_, kPanels);
  }

  void Multiply(Square left, Square right, double alpha, double beta, Square base, Square out) override {
    Compute({.rows = s_, .cols = s_, .depth = s_, .left = Rows(At(left), s_), .right = Columns(At(right), s_), .out = At(out),
             .alpha = static_cast<float>(alpha), .base = At(base), .beta = static_cast<float>(beta), .symmetric = true},
            square_kernel_, scratch_, kPanels);
  }

  void AddIdentity(Square from, double value, Square to) override {
    std::copy_n(At(from), s_ * s_, At(to));
    AddToDiagonal(value, At(to));
  }

  void MultiplyMatrix(Square square, double beta) override {
    Compute({.rows = from_.rows, .cols = from_.cols, .depth = s_,
             .left = wide_ ? Rows(At(square), s_) : Rows(from_.data, from_.cols),
             .right = wide_ ? Columns(from_.data, from_.cols) : Columns(At(square), s_), .out = to_.data,
             .base = from_.data, .beta = static_cast<float>(beta)},
            kernel_, scratch_, kPanels);
    std::swap(from_, to_);
  }

  void MultiplyMatrixAboutMean(Square square) override {
    const float* values = At(square);
    double trace = 0.0;
    for (int64_t i = 0; i < s_; ++i) trace += static_cast<double>(values[i * s_ + i]);
    const double mean = trace / static_cast<double>(s_);
    AddToDiagonal(-mean, At(square));
    MultiplyMatrix(square, mean);
  }

  bool WithinBound(const NewtonSchulz& newton_schulz) override { return WithinSingularBound(newton_schulz, x_); }

 private:
  [[nodiscard]] size_t Elements() const { return static_cast<size_t>(s_) * static_cast<size_t>(l_); }
  float* At(Square square) { return scratch_.Get(square, static_cast<size_t>(s_) * static_cast<size_t>(s_)).data(); }
  // A matrix by its rows and by its columns.
  static Operand Rows(const float* data, int64_t cols) { return {data, cols, 1}; }
  static Operand Columns(const float* data, int64_t cols) { return {data, 1, cols}; }

  void AddToDiagonal(double value, float* square) const {
    for (int64_t i = 0; i < s_; ++i) square[i * s_ + i] += static_cast<float>(value);
  }

  const MicroKernel& kernel_;         // of products with the matrix
  const MicroKernel& square_kernel_;  // of products on its smaller side
  Scratch& scratch_;
  const bool wide_;
  const int64_t s_, l_;
  const MatrixView x_;
  MatrixView from_, to_;
};

}  // namespace

absl::Status OrthogonalizeFloat(const NewtonSchulz& newton_schulz, const Method& method, MatrixView x,
                                Scratch& scratch) {
  if (absl::Status status = CheckDimensions(x); !status.ok()) return status;
  CpuOperations operations(method, x, scratch);
  return RunNewtonSchulz(newton_schulz, method.form, x.rows, x.cols, operations);
}

}  // namespace dmuon::kernels
