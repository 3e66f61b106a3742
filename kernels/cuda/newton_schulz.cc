// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda/newton_schulz.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>
#include <vector>

#include "kernels/cpu/singular_bound.h"
#include "kernels/cuda/matrix_kernels.h"
#include "kernels/cuda/products.h"
#include "kernels/newton_schulz.h"

namespace dmuon::kernels::cuda {
namespace {

// Zero rows and columns stay zero and change no sum, and whole multiples of this let every product read 16
// bytes at a time.
constexpr int64_t kPadding = 8;
// A symmetric result from this size on is computed by panels of columns, each from its diagonal on: with four of
// them 5/8 of the work. Smaller panels would leave a large device idle.
#ifndef DMUON_CUDA_PANEL_SIZE  // tests lower it
#define DMUON_CUDA_PANEL_SIZE 4096
#endif
constexpr int64_t kPanelSize = DMUON_CUDA_PANEL_SIZE;
constexpr int64_t kPanels = 4;
constexpr int64_t kPanelMultiple = 128;  // keeps addresses aligned to 256 bytes

int64_t RoundUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// The matrix is padded into `from`; a product writes `to`, and they change places. s is its shorter side.
class DeviceOperations final : public NewtonSchulzOperations {
 public:
  DeviceOperations(const Method& method, MatrixView x, Stream& stream)
      : precision_(method.precision), x_(x),
        padding_{x.rows, x.cols, RoundUp(x.rows, kPadding), RoundUp(x.cols, kPadding)}, wide_(x.rows <= x.cols),
        real_s_(std::min(x.rows, x.cols)), s_(std::min(padding_.padded_rows, padding_.padded_cols)),
        l_(std::max(padding_.padded_rows, padding_.padded_cols)), stream_(stream) {}

  GradientStats Measure() override { return MeasureOnDevice(stream_, x_.data, x_.rows * x_.cols); }

  void Start(double factor, int /*passes*/) override {
    from_ = stream_.Get<float>(Slot::kMatrix, Elements(s_, l_));
    to_ = stream_.Get<float>(Slot::kOtherMatrix, Elements(s_, l_));
    stream_.Do("Pad", [&](cudaStream_t on) { return Pad(on, padding_, factor, x_.data, from_); });
  }
  void Finish() override {
    stream_.Do("Unpad", [&](cudaStream_t on) { return Unpad(on, padding_, from_, x_.data); });
  }

  // By columns a wide X is l x s, a tall one s x l.
  void Gram(Square out) override {
    const void* x = Rounded(from_, s_ * l_, precision_, Slot::kRoundedMatrix);
    rounded_matrix_ = x;
    const int64_t stride = wide_ ? l_ : s_;
    Symmetric({.transpose_a = wide_, .transpose_b = !wide_, .rows = s_, .cols = s_, .depth = l_, .a_stride = stride,
               .b_stride = stride, .d_stride = s_, .precision = precision_},
              {.a = x, .b = x, .alpha = 1.0F, .beta = 0.0F, .c = nullptr, .d = At(out)});
  }

  void Multiply(Square left, Square right, double alpha, double beta, Square base, Square out,
                Precision precision) override {
    const void* a = Rounded(At(left), s_ * s_, precision, Slot::kRoundedLeft);
    const void* b = left == right ? a : Rounded(At(right), s_ * s_, precision, Slot::kRoundedRight);
    Symmetric({.transpose_a = false, .transpose_b = false, .rows = s_, .cols = s_, .depth = s_, .a_stride = s_,
               .b_stride = s_, .d_stride = s_, .precision = precision},
              {.a = a, .b = b, .alpha = static_cast<float>(alpha), .beta = static_cast<float>(beta), .c = At(base),
               .d = At(out)});
  }

  void AddMultiple(double factor, Square from, Square to) override {
    const float* source = At(from);
    float* sum = At(to);
    stream_.Do("AddMultiple", [&](cudaStream_t on) { return cuda::AddMultiple(on, s_ * s_, factor, source, sum); });
  }

  void AddIdentity(Square from, double value, Square to) override {
    if (from != to) stream_.Copy(At(to), At(from), Elements(s_, s_) * sizeof(float));
    stream_.Do("AddToDiagonal", [&](cudaStream_t on) { return AddToDiagonal(on, real_s_, s_, value, At(to)); });
  }

  double TakeMeanEigenvalue(Square square) override {
    auto* partials = stream_.Get<double>(Slot::kPartials, kPartialStats);
    auto* mean = stream_.Get<double>(Slot::kResult, 1);
    float* values = At(square);
    stream_.Do("TakeMean", [&](cudaStream_t on) { return TakeMean(on, real_s_, s_, values, partials, mean); });
    return stream_.Read(mean, 1)[0];
  }

  void MultiplyMatrix(Square square, double beta) override {
    const void* p = Rounded(At(square), s_ * s_, precision_, Slot::kRoundedLeft);
    const void* x = rounded_matrix_;  // Gram came before, and X has not moved since
    const int64_t rows = wide_ ? l_ : s_;
    const int64_t cols = wide_ ? s_ : l_;
    const ProductKind kind{.transpose_a = false, .transpose_b = false, .rows = rows, .cols = cols, .depth = s_,
                           .a_stride = rows, .b_stride = s_, .d_stride = rows, .precision = precision_};
    Products::OfThread().Compute(stream_, kind,
                                 {.a = wide_ ? x : p, .b = wide_ ? p : x, .alpha = 1.0F,
                                  .beta = static_cast<float>(beta), .c = from_, .d = to_});
    std::swap(from_, to_);
  }

