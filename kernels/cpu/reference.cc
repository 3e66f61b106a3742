// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/reference.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace dmuon::kernels::reference {
namespace {

// A dense matrix that owns its elements; the loops below index it as the formulas do.
struct Matrix {
  Matrix(size_t r, size_t c) : rows(r), cols(c), values(r * c) {}
  double& operator()(size_t r, size_t c) { return values[r * cols + c]; }
  double operator()(size_t r, size_t c) const { return values[r * cols + c]; }

  size_t rows, cols;
  std::vector<double> values;
};

Matrix Transposed(const Matrix& m) {
  Matrix out(m.cols, m.rows);
  for (size_t r = 0; r < m.rows; ++r) {
    for (size_t c = 0; c < m.cols; ++c) out(c, r) = m(r, c);
  }
  return out;
}

Matrix Product(const Matrix& left, const Matrix& right) {
  Matrix out(left.rows, right.cols);
  for (size_t r = 0; r < left.rows; ++r) {
    double* to = &out.values[r * right.cols];
    for (size_t k = 0; k < left.cols; ++k) {
      const double factor = left(r, k);
      const double* from = &right.values[k * right.cols];
      for (size_t c = 0; c < right.cols; ++c) to[c] += factor * from[c];
    }
  }
  return out;
}

// x <- a*x + (b*A + c*A*A)*x with A = x*x^T.
void Iterate(const Quintic& q, Matrix& x) {
  const Matrix gram = Product(x, Transposed(x));
  Matrix poly = Product(gram, gram);
  for (size_t i = 0; i < poly.values.size(); ++i) {
    poly.values[i] = q.b * gram.values[i] + q.c * poly.values[i];
  }
  const Matrix odd = Product(poly, x);
  for (size_t i = 0; i < x.values.size(); ++i) x.values[i] = q.a * x.values[i] + odd.values[i];
}

double Divisor(const NewtonSchulz& newton_schulz, double norm) {
  switch (newton_schulz.eps_mode) {
    case EpsMode::kAdd:
      return norm + newton_schulz.eps;
    case EpsMode::kClamp:
      return std::max(norm, newton_schulz.eps);
    case EpsMode::kNone:
      break;
  }
  return norm;
}

double RowProduct(const Matrix& m, size_t a, size_t b) {
  double sum = 0.0;
  for (size_t c = 0; c < m.cols; ++c) sum += m(a, c) * m(b, c);
  return sum;
}

void RotateRows(double cosine, double sine, size_t a, size_t b, Matrix& m) {
  for (size_t c = 0; c < m.cols; ++c) {
    const double upper = m(a, c);
    const double lower = m(b, c);
    m(a, c) = cosine * upper - sine * lower;
    m(b, c) = sine * upper + cosine * lower;
  }
}

// Rotates pairs of rows until all are orthogonal: m is turns^T times what it then holds. False when no pair needed it.
bool Sweep(Matrix& m, Matrix& turns) {
  constexpr double kOrthogonal = 1e-15;
  bool turned = false;
  for (size_t a = 0; a < m.rows; ++a) {
    for (size_t b = a + 1; b < m.rows; ++b) {
      const double cross = RowProduct(m, a, b);
      const double first = RowProduct(m, a, a);
      const double second = RowProduct(m, b, b);
      if (std::abs(cross) <= kOrthogonal * std::sqrt(first * second)) continue;
      const double slope = (second - first) / (2.0 * cross);
      const double tangent = (slope < 0.0 ? -1.0 : 1.0) / (std::abs(slope) + std::sqrt(1.0 + slope * slope));
      const double cosine = 1.0 / std::sqrt(1.0 + tangent * tangent);
      RotateRows(cosine, cosine * tangent, a, b, m);
      RotateRows(cosine, cosine * tangent, a, b, turns);
      turned = true;
    }
  }
  return turned;
}

}  // namespace

double FrobeniusNorm(std::span<const double> x) {
  double largest = 0.0;
  for (const double v : x) largest = std::max(largest, std::abs(v));
  if (largest == 0.0) return 0.0;
  double sum = 0.0;
  for (const double v : x) sum += (v / largest) * (v / largest);
  return largest * std::sqrt(sum);
}

void Orthogonalize(const NewtonSchulz& newton_schulz, int64_t rows, int64_t cols,
                   std::span<double> x) {
  const double norm = FrobeniusNorm(x);
  if (norm == 0.0) return;  // 0/0 otherwise
  const double divisor = Divisor(newton_schulz, norm);
  Matrix m(static_cast<size_t>(rows), static_cast<size_t>(cols));
  for (size_t i = 0; i < x.size(); ++i) m.values[i] = x[i] / divisor;
  const bool tall = rows > cols;
  if (tall) m = Transposed(m);
  for (int i = 0; i < newton_schulz.iterations; ++i) {
    Iterate(newton_schulz.coefficients.at(i), m);
  }
  if (tall) m = Transposed(m);
  std::copy(m.values.begin(), m.values.end(), x.begin());
}

void OrthogonalizeTopK(int64_t rank, int64_t rows, int64_t cols, std::span<double> x, std::span<double> basis) {
  constexpr int kSweeps = 60;
  const double norm = FrobeniusNorm(x);
  if (norm == 0.0) return;
  Matrix m(static_cast<size_t>(rows), static_cast<size_t>(cols));
  for (size_t i = 0; i < x.size(); ++i) m.values[i] = x[i] / norm;
  const bool tall = rows > cols;
  if (tall) m = Transposed(m);
  Matrix turns(m.rows, m.rows);
  for (size_t i = 0; i < m.rows; ++i) turns(i, i) = 1.0;
  for (int i = 0; i < kSweeps && Sweep(m, turns);) ++i;

  std::vector<double> singular(m.rows);
  for (size_t i = 0; i < m.rows; ++i) singular[i] = std::sqrt(RowProduct(m, i, i));
  std::vector<size_t> order(m.rows);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return singular[a] > singular[b]; });
  order.resize(static_cast<size_t>(rank));
  const double smallest = SmallestKept(rows, cols) * singular[order[0]];
  std::erase_if(order, [&](size_t i) { return singular[i] < smallest; });

  Matrix out(m.rows, m.cols);
  std::fill(basis.begin(), basis.end(), 0.0);
  for (size_t k = 0; k < order.size(); ++k) {
    for (size_t r = 0; r < m.rows; ++r) {
      const double left = turns(order[k], r);
      if (k * m.rows + r < basis.size()) basis[k * m.rows + r] = left;
      for (size_t c = 0; c < m.cols; ++c) out(r, c) += left * m(order[k], c) / singular[order[k]];
    }
  }
  if (tall) out = Transposed(out);
  std::copy(out.values.begin(), out.values.end(), x.begin());
}

}  // namespace dmuon::kernels::reference
