// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/products.h"

#include <algorithm>
#include <cstddef>

#include "kernels/cpu/team.h"

namespace dmuon::kernels {
namespace {

// Depth that is packed at a time: bounds the panels' memory. A multiple of every stretch.
constexpr int64_t kChunk = 2048;
// A block of tiles is one thread's at a time; its panels of one stretch stay in its cache.
constexpr int64_t kBlockRows = 112, kBlockCols = 256;
constexpr int64_t kLargestTile = 14 * 32;
constexpr int64_t kBand = 64;  // rows that a thread mirrors at a time; a multiple of what transposes at once

int64_t Ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }

// All panels of one operand, stretch by stretch.
class Panels {
 public:
  Panels(const Operand& operand, int64_t lines, int64_t width, size_t floats,
         void (*pack)(const PanelSource&, float*))
      : operand_(operand), lines_(lines), width_(width), floats_(static_cast<int64_t>(floats)),
        pack_(pack) {}

  [[nodiscard]] int64_t count() const { return Ceil(lines_, width_); }
  [[nodiscard]] size_t floats(int64_t stretches) const {
    return static_cast<size_t>(floats_ * count() * stretches);
  }
  void set_memory(float* memory) { memory_ = memory; }

  [[nodiscard]] float* at(int64_t stretch, int64_t panel) const {
    return memory_ + (stretch * count() + panel) * floats_;
  }
  void Pack(int64_t stretch, int64_t panel, int64_t k, int64_t depth) const {
    const int64_t line = panel * width_;
    pack_({operand_, line, lines_ - line, k, depth}, at(stretch, panel));
  }

 private:
  Operand operand_;
  int64_t lines_;
  int64_t width_;
  int64_t floats_;  // of a panel
  void (*pack_)(const PanelSource&, float*);
  float* memory_ = nullptr;
};

class Computation {
 public:
  Computation(const Product& product, const MicroKernel& kernel, Scratch& scratch, size_t first_buffer)
      : p_(product), kernel_(kernel),
        left_(p_.left, p_.rows, kernel.rows, kernel.left_floats, kernel.pack_left),
        right_(p_.right, p_.cols, kernel.cols, kernel.right_floats, kernel.pack_right),
        block_rows_(std::max<int64_t>(1, kBlockRows / kernel.rows)),
        block_cols_(std::max<int64_t>(1, kBlockCols / kernel.cols)), stretch_(Stretch(kernel.precision)) {
    const int64_t stretches = Ceil(std::min(p_.depth, kChunk), stretch_);
    left_.set_memory(scratch.Get(first_buffer, left_.floats(stretches)).data());
    right_.set_memory(scratch.Get(first_buffer + 1, right_.floats(stretches)).data());
    // A block's size decides no bits, so it may follow the team's.
    while (Blocks() < 4 * TeamSize() && block_cols_ > 1) block_cols_ /= 2;
    while (Blocks() < 4 * TeamSize() && block_rows_ > 1) block_rows_ /= 2;
  }

  void Run() {
    const int64_t down = Ceil(left_.count(), block_rows_);
    const int64_t across = Ceil(right_.count(), block_cols_);
    const int64_t panels = left_.count() + right_.count();
    [[maybe_unused]] const int threads = TeamSize();  // unused where there is no OpenMP
#pragma omp parallel num_threads(threads)
    for (int64_t chunk = 0; chunk < p_.depth; chunk += kChunk) {
      const int64_t end = std::min(p_.depth, chunk + kChunk);
      const int64_t stretches = Ceil(end - chunk, stretch_);
#pragma omp for collapse(2) schedule(static)
      for (int64_t stretch = 0; stretch < stretches; ++stretch) {
        for (int64_t panel = 0; panel < panels; ++panel) Pack(chunk, end, stretch, panel);
      }
#pragma omp for collapse(2) schedule(dynamic)
      for (int64_t i = 0; i < down; ++i) {
        for (int64_t j = 0; j < across; ++j) Block(chunk, end, i * block_rows_, j * block_cols_);
      }
      if (!p_.symmetric || end < p_.depth) continue;
#pragma omp for schedule(dynamic)
      for (int64_t row = 0; row < p_.rows; row += kBand) Mirror(row, std::min(kBand, p_.rows - row));
    }
  }

 private:
  [[nodiscard]] int64_t Blocks() const {
    const int64_t all = Ceil(left_.count(), block_rows_) * Ceil(right_.count(), block_cols_);
    return p_.symmetric ? (all + 1) / 2 : all;
  }

