// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda/newton_schulz.h"

#include <algorithm>
#include <array>
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
constexpr int64_t kItemMultiple = 128;   // the same, from one matrix of a batch to the next

// Larger matrices keep a device busy one by one.
constexpr int64_t kLargestInBatch = int64_t{1} << 22;  // elements
constexpr size_t kBatchBytes = size_t{512} << 20;      // of device memory, for all of a batch

int64_t RoundUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

size_t Elements(int64_t rows, int64_t cols) { return static_cast<size_t>(rows) * static_cast<size_t>(cols); }

// The matrices are padded into `from`; a product writes `to`, and they change places. s is the shorter side.
class DeviceOperations final : public NewtonSchulzOperations {
 public:
  DeviceOperations(Precision precision, const MatrixBatch& x, Stream& stream)
      : precision_(precision), x_(x),
        padding_{x.rows, x.cols, RoundUp(x.rows, kPadding), RoundUp(x.cols, kPadding)}, wide_(x.rows <= x.cols),
        real_s_(std::min(x.rows, x.cols)), s_(std::min(padding_.padded_rows, padding_.padded_cols)),
        l_(std::max(padding_.padded_rows, padding_.padded_cols)),
        matrix_{x.items, x.items == 1 ? s_ * l_ : RoundUp(s_ * l_, kItemMultiple)},
        square_{x.items, x.items == 1 ? s_ * s_ : RoundUp(s_ * s_, kItemMultiple)}, stream_(stream) {}

  // Where X lies before `passes` products; after them it is in kMatrix.
  void Place(int passes) {
    from_ = stream_.Get<float>(Slot::kMatrix, Room(matrix_));
    to_ = stream_.Get<float>(Slot::kOtherMatrix, Room(matrix_));
    if (passes % 2 != 0) std::swap(from_, to_);
  }
  // X <- factor * the caller's; it will be multiplied `passes` times before Finish. What has the factor 0 stays as it
  // is.
  void Start(const BatchFactors& factors, int passes) {
    Place(passes);
    stream_.Do("Pad", [&](cudaStream_t on) { return Pad(on, padding_, matrix_, factors, x_.data, from_); });
  }
  // The caller's <- X.
  void Finish(const BatchFactors& factors) {
    const float* x = stream_.Get<float>(Slot::kMatrix, Room(matrix_));
    stream_.Do("Unpad", [&](cudaStream_t on) { return Unpad(on, padding_, matrix_, factors, x, x_.data); });
  }

  // By columns a wide X is l x s, a tall one s x l.
  void Gram(Square out) override {
    const void* x = Rounded(from_, matrix_, precision_, Slot::kRoundedMatrix);
    rounded_matrix_ = x;
    const int64_t stride = wide_ ? l_ : s_;
    Symmetric({.transpose_a = wide_, .transpose_b = !wide_, .rows = s_, .cols = s_, .depth = l_, .a_stride = stride,
               .b_stride = stride, .d_stride = s_, .precision = precision_},
              {.a = x, .b = x, .alpha = 1.0F, .beta = 0.0F, .c = nullptr, .d = At(out)}, matrix_.stride);
    shift_[out] = {};
  }

  void TakeMeanEigenvalue(Square square) override {
    const auto items = static_cast<size_t>(x_.items);
    auto* partials = stream_.Get<double>(Slot::kMeanPartials, items * kPartialStats);
    auto* sums = stream_.Get<double>(Slot::kMeans, items);
    float* values = At(square);
    const Shift before = shift_[square];
    ProductScalars* after = OnDevice(square);
    stream_.Do("TakeMeans", [&](cudaStream_t on) {
      return TakeMeans(on, Diagonal(), values, partials, sums, before, after);
    });
  }

