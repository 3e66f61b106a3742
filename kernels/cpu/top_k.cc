// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/top_k.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/orthonormal_rows.h"
#include "kernels/cpu/products.h"
#include "kernels/cpu/symmetric_eigen.h"

namespace dmuon::kernels {
namespace {

enum Buffer : size_t { kBlock, kImage, kBasis, kLeft, kShort, kLong, kPolished, kSquare, kPanels };
constexpr int kPolishSteps = 2;

// A number in [-1, 1) that its arguments alone decide, by the finalizer of SplitMix64 (Steele, Lea and Flood, 2014).
float Noise(uint64_t key, uint64_t counter) {
  uint64_t bits = key + (counter + 1) * 0x9e3779b97f4a7c15;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
  bits ^= bits >> 31;
  return static_cast<float>(static_cast<int32_t>(bits >> 40) - (1 << 23)) * 0x1p-23F;
}

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

// One matrix: s x l, read through its transpose where it is tall. Vectors are rows.
class Run {
 public:
  Run(int64_t rank, int64_t step, MatrixView x, MatrixView basis, Scratch& scratch)
      : x_(x), basis_(basis), wide_(x.rows <= x.cols), s_(std::min(x.rows, x.cols)), l_(std::max(x.rows, x.cols)),
        rank_(rank), width_(KrylovWidth(rank, s_)),
        key_(static_cast<uint64_t>(step) * 0xd1342543de82ef95 + static_cast<uint64_t>(x.rows) * 0x2545f4914f6cdd1d +
             static_cast<uint64_t>(x.cols)),
        kernel_(*MicroKernels(Precision::kFloat32).front()), scratch_(scratch) {}

  // False when the small eigenproblem found no end.
  bool Compute() {
    image_ = Get(kImage, width_, l_);
    if (width_ < s_) {
      MakeBasis();
      Multiply(width_, l_, s_, Rows(span_, s_), Along(), image_);
    } else {
      CopyWhole();
    }
    std::vector<double> gram = RowProducts(image_, width_, l_);
    const std::optional<Eigen> eigen = LargestEigen(width_, rank_, gram);
    if (!eigen) return false;
    MakeVectors(*eigen);
    KeepBasis();
    const Operand left = Columns(wide_ ? short_ : long_, wide_ ? s_ : l_);
    const Operand right = Columns(wide_ ? long_ : short_, wide_ ? l_ : s_);
    Multiply(x_.rows, x_.cols, kept_, left, right, x_.data);
    return true;
  }

 private:
  static Operand Rows(const float* data, int64_t cols) { return {data, cols, 1}; }
  static Operand Columns(const float* data, int64_t cols) { return {data, 1, cols}; }
  // Lines of the matrix: l_ of depth s_, and s_ of depth l_.
  [[nodiscard]] Operand Along() const { return wide_ ? Columns(x_.data, l_) : Rows(x_.data, s_); }
  [[nodiscard]] Operand Across() const { return wide_ ? Rows(x_.data, l_) : Columns(x_.data, s_); }

  float* Get(Buffer buffer, int64_t rows, int64_t cols) {
    return scratch_.Get(buffer, static_cast<size_t>(rows) * static_cast<size_t>(cols)).data();
  }
  void Multiply(int64_t rows, int64_t cols, int64_t depth, Operand left, Operand right, float* out) {
    kernels::Compute({.rows = rows, .cols = cols, .depth = depth, .left = left, .right = right, .out = out}, kernel_,
                     scratch_, kPanels);
  }

  // The last step's vectors, and noise where there are none.
  void Start(int64_t block, float* start) const {
    for (int64_t r = 0; r < block; ++r) {
      float* row = start + r * s_;
      const float* last = basis_.data + r * s_;
      const bool known = r < std::min(rank_, basis_.rows) && std::any_of(last, last + s_, [](float v) { return v != 0.0F; });
      for (int64_t c = 0; c < s_; ++c) row[c] = known ? last[c] : Noise(key_, static_cast<uint64_t>(r * s_ + c));
    }
  }

  // span_ gets width_ orthonormal rows.
  void MakeBasis() {
    const int64_t block = width_ / kKrylovIterations;
    float* start = Get(kBlock, block, s_);
    span_ = Get(kBasis, width_, s_);
    Start(block, start);
    OrthonormalRows rows(s_);
    for (int64_t done = 0; done < width_; done += block) {
      const float* from = done == 0 ? start : span_ + (done - block) * s_;
      float* to = span_ + done * s_;
      Multiply(block, l_, s_, Rows(from, s_), Along(), image_);
      Multiply(block, s_, l_, Rows(image_, l_), Across(), to);
      const auto row = [&](int64_t i) { return std::span(to + i * s_, static_cast<size_t>(s_)); };
      for (int64_t i = 0; i < block; ++i) rows.Append(row(i));
      for (int64_t i = 0; i < block; ++i) rows.Get(done + i, row(i));
    }
  }

