// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/newton_schulz.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "kernels/cpu/blocks.h"
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
    shift_[out] = 0.0;
  }

  void TakeMeanEigenvalue(Square square) override {
    const float* values = At(square);
    double trace = 0.0;
    for (int64_t i = 0; i < s_; ++i) trace += static_cast<double>(values[i * s_ + i]);
    const double mean = trace / static_cast<double>(s_);
    AddToDiagonal(-mean, square);
    shift_[square] += mean;
  }

  void MakePoly(const Quintic& q, Precision precision) override {
    const double shift = shift_[kGram];
    MultiplyStored(kGram, kGram, q.c, q.b + 2.0 * q.c * shift, kPoly, precision);
    shift_[kPoly] = q.a + shift * (q.b + q.c * shift);
  }

  void Multiply(Square left, Square right, Square out, Precision precision) override {
    MultiplyStored(left, right, 1.0, shift_[left], out, precision);
    shift_[out] = 0.0;
    if (shift_[right] == 0.0) return;
    const size_t elements = static_cast<size_t>(s_) * static_cast<size_t>(s_);
    const std::span<const float> source(At(left), elements);
    const std::span<float> sum(At(out), elements);
    ForEachBlock(elements, [&](size_t at, size_t n) {
      AddMultiple(static_cast<float>(shift_[right]), source.subspan(at, n), sum.subspan(at, n));
    });
    AddToDiagonal(shift_[right] * shift_[left], out);
  }

  void Copy(Square from, Square to) override {
    std::copy_n(At(from), s_ * s_, At(to));
    AddToDiagonal(shift_[from], to);
    shift_[to] = 0.0;
  }

  void MultiplyMatrix(Square square) override {
    Compute({.rows = from_.rows, .cols = from_.cols, .depth = s_,
             .left = wide_ ? Rows(At(square), s_) : Rows(from_.data, from_.cols),
             .right = wide_ ? Columns(from_.data, from_.cols) : Columns(At(square), s_), .out = to_.data,
             .base = from_.data, .beta = static_cast<float>(shift_[square])},
            kernel_, scratch_, kPanels);
    std::swap(from_, to_);
  }

  bool WithinBound(const NewtonSchulz& newton_schulz) override { return WithinSingularBound(newton_schulz, x_); }

 private:
  [[nodiscard]] size_t Elements() const { return static_cast<size_t>(s_) * static_cast<size_t>(l_); }
  float* At(Square square) { return scratch_.Get(square, static_cast<size_t>(s_) * static_cast<size_t>(s_)).data(); }
  // A matrix by its rows and by its columns.
  static Operand Rows(const float* data, int64_t cols) { return {data, cols, 1}; }
  static Operand Columns(const float* data, int64_t cols) { return {data, 1, cols}; }

  // out = alpha*left*right + beta*right, of what is stored.
  void MultiplyStored(Square left, Square right, double alpha, double beta, Square out, Precision precision) {
    Compute({.rows = s_, .cols = s_, .depth = s_, .left = Rows(At(left), s_), .right = Columns(At(right), s_), .out = At(out),
             .alpha = static_cast<float>(alpha), .base = At(right), .beta = static_cast<float>(beta), .symmetric = true},
            *MicroKernels(precision).front(), scratch_, kPanels);
  }

  void AddToDiagonal(double value, Square square) {
    float* values = At(square);
    for (int64_t i = 0; i < s_; ++i) values[i * s_ + i] += static_cast<float>(value);
  }

  const MicroKernel& kernel_;  // of products with the matrix
  Scratch& scratch_;
  const bool wide_;
  const int64_t s_, l_;
  const MatrixView x_;
  MatrixView from_, to_;
  std::array<double, kSquares> shift_{};
};

}  // namespace

absl::Status OrthogonalizeFloat(const NewtonSchulz& newton_schulz, const Method& method, MatrixView x,
                                Scratch& scratch) {
  if (absl::Status status = CheckDimensions(x); !status.ok()) return status;
  CpuOperations operations(method, x, scratch);
  return RunNewtonSchulz(newton_schulz, method, x.rows, x.cols, operations);
}

}  // namespace dmuon::kernels