  void MakePoly(const Quintic& q, Precision precision) override {
    const Shift shift = shift_[kGram];
    const bool known = shift.of_each == nullptr;
    const double m = shift.of_all;
    MultiplyStored(kGram, kGram, q.c, known ? q.b + 2.0 * q.c * m : q.b, kPoly, precision);
    shift_[kPoly] = {q.a + m * (q.b + q.c * m), nullptr};
    if (known) return;
    const float* gram = At(kGram);
    float* poly = At(kPoly);
    ProductScalars* shifts = OnDevice(kPoly);
    stream_.Do("AddPolyShifts", [&](cudaStream_t on) {
      return AddPolyShifts(on, Diagonal(), q.a, q.b, q.c, gram, shift, poly, shifts);
    });
  }

  // A product that read a shift on the device would be a call for each of a batch.
  void Multiply(Square left, Square right, Square out, Precision precision) override {
    const bool in_product = shift_[left].of_each == nullptr && IsNone(shift_[right]);
    MultiplyStored(left, right, 1.0, in_product ? shift_[left].of_all : 0.0, out, precision);
    shift_[out] = {};
    if (in_product) return;
    const float* a = At(left);
    const float* b = At(right);
    float* sum = At(out);
    stream_.Do("AddShifts", [&](cudaStream_t on) {
      return AddShifts(on, Diagonal(), a, shift_[left], b, shift_[right], sum);
    });
  }

  void Copy(Square from, Square to) override {
    float* values = At(to);
    stream_.Copy(values, At(from), Room(square_) * sizeof(float));
    stream_.Do("AddToDiagonal", [&](cudaStream_t on) { return AddToDiagonal(on, Diagonal(), shift_[from], values); });
    shift_[to] = {};
  }

  void MultiplyMatrix(Square square) override {
    const void* p = Rounded(At(square), square_, precision_, Slot::kRoundedLeft);
    const void* x = rounded_matrix_;  // Gram came before, and X has not moved since
    const Shift shift = shift_[square];
    const int64_t rows = wide_ ? l_ : s_;
    const int64_t cols = wide_ ? s_ : l_;
    const ProductKind kind{.transpose_a = false, .transpose_b = false, .rows = rows, .cols = cols, .depth = s_,
                           .a_stride = rows, .b_stride = s_, .d_stride = rows, .precision = precision_,
                           .scalars_on_device = shift.of_each != nullptr};
    Products::OfThread().Compute(stream_, kind,
                                 {.a = wide_ ? x : p, .b = wide_ ? p : x, .alpha = 1.0F,
                                  .beta = static_cast<float>(shift.of_all), .c = from_, .d = to_,
                                  .scalars = shift.of_each},
                                 {.items = x_.items, .a = wide_ ? matrix_.stride : square_.stride,
                                  .b = wide_ ? square_.stride : matrix_.stride, .d = matrix_.stride});
    std::swap(from_, to_);
  }

 private:
  // In elements, from the first to the last.
  static size_t Room(const Batch& batch) { return Elements(batch.items, batch.stride); }
  [[nodiscard]] Diagonals Diagonal() const { return {square_, real_s_, s_}; }

  float* At(Square square) {
    const auto slot = static_cast<size_t>(Slot::kSquares) + static_cast<size_t>(square);
    return static_cast<float*>(stream_.GetBytes(slot, Room(square_) * sizeof(float)));
  }

  // `values` in the precision of a product; a rounded copy lies in `slot`.
  const void* Rounded(const float* values, const Batch& batch, Precision precision, Slot slot) {
    if (precision == Precision::kFloat32) return values;
    auto* rounded = stream_.Get<uint16_t>(slot, Room(batch));
    const auto count = static_cast<int64_t>(Room(batch));
    stream_.Do("CastToBf16", [&](cudaStream_t on) { return CastToBf16(on, count, values, rounded); });
    return rounded;
  }

  static bool IsNone(const Shift& shift) { return shift.of_each == nullptr && shift.of_all == 0.0; }
  // The square's shifts lie on the device from now on, where they are about to be written.
  ProductScalars* OnDevice(Square square) {
    const auto items = static_cast<size_t>(x_.items);
    ProductScalars* all = stream_.Get<ProductScalars>(Slot::kScalars, kSquares * items);
    ProductScalars* scalars = all == nullptr ? nullptr : all + square * items;
    shift_[square] = {0.0, scalars};
    return scalars;
  }