  void CopyWhole() {
    if (wide_) {
      std::copy_n(x_.data, s_ * l_, image_);
      return;
    }
    for (int64_t r = 0; r < l_; ++r) {
      for (int64_t c = 0; c < s_; ++c) image_[c * l_ + r] = x_.data[r * s_ + c];
    }
  }

  // Singular vectors of both sides, for singular values that are not zero.
  void MakeVectors(const Eigen& eigen) {
    const auto singular = [&](int64_t i) { return std::sqrt(std::max(0.0, eigen.values[static_cast<size_t>(i)])); };
    const double smallest = SmallestKept(x_.rows, x_.cols) * singular(0);
    while (kept_ < rank_ && singular(kept_) >= smallest) ++kept_;
    float* left = Get(kLeft, kept_, width_);
    const auto fill = [&](bool divided) {
      for (int64_t i = 0; i < kept_; ++i) {
        const double factor = divided ? 1.0 / singular(i) : 1.0;
        for (int64_t c = 0; c < width_; ++c) {
          left[i * width_ + c] = static_cast<float>(factor * eigen.vectors[static_cast<size_t>(i * width_ + c)]);
        }
      }
    };
    short_ = Get(kShort, kept_, s_);
    fill(false);
    if (width_ < s_) {
      Multiply(kept_, s_, width_, Rows(left, width_), Columns(span_, s_), short_);
    } else {
      std::copy_n(left, kept_ * s_, short_);
    }
    long_ = Get(kLong, kept_, l_);
    fill(true);
    Multiply(kept_, l_, width_, Rows(left, width_), Columns(image_, l_), long_);
    Polish();
  }

  // Division by small singular values has enlarged the rounding of the image.
  void Polish() {
    float* other = Get(kPolished, kept_, l_);
    float* square = Get(kSquare, kept_, kept_);
    for (int i = 0; i < kPolishSteps; ++i) {
      const Operand rows = Rows(long_, l_);
      kernels::Compute({.rows = kept_, .cols = kept_, .depth = l_, .left = rows, .right = rows, .out = square,
                        .symmetric = true}, kernel_, scratch_, kPanels);
      kernels::Compute({.rows = kept_, .cols = l_, .depth = kept_, .left = Rows(square, kept_),
                        .right = Columns(long_, l_), .out = other, .alpha = -0.5F, .base = long_, .beta = 1.5F},
                       kernel_, scratch_, kPanels);
      std::swap(long_, other);
    }
  }

  void KeepBasis() {
    const int64_t rows = std::min(kept_, basis_.rows);
    std::copy_n(short_, rows * s_, basis_.data);
    std::fill(basis_.data + rows * s_, basis_.data + basis_.rows * s_, 0.0F);
  }

  const MatrixView x_, basis_;
  const bool wide_;
  const int64_t s_, l_, rank_, width_;
  const uint64_t key_;
  const MicroKernel& kernel_;
  Scratch& scratch_;
  int64_t kept_ = 0;
  float* span_ = nullptr;   // width_ x s_, orthonormal rows; unused where it would be the identity
  float* image_ = nullptr;  // width_ x l_: span_ times the matrix
  float* short_ = nullptr;  // kept_ x s_
  float* long_ = nullptr;   // kept_ x l_
};

}  // namespace

absl::Status OrthogonalizeTopKFloat(const TopK& top_k, int64_t step, MatrixView x, MatrixView basis, Scratch& scratch) {
  const std::string shape = absl::StrCat(x.rows, " x ", x.cols);
  const std::span<float> values(x.data, static_cast<size_t>(x.rows) * static_cast<size_t>(x.cols));
  const GradientStats stats = MeasureFloat(values);
  if (!stats.finite) {
    return absl::InvalidArgumentError(absl::StrCat("input of top-k is not finite (", shape, ")"));
  }
  if (stats.max_abs == 0.0) return absl::OkStatus();
  MultiplyFloat(1.0 / std::sqrt(stats.sum_squares), values, values);
  Run run(RankAt(top_k, step, std::min(x.rows, x.cols)), step, x, basis, scratch);
  if (run.Compute() && AllFinite(values)) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("top-k of a finite ", shape, " matrix gave no finite result"));
}

}  // namespace dmuon::kernels
