// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/top_k.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>
#include <vector>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/products.h"
#include "kernels/top_k.h"

namespace dmuon::kernels {
namespace {

enum Buffer : size_t { kImage = kTopKBuffers, kLong, kPolished, kSquare, kPanels };

// The inner products of `count` rows of `length`, in double, both halves.
std::vector<double> RowProducts(const float* rows, int64_t count, int64_t length) {
  constexpr int64_t kTile = 4, kLanes = 4;
  std::vector<double> out(static_cast<size_t>(count * count));
  for (int64_t i = 0; i < count; i += kTile) {
    const int64_t tile = std::min(kTile, count - i);
    for (int64_t j = i; j < count; ++j) {
      std::array<double, kTile * kLanes> sums{};
      const float* right = rows + j * length;
      // Rows of a tile that does not reach the end repeat its first.
      std::array<const float*, kTile> left;
      for (int64_t t = 0; t < kTile; ++t) left[static_cast<size_t>(t)] = rows + (t < tile ? i + t : i) * length;
      int64_t k = 0;
      for (; k + kLanes <= length; k += kLanes) {
        for (size_t t = 0; t < kTile; ++t) {
          for (size_t lane = 0; lane < kLanes; ++lane) {
            sums[t * kLanes + lane] += static_cast<double>(left[t][k + static_cast<int64_t>(lane)]) *
                                       static_cast<double>(right[k + static_cast<int64_t>(lane)]);
          }
        }
      }
      for (int64_t t = 0; t < tile; ++t) {
        const auto row = static_cast<size_t>(t);
        double total = 0.0;
        for (size_t lane = 0; lane < kLanes; ++lane) total += sums[row * kLanes + lane];
        for (int64_t rest = k; rest < length; ++rest) {
          total += static_cast<double>(left[row][rest]) * static_cast<double>(right[rest]);
        }
        out[static_cast<size_t>((i + t) * count + j)] = total;
        out[static_cast<size_t>(j * count + i + t)] = total;
      }
    }
  }
  return out;
}

class CpuMatrix final : public TopKMatrix {
 public:
  CpuMatrix(MatrixView x, Scratch& scratch)
      : x_(x), wide_(x.rows <= x.cols), s_(std::min(x.rows, x.cols)), l_(std::max(x.rows, x.cols)),
        kernel_(*MicroKernels(Precision::kFloat32).front()), scratch_(scratch) {}

  GradientStats Measure() override { return MeasureFloat(Values()); }
  void Multiply(double factor) override { MultiplyFloat(factor, Values(), Values()); }

  void MultiplySquare(int64_t count, const float* from, float* to) override {
    float* between = Get(kImage, count, l_);
    Compute({.rows = count, .cols = l_, .depth = s_, .left = Rows(from, s_), .right = Along(), .out = between});
    Compute({.rows = count, .cols = s_, .depth = l_, .left = Rows(between, l_), .right = Across(), .out = to});
  }

  void MakeImage(int64_t width, const float* span) override {
    width_ = width;
    span_ = span;
    image_ = Get(kImage, width_, l_);
    if (span != nullptr) {
      Compute({.rows = width_, .cols = l_, .depth = s_, .left = Rows(span, s_), .right = Along(), .out = image_});
    } else if (wide_) {
      std::copy_n(x_.data, s_ * l_, image_);
    } else {
      for (int64_t r = 0; r < l_; ++r) {
        for (int64_t c = 0; c < s_; ++c) image_[c * l_ + r] = x_.data[r * s_ + c];
      }
    }
  }

  std::vector<double> ImageProducts() override { return RowProducts(image_, width_, l_); }

  void MakeShort(int64_t kept, const float* left, float* to) override {
    kept_ = kept;
    short_ = to;
    if (span_ != nullptr) {
      Compute({.rows = kept_, .cols = s_, .depth = width_, .left = Rows(left, width_), .right = Columns(span_, s_),
               .out = to});
    } else {
      std::copy_n(left, kept_ * s_, to);
    }
  }

  void MakeLong(int64_t kept, const float* left) override {
    long_ = Get(kLong, kept, l_);
    other_ = Get(kPolished, kept, l_);
    Compute({.rows = kept, .cols = l_, .depth = width_, .left = Rows(left, width_), .right = Columns(image_, l_),
             .out = long_});
  }

  void Polish() override {
    float* square = Get(kSquare, kept_, kept_);
    const Operand rows = Rows(long_, l_);
    Compute({.rows = kept_, .cols = kept_, .depth = l_, .left = rows, .right = rows, .out = square, .symmetric = true});
    Compute({.rows = kept_, .cols = l_, .depth = kept_, .left = Rows(square, kept_), .right = Columns(long_, l_),
             .out = other_, .alpha = -0.5F, .base = long_, .beta = 1.5F});
    std::swap(long_, other_);
  }

  void Finish() override {
    Compute({.rows = x_.rows, .cols = x_.cols, .depth = kept_, .left = Columns(wide_ ? short_ : long_, wide_ ? s_ : l_),
             .right = Columns(wide_ ? long_ : short_, wide_ ? l_ : s_), .out = x_.data});
  }

 private:
  static Operand Rows(const float* data, int64_t cols) { return {data, cols, 1}; }
  static Operand Columns(const float* data, int64_t cols) { return {data, 1, cols}; }
  // Lines of the matrix: l_ of depth s_, and s_ of depth l_.
  [[nodiscard]] Operand Along() const { return wide_ ? Columns(x_.data, l_) : Rows(x_.data, s_); }
  [[nodiscard]] Operand Across() const { return wide_ ? Rows(x_.data, l_) : Columns(x_.data, s_); }

  [[nodiscard]] std::span<float> Values() const {
    return {x_.data, static_cast<size_t>(s_) * static_cast<size_t>(l_)};
  }
  float* Get(Buffer buffer, int64_t rows, int64_t cols) {
    return scratch_.Get(buffer, static_cast<size_t>(rows) * static_cast<size_t>(cols)).data();
  }
  void Compute(const Product& product) { kernels::Compute(product, kernel_, scratch_, kPanels); }

  const MatrixView x_;
  const bool wide_;
  const int64_t s_, l_;
  const MicroKernel& kernel_;
  Scratch& scratch_;
  int64_t width_ = 0;
  int64_t kept_ = 0;
  const float* span_ = nullptr;
  float* image_ = nullptr;  // width_ x l_
  const float* short_ = nullptr;
  float* long_ = nullptr;   // kept_ x l_
  float* other_ = nullptr;
};

}  // namespace

absl::Status OrthogonalizeTopKFloat(const TopK& top_k, int64_t step, MatrixView x, MatrixView basis, Scratch& scratch) {
  CpuMatrix matrix(x, scratch);
  return RunTopK(top_k, step, x.rows, x.cols, basis, matrix, scratch);
}

}  // namespace dmuon::kernels