  // out = alpha*left*right + beta*right, of what is stored.
  void MultiplyStored(Square left, Square right, double alpha, double beta, Square out, Precision precision) {
    const void* a = Rounded(At(left), square_, precision, Slot::kRoundedLeft);
    const void* b = left == right ? a : Rounded(At(right), square_, precision, Slot::kRoundedRight);
    Symmetric({.transpose_a = false, .transpose_b = false, .rows = s_, .cols = s_, .depth = s_, .a_stride = s_,
               .b_stride = s_, .d_stride = s_, .precision = precision},
              {.a = a, .b = b, .alpha = static_cast<float>(alpha), .beta = static_cast<float>(beta), .c = At(right),
               .d = At(out)}, square_.stride);
  }

  // A product whose result is symmetric, of operands that lie `stride` elements apart.
  void Symmetric(const ProductKind& kind, const ProductOperands& operands, int64_t stride) {
    if (s_ < kPanelSize) {
      Products::OfThread().Compute(stream_, kind, operands,
                                   {.items = x_.items, .a = stride, .b = stride, .d = square_.stride});
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

  const Precision precision_;  // of products with the matrix
  const MatrixBatch x_;
  const Padding padding_;
  const bool wide_;
  const int64_t real_s_;  // without padding
  const int64_t s_, l_;
  const Batch matrix_, square_;
  Stream& stream_;
  float* from_ = nullptr;
  float* to_ = nullptr;
  const void* rounded_matrix_ = nullptr;
  std::array<Shift, kSquares> shift_{};
};

// What the iterations depend on. Factors and the caller's memory are not among it: those come before and after.
GraphKey KeyOf(const NewtonSchulz& newton_schulz, const Method& method, const MatrixBatch& x) {
  static_assert(sizeof(Method) == 2, "all of it is in the key");
  GraphKey key = {static_cast<double>(x.rows), static_cast<double>(x.cols), static_cast<double>(x.items),
                  static_cast<double>(method.form), static_cast<double>(method.precision)};
  for (int i = 0; i < newton_schulz.iterations; ++i) {
    const Quintic q = newton_schulz.coefficients.at(i);
    key.insert(key.end(), {q.a, q.b, q.c});
  }
  return key;
}

std::vector<GradientStats> Measure(const MatrixBatch& x, Stream& stream) {
  constexpr uint32_t kInfinity = 0x7f800000;
  const auto items = static_cast<size_t>(x.items);
  const int64_t count = x.rows * x.cols;
  auto* partials = stream.Get<DeviceStats>(Slot::kPartials, items * kPartialStats);
  auto* results = stream.Get<DeviceStats>(Slot::kResult, items);
  stream.Do("Measure", [&](cudaStream_t on) {
    return cuda::Measure(on, {x.items, count}, count, x.data, partials, results);
  });
  std::vector<GradientStats> stats;
  for (const DeviceStats& of_one : stream.Read(results, items)) {
    stats.push_back({.sum_squares = of_one.sum_squares,
                     .max_abs = static_cast<double>(std::bit_cast<float>(of_one.largest)),
                     .finite = of_one.largest < kInfinity});
  }
  return stats;
}

// WithinSingularBound of each, which is finite.
std::vector<bool> WithinBound(const NewtonSchulz& newton_schulz, const MatrixBatch& x, Stream& stream) {
  const auto items = static_cast<size_t>(x.items);
  const std::vector<float> start = PowerIterationStart(static_cast<size_t>(x.cols));
  std::vector<double> vectors;
  for (size_t item = 0; item < items; ++item) vectors.insert(vectors.end(), start.begin(), start.end());
  auto* v = stream.Get<double>(Slot::kColumnVector, vectors.size());
  auto* left = stream.Get<double>(Slot::kRowVector, Elements(x.items, x.rows));
  auto* partials = stream.Get<double>(Slot::kPartials, items * kPartialStats);
  auto* sums = stream.Get<double>(Slot::kResult, (kPowerIterations + 1) * items);
  stream.Upload(v, vectors);
  // All iterations before the host looks at any.
  for (int i = 0; i <= kPowerIterations; ++i) {
    double* out = sums + static_cast<size_t>(i) * items;
    stream.Do("SumSquares", [&](cudaStream_t on) { return SumSquares(on, {x.items, x.cols}, x.cols, v, partials, out); });
    if (i == kPowerIterations) break;
    stream.Do("TimesVectors", [&](cudaStream_t on) { return TimesVectors(on, x.items, x.rows, x.cols, x.data, v, left); });
    stream.Do("TransposedTimesVectors", [&](cudaStream_t on) {
      return TransposedTimesVectors(on, x.items, x.rows, x.cols, x.data, left, v);
    });
  }
  const std::vector<double> squares = stream.Read(sums, (kPowerIterations + 1) * items);
  std::vector<bool> within;
  for (size_t item = 0; item < items; ++item) {
    size_t at = item;
    within.push_back(GrowthWithinBound(newton_schulz, [&] {
      const double before = squares[std::exchange(at, at + items)];
      return std::sqrt(squares[at] / before);
    }));
  }
  return within;
}

}  // namespace

GradientStats MeasureOnDevice(Stream& stream, const float* values, int64_t count) {
  return Measure({const_cast<float*>(values), 1, count, 1}, stream).front();
}

size_t DeviceBatchSize(const MatrixShape& shape) {
  const int64_t s = RoundUp(std::min(shape.rows, shape.cols), kPadding);
  const int64_t l = RoundUp(std::max(shape.rows, shape.cols), kPadding);
  if (s <= 0 || s >= kPanelSize || s * l > kLargestInBatch) return 1;
  constexpr size_t kMatrixBytes = 3 * 4 + 2;         // as it came, twice in fp32, once rounded
  constexpr size_t kSquareBytes = 4 * 4 + 2 * 2;     // four in fp32, two rounded
  const size_t bytes = kMatrixBytes * Elements(s, l) + kSquareBytes * Elements(s, s);
  return std::clamp<size_t>(kBatchBytes / bytes, 1, kLargestBatch);
}

void OrthogonalizeOnDevice(const NewtonSchulz& newton_schulz, const Method& method, const MatrixBatch& x,
                           std::span<absl::Status> statuses, Stream& stream) {
  const std::vector<GradientStats> stats = Measure(x, stream);
  BatchFactors factors{};
  bool any = false;
  for (size_t i = 0; i < statuses.size(); ++i) {
    const absl::StatusOr<double> factor = StartFactor(newton_schulz, stats[i], x.rows, x.cols);
    statuses[i] = factor.status();
    factors.of[i] = factor.ok() ? *factor : 0.0;
    any = any || factors.of[i] != 0.0;
  }
  if (!any) return;
  DeviceOperations operations(method.precision, x, stream);
  const int passes = Passes(newton_schulz, method.form);
  operations.Start(factors, passes);
  stream.Repeat(KeyOf(newton_schulz, method, x), [&] {
    operations.Place(passes);
    Iterate(newton_schulz, method, operations);
  });
  operations.Finish(factors);
  const std::vector<GradientStats> after = Measure(x, stream);
  const bool gram = method.form == Form::kGram;
  const std::vector<bool> within = gram ? WithinBound(newton_schulz, x, stream) : std::vector<bool>(statuses.size(), true);
  for (size_t i = 0; i < statuses.size(); ++i) {
    if (factors.of[i] != 0.0) statuses[i] = CheckResult(method.form, after[i].finite && within[i], x.rows, x.cols);
  }
}

}  // namespace dmuon::kernels::cuda