  void Pack(int64_t chunk, int64_t end, int64_t stretch, int64_t panel) const {
    const int64_t k = chunk + stretch * stretch_;
    const int64_t depth = std::min(stretch_, end - k);
    if (panel < left_.count()) {
      left_.Pack(stretch, panel, k, depth);
    } else {
      right_.Pack(stretch, panel - left_.count(), k, depth);
    }
  }

  void Block(int64_t chunk, int64_t end, int64_t first_row, int64_t first_col) const {
    const int64_t last_row = std::min(left_.count(), first_row + block_rows_);
    const int64_t last_col = std::min(right_.count(), first_col + block_cols_);
    for (int64_t k = chunk; k < end; k += stretch_) {
      for (int64_t j = first_col; j < last_col; ++j) {
        for (int64_t i = first_row; i < last_row; ++i) {
          const bool below = (j + 1) * kernel_.cols <= i * kernel_.rows;
          if (p_.symmetric && below) break;  // and so are the next ones
          Tile((k - chunk) / stretch_, k, std::min(stretch_, end - k), i, j);
        }
      }
    }
  }

  void Tile(int64_t stretch, int64_t k, int64_t depth, int64_t i, int64_t j) const {
    const int64_t row = i * kernel_.rows;
    const int64_t col = j * kernel_.cols;
    const bool whole = row + kernel_.rows <= p_.rows && col + kernel_.cols <= p_.cols;
    const bool above = col >= row + kernel_.rows;  // and not on the diagonal
    const float* left = left_.at(stretch, i);
    const float* right = right_.at(stretch, j);
    if (whole && (above || !p_.symmetric)) {
      kernel_.multiply(depth, left, right, Result(k, row, col));
      return;
    }
    alignas(64) float sums[kLargestTile];
    const bool half_below = p_.symmetric && col + kernel_.cols / 2 <= row;
    const auto multiply = half_below ? kernel_.multiply_right_half : kernel_.multiply;
    multiply(depth, left, right, {.out = sums, .stride = kernel_.cols, .alpha = 1.0F, .base = nullptr, .beta = 0.0F});
    for (int64_t r = 0; r < std::min(kernel_.rows, p_.rows - row); ++r) {
      const int64_t from = p_.symmetric ? std::max(col, row + r) : col;
      const int64_t count = std::min(col + kernel_.cols, p_.cols) - from;
      if (count > 0) kernel_.combine(count, sums + r * kernel_.cols + (from - col), Result(k, row + r, from));
    }
  }

  // From (row, col) on. The first stretch sets, the others add.
  [[nodiscard]] TileResult Result(int64_t k, int64_t row, int64_t col) const {
    const int64_t at = row * p_.cols + col;
    const float* base = p_.base == nullptr ? nullptr : p_.base + at;
    if (k > 0) return {p_.out + at, p_.cols, p_.alpha, p_.out + at, 1.0F};
    return {p_.out + at, p_.cols, p_.alpha, base, p_.beta};
  }

  // Copies what is above the diagonal, in rows from `row` on, to below it.
  void Mirror(int64_t row, int64_t rows) const {
    const int64_t edge = kernel_.transposed_edge;
    const int64_t n = p_.cols;
    for (int64_t r = row; r < row + rows; r += edge) {
      // Not whole: the block on the diagonal, and what is left at the end.
      const int64_t last = std::min(r + edge, row + rows);
      int64_t c = r;
      for (const int64_t end = std::min(c + edge, n); c < end; ++c) MirrorColumn(r, std::min(last, c), c);
      for (; last == r + edge && c + edge <= n; c += edge) {
        kernel_.transpose(p_.out + r * n + c, n, p_.out + c * n + r, n);
      }
      for (; c < n; ++c) MirrorColumn(r, last, c);
    }
  }
  void MirrorColumn(int64_t row, int64_t end, int64_t col) const {
    for (int64_t r = row; r < end; ++r) p_.out[col * p_.cols + r] = p_.out[r * p_.cols + col];
  }

  const Product& p_;
  const MicroKernel& kernel_;
  Panels left_, right_;
  int64_t block_rows_, block_cols_;  // in panels
  const int64_t stretch_;
};

}  // namespace

void Compute(const Product& product, const MicroKernel& kernel, Scratch& scratch, size_t first_buffer) {
  Computation(product, kernel, scratch, first_buffer).Run();
}

}  // namespace dmuon::kernels
