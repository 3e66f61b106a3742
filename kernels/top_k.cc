// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/top_k.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/orthonormal_rows.h"
#include "kernels/cpu/symmetric_eigen.h"

namespace dmuon::kernels {
namespace {

enum Buffer : size_t { kBlock, kSpan, kLeft, kShort };
static_assert(kShort + 1 == kTopKBuffers);
constexpr int kPolishSteps = 2;

// A number in [-1, 1) that its arguments alone decide, by the finalizer of SplitMix64 (Steele, Lea and Flood, 2014).
float Noise(uint64_t key, uint64_t counter) {
  uint64_t bits = key + (counter + 1) * 0x9e3779b97f4a7c15;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
  bits ^= bits >> 31;
  return static_cast<float>(static_cast<int32_t>(bits >> 40) - (1 << 23)) * 0x1p-23F;
}

class Run {
 public:
  Run(int64_t rank, int64_t step, int64_t rows, int64_t cols, MatrixView basis, TopKMatrix& matrix,
      Scratch& scratch)
      : basis_(basis), s_(std::min(rows, cols)), rank_(rank), width_(KrylovWidth(rank, s_)),
        smallest_kept_(SmallestKept(rows, cols)),
        key_(static_cast<uint64_t>(step) * 0xd1342543de82ef95 + static_cast<uint64_t>(rows) * 0x2545f4914f6cdd1d +
             static_cast<uint64_t>(cols)),
        matrix_(matrix), scratch_(scratch) {}

  // False when the small eigenproblem found no end.
  bool Compute() {
    matrix_.MakeImage(width_, width_ < s_ ? MakeSpan() : nullptr);
    std::vector<double> products = matrix_.ImageProducts();
    const std::optional<Eigen> eigen = LargestEigen(width_, rank_, products);
    if (!eigen) return false;
    MakeVectors(*eigen);
    matrix_.Finish();
    return true;
  }

 private:
  float* Get(Buffer buffer, int64_t rows, int64_t cols) {
    return scratch_.Get(buffer, static_cast<size_t>(rows) * static_cast<size_t>(cols)).data();
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

  // width_ orthonormal vectors of s.
  const float* MakeSpan() {
    const int64_t block = width_ / kKrylovIterations;
    float* start = Get(kBlock, block, s_);
    float* span = Get(kSpan, width_, s_);
    Start(block, start);
    OrthonormalRows rows(s_);
    for (int64_t done = 0; done < width_; done += block) {
      const float* from = done == 0 ? start : span + (done - block) * s_;
      float* to = span + done * s_;
      matrix_.MultiplySquare(block, from, to);
      const auto row = [&](int64_t i) { return std::span(to + i * s_, static_cast<size_t>(s_)); };
      for (int64_t i = 0; i < block; ++i) rows.Append(row(i));
      for (int64_t i = 0; i < block; ++i) rows.Get(done + i, row(i));
    }
    return span;
  }

  // Singular vectors of both sides, for singular values that are not zero.
  void MakeVectors(const Eigen& eigen) {
    const auto singular = [&](int64_t i) { return std::sqrt(std::max(0.0, eigen.values[static_cast<size_t>(i)])); };
    const double smallest = smallest_kept_ * singular(0);
    int64_t kept = 0;
    while (kept < rank_ && singular(kept) >= smallest) ++kept;
    float* left = Get(kLeft, kept, width_);
    const auto fill = [&](bool divided) {
      for (int64_t i = 0; i < kept; ++i) {
        const double factor = divided ? 1.0 / singular(i) : 1.0;
        for (int64_t c = 0; c < width_; ++c) {
          left[i * width_ + c] = static_cast<float>(factor * eigen.vectors[static_cast<size_t>(i * width_ + c)]);
        }
      }
    };
    fill(false);
    float* vectors = Get(kShort, kept, s_);
    matrix_.MakeShort(kept, left, vectors);
    KeepBasis(kept, vectors);
    fill(true);
    matrix_.MakeLong(kept, left);
    // Division by small singular values has enlarged the rounding of the image.
    for (int i = 0; i < kPolishSteps; ++i) matrix_.Polish();
  }

  void KeepBasis(int64_t kept, const float* vectors) const {
    const int64_t rows = std::min(kept, basis_.rows);
    std::copy_n(vectors, rows * s_, basis_.data);
    std::fill(basis_.data + rows * s_, basis_.data + basis_.rows * s_, 0.0F);
  }

  const MatrixView basis_;
  const int64_t s_, rank_, width_;
  const double smallest_kept_;
  const uint64_t key_;
  TopKMatrix& matrix_;
  Scratch& scratch_;
};

}  // namespace

absl::Status RunTopK(const TopK& top_k, int64_t step, int64_t rows, int64_t cols, MatrixView basis,
                     TopKMatrix& matrix, Scratch& scratch) {
  const std::string shape = absl::StrCat(rows, " x ", cols);
  const GradientStats stats = matrix.Measure();
  if (!stats.finite) {
    return absl::InvalidArgumentError(absl::StrCat("input of top-k is not finite (", shape, ")"));
  }
  if (stats.max_abs == 0.0) return absl::OkStatus();
  matrix.Multiply(1.0 / std::sqrt(stats.sum_squares));
  Run run(RankAt(top_k, step, std::min(rows, cols)), step, rows, cols, basis, matrix, scratch);
  if (run.Compute() && matrix.Measure().finite) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("top-k of a finite ", shape, " matrix gave no finite result"));
}

}  // namespace dmuon::kernels
