// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/products.h"

#include <algorithm>
#include <array>

#include "cblas.h"

// libgomp's own, declared here because Clang carries the header of another runtime.
extern "C" void omp_set_num_threads(int threads);
extern "C" int omp_get_max_threads(void);

namespace dmuon::kernels {
namespace {

thread_local int team = 0;  // 0: this thread was never bound

int Team() {
  if (team == 0) BindProductThreads(1);
  return team;
}

// Small tiles share well among threads, large ones are faster each. Measured on 256 .. 3072.
int64_t SymmetricTile(int64_t s) { return s <= 512 ? 128 : 256; }
constexpr int64_t kShortTile = 512, kLongTile = 256;

int Int(int64_t n) { return static_cast<int>(n); }

// One tile of the upper triangle: rows from `i`, columns from `j`, at most `edge` of each.
struct Tile {
  Tile(int64_t row_tile, int64_t col_tile, int64_t edge, int64_t s)
      : i(row_tile * edge),
        j(col_tile * edge),
        rows(std::min(edge, s - i)),
        cols(std::min(edge, s - j)) {}
  [[nodiscard]] bool diagonal() const { return i == j; }

  int64_t i, j, rows, cols;
};

// Copies a finished tile to its place below the diagonal; on the diagonal BLAS wrote the upper
// half.
void Mirror(const Tile& tile, int64_t s, float* out) {
  for (int64_t r = tile.i; r < tile.i + tile.rows; ++r) {
    const int64_t first = tile.diagonal() ? r + 1 : tile.j;
    for (int64_t c = first; c < tile.j + tile.cols; ++c) out[c * s + r] = out[r * s + c];
  }
}

// out tile = alpha * rows(i) * rows(j)^T + beta * out tile, where rows(n) starts at x + n*step and
// has `depth` elements; `trans` says that x is stored transposed.
void SymmetricTileProduct(const Tile& tile, CBLAS_TRANSPOSE trans, int64_t depth, float alpha,
                          const float* x, int64_t step, int64_t ldx, float beta, int64_t s,
                          float* out) {
  float* at = out + tile.i * s + tile.j;
  if (tile.diagonal()) {
    cblas_ssyrk(CblasRowMajor, CblasUpper, trans, Int(tile.rows), Int(depth), alpha,
                x + tile.i * step, Int(ldx), beta, at, Int(s));
    return;
  }
  const CBLAS_TRANSPOSE other = trans == CblasNoTrans ? CblasTrans : CblasNoTrans;
  cblas_sgemm(CblasRowMajor, trans, other, Int(tile.rows), Int(tile.cols), Int(depth), alpha,
              x + tile.i * step, Int(ldx), x + tile.j * step, Int(ldx), beta, at, Int(s));
}

void PolynomialTile(const Quintic& q, const Tile& tile, int64_t s, const float* gram, float* out) {
  for (int64_t r = tile.i; r < tile.i + tile.rows; ++r) {
    const float* from = gram + r * s + tile.j;
    std::copy(from, from + tile.cols, out + r * s + tile.j);
  }
  SymmetricTileProduct(tile, CblasNoTrans, s, static_cast<float>(q.c), gram, s, s,
                       static_cast<float>(q.b), s, out);
  if (tile.diagonal()) {
    for (int64_t r = tile.i; r < tile.i + tile.rows; ++r) {
      out[r * s + r] += static_cast<float>(q.a);
    }
  }
  Mirror(tile, s, out);
}

}  // namespace

void BindProductThreads(int threads) {
  team = std::max(threads, 1);
  // What OpenBLAS asks for; the threads of a team inherit it.
  omp_set_num_threads(1);
}

void PrepareBlas() {
  static const bool prepared = [] {
    const int before = omp_get_max_threads();
    omp_set_num_threads(1);
    constexpr int kEdge = 64;
    std::array<float, kEdge * kEdge> in{};
    std::array<float, kEdge * kEdge> out{};
    cblas_ssyrk(CblasRowMajor, CblasUpper, CblasNoTrans, kEdge, kEdge, 1.0F, in.data(), kEdge, 0.0F,
                out.data(), kEdge);
    omp_set_num_threads(before);
    return true;
  }();
  static_cast<void>(prepared);
}

void Gram(const MatrixView& x, std::span<float> gram) {
  const bool wide = x.rows <= x.cols;
  const int64_t s = wide ? x.rows : x.cols;
  const int64_t l = wide ? x.cols : x.rows;
  const CBLAS_TRANSPOSE trans = wide ? CblasNoTrans : CblasTrans;
  const int64_t step = wide ? x.cols : 1;
  const int64_t edge = SymmetricTile(s);
  const int64_t tiles = (s + edge - 1) / edge;
  [[maybe_unused]] const int threads = Team();  // unused where there is no OpenMP
#pragma omp parallel for collapse(2) schedule(dynamic) num_threads(threads)
  for (int64_t i = 0; i < tiles; ++i) {
    for (int64_t j = 0; j < tiles; ++j) {
      if (j < i) continue;
      const Tile tile(i, j, edge, s);
      SymmetricTileProduct(tile, trans, l, 1.0F, x.data, step, x.cols, 0.0F, s, gram.data());
      Mirror(tile, s, gram.data());
    }
  }
}

void Polynomial(const Quintic& q, int64_t s, std::span<const float> gram, std::span<float> out) {
  const int64_t edge = SymmetricTile(s);
  const int64_t tiles = (s + edge - 1) / edge;
  [[maybe_unused]] const int threads = Team();  // unused where there is no OpenMP
#pragma omp parallel for collapse(2) schedule(dynamic) num_threads(threads)
  for (int64_t i = 0; i < tiles; ++i) {
    for (int64_t j = 0; j < tiles; ++j) {
      if (j >= i) PolynomialTile(q, Tile(i, j, edge, s), s, gram.data(), out.data());
    }
  }
}

void Multiply(std::span<const float> poly, const MatrixView& x, std::span<float> out) {
  const bool wide = x.rows <= x.cols;
  const int64_t s = wide ? x.rows : x.cols;
  const int64_t tile_rows = wide ? kShortTile : kLongTile;
  const int64_t tile_cols = wide ? kLongTile : kShortTile;
  const int64_t down = (x.rows + tile_rows - 1) / tile_rows;
  const int64_t across = (x.cols + tile_cols - 1) / tile_cols;
  [[maybe_unused]] const int threads = Team();  // unused where there is no OpenMP
#pragma omp parallel for collapse(2) schedule(dynamic) num_threads(threads)
  for (int64_t i = 0; i < down; ++i) {
    for (int64_t j = 0; j < across; ++j) {
      const int64_t r = i * tile_rows;
      const int64_t c = j * tile_cols;
      const float* left = wide ? poly.data() + r * s : x.data + r * x.cols;
      const float* right = wide ? x.data + c : poly.data() + c;
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, Int(std::min(tile_rows, x.rows - r)),
                  Int(std::min(tile_cols, x.cols - c)), Int(s), 1.0F, left, Int(s), right,
                  Int(x.cols), 0.0F, out.data() + r * x.cols + c, Int(x.cols));
    }
  }
}

}  // namespace dmuon::kernels
