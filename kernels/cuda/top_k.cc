// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda/top_k.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/cuda/matrix_kernels.h"
#include "kernels/cuda/newton_schulz.h"
#include "kernels/cuda/products.h"
#include "kernels/top_k.h"

namespace dmuon::kernels::cuda {
namespace {

// A matrix by columns, as cuBLAS has them; vectors, which are rows, are its columns.
struct Columns {
  const float* data;
  int64_t stride;
  bool transposed = false;
};
Columns Transposed(Columns matrix) { return {matrix.data, matrix.stride, !matrix.transposed}; }

size_t Elements(int64_t rows, int64_t cols) { return static_cast<size_t>(rows) * static_cast<size_t>(cols); }

class DeviceMatrix final : public TopKMatrix {
 public:
  DeviceMatrix(MatrixView x, Stream& stream)
      : x_(x), wide_(x.rows <= x.cols), s_(std::min(x.rows, x.cols)), l_(std::max(x.rows, x.cols)), stream_(stream) {}

  GradientStats Measure() override { return MeasureOnDevice(stream_, x_.data, s_ * l_); }

  // Into memory of our own, where it is aligned.
  void Multiply(double factor) override {
    scaled_ = stream_.Get<float>(Slot::kMatrix, Elements(s_, l_));
    stream_.Do("Multiply", [&](cudaStream_t on) { return cuda::Multiply(on, s_ * l_, factor, x_.data, scaled_); });
  }

  void MultiplySquare(int64_t count, const float* from, float* to) override {
    float* vectors = Get(Slot::kBlock, count, s_);
    float* between = Get(Slot::kImage, count, l_);
    stream_.Upload(vectors, from, Elements(count, s_));
    Compute(l_, count, s_, Transposed(X()), {vectors, s_}, between);
    Compute(s_, count, l_, X(), {between, l_}, vectors);
    stream_.Download(to, vectors, Elements(count, s_));
  }

  // By columns width x l, so that threads of neighbouring vectors read neighbouring elements.
  void MakeImage(int64_t width, const float* span) override {
    width_ = width;
    span_ = nullptr;
    if (span == nullptr) {
      image_ = X();
      return;
    }
    span_ = Get(Slot::kSpan, width_, s_);
    float* image = Get(Slot::kImage, width_, l_);
    stream_.Upload(span_, span, Elements(width_, s_));
    Compute(width_, l_, s_, Transposed({span_, s_}), X(), image);
    image_ = {image, width_};
  }

  std::vector<double> ImageProducts() override {
    const size_t count = Elements(width_, width_);
    auto* products = stream_.Get<double>(Slot::kProducts, count);
    const Lines lines{.count = width_, .length = l_, .line_stride = image_.transposed ? image_.stride : 1,
                      .element_stride = image_.transposed ? 1 : image_.stride};
    stream_.Do("InnerProducts", [&](cudaStream_t on) { return InnerProducts(on, lines, image_.data, products); });
    return stream_.Read(products, count);
  }

  void MakeShort(int64_t kept, const float* left, float* to) override {
    kept_ = kept;
    short_ = Get(Slot::kShort, kept_, s_);
    const Columns on_device = Left(left);
    if (span_ != nullptr) {
      Compute(s_, kept_, width_, {span_, s_}, on_device, short_);
    } else {
      stream_.Copy(short_, on_device.data, Elements(kept_, s_) * sizeof(float));
    }
    stream_.Download(to, short_, Elements(kept_, s_));
  }

  void MakeLong(int64_t kept, const float* left) override {
    long_ = Get(Slot::kLong, kept, l_);
    other_ = Get(Slot::kPolished, kept, l_);
    Compute(l_, kept, width_, Transposed(image_), Left(left), long_);
  }

  void Polish() override {
    float* square = Get(Slot::kSquares, kept_, kept_);
    const Columns vectors{long_, l_};
    Compute(kept_, kept_, l_, Transposed(vectors), vectors, square);
    Compute(l_, kept_, kept_, vectors, {square, kept_}, other_, -0.5F, 1.5F, long_);
    std::swap(long_, other_);
  }

  void Finish() override {
    float* product = stream_.Get<float>(Slot::kOtherMatrix, Elements(s_, l_));
    const Columns short_vectors{short_, s_};
    const Columns long_vectors{long_, l_};
    Compute(wide_ ? l_ : s_, wide_ ? s_ : l_, kept_, wide_ ? long_vectors : short_vectors,
            Transposed(wide_ ? short_vectors : long_vectors), product);
    stream_.Copy(x_.data, product, Elements(s_, l_) * sizeof(float));
  }

 private:
  // s x l.
  [[nodiscard]] Columns X() const { return {scaled_, wide_ ? l_ : s_, wide_}; }

  float* Get(Slot slot, int64_t rows, int64_t cols) { return stream_.Get<float>(slot, Elements(rows, cols)); }
  Columns Left(const float* left) {
    float* copy = Get(Slot::kLeft, kept_, width_);
    stream_.Upload(copy, left, Elements(kept_, width_));
    return {copy, width_};
  }

  // out = alpha*a*b + beta*c: rows x cols, without gaps, and so is c.
  void Compute(int64_t rows, int64_t cols, int64_t depth, Columns a, Columns b, float* out, float alpha = 1.0F,
               float beta = 0.0F, const float* c = nullptr) {
    Products::OfThread().Compute(
        stream_,
        {.transpose_a = a.transposed, .transpose_b = b.transposed, .rows = rows, .cols = cols, .depth = depth,
         .a_stride = a.stride, .b_stride = b.stride, .d_stride = rows, .precision = Precision::kFloat32},
        {.a = a.data, .b = b.data, .alpha = alpha, .beta = beta, .c = c, .d = out});
  }

  const MatrixView x_;
  const bool wide_;
  const int64_t s_, l_;
  Stream& stream_;
  int64_t width_ = 0;
  int64_t kept_ = 0;
  float* scaled_ = nullptr;
  float* span_ = nullptr;  // null: the identity
  Columns image_{nullptr, 0};  // width_ x l
  float* short_ = nullptr;
  float* long_ = nullptr;
  float* other_ = nullptr;
};

}  // namespace

absl::Status OrthogonalizeTopKOnDevice(const TopK& top_k, int64_t step, MatrixView x, MatrixView basis,
                                       Scratch& scratch, Stream& stream) {
  DeviceMatrix matrix(x, stream);
  return RunTopK(top_k, step, x.rows, x.cols, basis, matrix, scratch);
}

}  // namespace dmuon::kernels::cuda
