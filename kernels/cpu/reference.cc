// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/reference.h"

#include <algorithm>
#include <cmath>
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
    Iterate(Coefficient(newton_schulz.coefficients, i), m);
  }
  if (tall) m = Transposed(m);
  std::copy(m.values.begin(), m.values.end(), x.begin());
}

}  // namespace dmuon::kernels::reference
