// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/symmetric_eigen.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>

#include "kernels/cpu/orthonormal_rows.h"

namespace dmuon::kernels {
namespace {

class Solver {
 public:
  Solver(size_t n, std::span<double> matrix) : n_(n), matrix_(matrix), diagonal_(n), beside_(n) {}

  // Reflector k, kept in row k of the matrix from column k + 1 on, clears that row and column beyond beside_[k].
  void Tridiagonalize() {
    std::vector<double> product(n_);
    for (size_t k = 0; k + 1 < n_; ++k) {
      diagonal_[k] = Row(k)[k];
      const size_t rest = n_ - k - 1;
      const std::span<double> v = Row(k).subspan(k + 1);
      beside_[k] = MakeReflector(v);
      // (I - v v^T) B (I - v v^T) = B - v q^T - q v^T with p = B v and q = p - (v^T p / 2) v.
      const std::span<double> q = std::span(product).first(rest);
      for (size_t i = 0; i < rest; ++i) q[i] = WideDot(Row(k + 1 + i).subspan(k + 1), v);
      AddWideMultiple(-0.5 * WideDot(v, q), v, q);
      for (size_t i = 0; i < rest; ++i) {
        const std::span<double> row = Row(k + 1 + i).subspan(k + 1);
        AddWideMultiple(-v[i], q, row);
        AddWideMultiple(-q[i], v, row);
      }
    }
    diagonal_[n_ - 1] = Row(n_ - 1)[n_ - 1];
  }

  // Rows of vectors_ become the eigenvectors of the tridiagonal matrix.
  bool Diagonalize() {
    vectors_.assign(n_ * n_, 0.0);
    for (size_t i = 0; i < n_; ++i) vectors_[i * n_ + i] = 1.0;
    double largest = 0.0;
    for (size_t i = 0; i < n_; ++i) largest = std::max({largest, std::abs(diagonal_[i]), std::abs(beside_[i])});
    const double negligible = 0x1p-52 * largest;
    size_t steps = kStepsEach * n_;
    for (size_t last = n_ - 1; last > 0;) {
      if (std::abs(beside_[last - 1]) <= negligible) {
        --last;
        continue;
      }
      if (steps-- == 0) return false;
      size_t first = last - 1;
      while (first > 0 && std::abs(beside_[first - 1]) > negligible) --first;
      Step(first, last);
    }
    return true;
  }

  Eigen Largest(size_t count) const {
    std::vector<size_t> order(n_);
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return diagonal_[a] > diagonal_[b]; });
    Eigen out;
    out.vectors.reserve(count * n_);
    for (size_t i = 0; i < count; ++i) {
      out.values.push_back(diagonal_[order[i]]);
      const auto from = vectors_.begin() + static_cast<std::ptrdiff_t>(order[i] * n_);
      out.vectors.insert(out.vectors.end(), from, from + static_cast<std::ptrdiff_t>(n_));
      const std::span<double> vector = std::span(out.vectors).last(n_);
      for (size_t k = n_ - 1; k-- > 0;) Reflect(Row(k).subspan(k + 1), vector.subspan(k + 1));
    }
    return out;
  }

 private:
  static constexpr size_t kStepsEach = 60;  // two or three are usual

  [[nodiscard]] std::span<double> Row(size_t i) const { return matrix_.subspan(i * n_, n_); }

  // One step on the block from `first` to `last`: a rotation that begins the shifted factorisation, and those that
  // chase what it leaves beside the tridiagonal out at the end.
  void Step(size_t first, size_t last) {
    const double half = 0.5 * (diagonal_[last - 1] - diagonal_[last]);
    const double square = beside_[last - 1] * beside_[last - 1];
    const double root = std::sqrt(half * half + square);
    const double shift = diagonal_[last] - square / (half + (half < 0.0 ? -root : root));
    double x = diagonal_[first] - shift;
    double bulge = beside_[first];
    for (size_t k = first; k < last; ++k) {
      const double length = std::sqrt(x * x + bulge * bulge);
      const double c = length == 0.0 ? 1.0 : x / length;
      const double s = length == 0.0 ? 0.0 : bulge / length;
      if (k > first) beside_[k - 1] = length;
      const double a = diagonal_[k];
      const double b = beside_[k];
      const double d = diagonal_[k + 1];
      diagonal_[k] = c * c * a + 2.0 * c * s * b + s * s * d;
      diagonal_[k + 1] = s * s * a - 2.0 * c * s * b + c * c * d;
      beside_[k] = c * s * (d - a) + (c * c - s * s) * b;
      if (k + 1 < last) {
        x = beside_[k];
        bulge = s * beside_[k + 1];
        beside_[k + 1] *= c;
      }
      Rotate(c, s, &vectors_[k * n_], &vectors_[(k + 1) * n_]);
    }
  }

  void Rotate(double c, double s, double* __restrict upper, double* __restrict lower) const {
    for (size_t i = 0; i < n_; ++i) {
      const double u = upper[i];
      const double l = lower[i];
      upper[i] = c * u + s * l;
      lower[i] = c * l - s * u;
    }
  }

  const size_t n_;
  const std::span<double> matrix_;
  std::vector<double> diagonal_;
  std::vector<double> beside_;  // beside_[k] is element (k, k + 1); the last is 0
  std::vector<double> vectors_;
};

}  // namespace

std::optional<Eigen> LargestEigen(int64_t n, int64_t count, std::span<double> matrix) {
  Solver solver(static_cast<size_t>(n), matrix);
  solver.Tridiagonalize();
  if (!solver.Diagonalize()) return std::nullopt;
  return solver.Largest(static_cast<size_t>(count));
}

}  // namespace dmuon::kernels