  bool WithinBound(const NewtonSchulz& newton_schulz) override {
    if (!Measure().finite) return false;
    const auto cols = static_cast<size_t>(x_.cols);
    const std::vector<float> start = PowerIterationStart(cols);
    const std::vector<double> wide(start.begin(), start.end());
    double before = 0.0;
    for (const double value : wide) before += value * value;
    auto* v = stream_.Get<double>(Slot::kColumnVector, cols);
    stream_.Upload(v, wide);
    return GrowthWithinBound(newton_schulz, [&] {
      const double after = PowerIteration(v);
      return std::sqrt(after / std::exchange(before, after));
    });
  }

 private:
  static size_t Elements(int64_t rows, int64_t cols) { return static_cast<size_t>(rows) * static_cast<size_t>(cols); }

  float* At(Square square) {
    const auto slot = static_cast<size_t>(Slot::kSquares) + static_cast<size_t>(square);
    return static_cast<float*>(stream_.GetBytes(slot, Elements(s_, s_) * sizeof(float)));
  }

  // `values` in the precision of a product; a rounded copy lies in `slot`.
  const void* Rounded(const float* values, int64_t count, Precision precision, Slot slot) {
    if (precision == Precision::kFloat32) return values;
    auto* rounded = stream_.Get<uint16_t>(slot, static_cast<size_t>(count));
    stream_.Do("CastToBf16", [&](cudaStream_t on) { return CastToBf16(on, count, values, rounded); });
    return rounded;
  }

  // A product whose result is symmetric.
  void Symmetric(const ProductKind& kind, const ProductOperands& operands) {
    if (s_ < kPanelSize) {
      Products::OfThread().Compute(stream_, kind, operands);
      return;
    }
    const int64_t width = RoundUp((s_ + kPanels - 1) / kPanels, kPanelMultiple);
    for (int64_t at = 0; at < s_; at += width) {
      ProductKind panel = kind;
      panel.rows = s_ - at;
      panel.cols = std::min(width, s_ - at);
      // Row `at` of op(a) and column `at` of op(b).
      const int64_t corner = at * kind.d_stride + at;
      Products::OfThread().Compute(
          stream_, panel,
          {.a = Element(operands.a, kind.transpose_a ? at * kind.a_stride : at, kind.precision),
           .b = Element(operands.b, kind.transpose_b ? at : at * kind.b_stride, kind.precision),
           .alpha = operands.alpha, .beta = operands.beta, .c = operands.c == nullptr ? nullptr : operands.c + corner,
           .d = operands.d + corner});
    }
    // What is below the diagonal by columns is above it by rows.
    stream_.Do("MirrorUpper", [&](cudaStream_t on) { return MirrorUpper(on, s_, operands.d); });
  }
  static const void* Element(const void* values, int64_t at, Precision precision) {
    return static_cast<const std::byte*>(values) + at * (precision == Precision::kBFloat16 ? 2 : 4);
  }

  // v <- X^T X v; returns |X^T X v|^2.
  double PowerIteration(double* v) {
    auto* left = stream_.Get<double>(Slot::kRowVector, static_cast<size_t>(x_.rows));
    auto* partials = stream_.Get<double>(Slot::kPartials, kPartialStats);
    auto* sum = stream_.Get<double>(Slot::kResult, 1);
    stream_.Do("TimesVector", [&](cudaStream_t on) { return TimesVector(on, x_.rows, x_.cols, x_.data, v, left); });
    stream_.Do("TransposedTimesVector",
               [&](cudaStream_t on) { return TransposedTimesVector(on, x_.rows, x_.cols, x_.data, left, v); });
    stream_.Do("SumSquares", [&](cudaStream_t on) { return SumSquares(on, x_.cols, v, partials, sum); });
    return stream_.Read(sum, 1)[0];
  }

  const Precision precision_;  // of products with the matrix
  const MatrixView x_;
  const Padding padding_;
  const bool wide_;
  const int64_t real_s_;  // without padding
  const int64_t s_, l_;
  Stream& stream_;
  float* from_ = nullptr;
  float* to_ = nullptr;
  const void* rounded_matrix_ = nullptr;
};

}  // namespace

GradientStats MeasureOnDevice(Stream& stream, const float* values, int64_t count) {
  constexpr uint32_t kInfinity = 0x7f800000;
  auto* partials = stream.Get<DeviceStats>(Slot::kPartials, kPartialStats);
  auto* result = stream.Get<DeviceStats>(Slot::kResult, 1);
  stream.Do("Measure", [&](cudaStream_t on) { return Measure(on, count, values, partials, result); });
  const DeviceStats stats = stream.Read(result, 1)[0];
  return {.sum_squares = stats.sum_squares,
          .max_abs = static_cast<double>(std::bit_cast<float>(stats.largest)),
          .finite = stats.largest < kInfinity};
}

absl::Status OrthogonalizeOnDevice(const NewtonSchulz& newton_schulz, const Method& method, MatrixView x,
                                   Stream& stream) {
  DeviceOperations operations(method, x, stream);
  return RunNewtonSchulz(newton_schulz, method, x.rows, x.cols, operations);
}

}  // namespace dmuon::kernels::cuda
