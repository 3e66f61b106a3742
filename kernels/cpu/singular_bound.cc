// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/singular_bound.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/cpu/elementwise.h"

namespace dmuon::kernels {
namespace {

constexpr double kSlack = 1.25;
constexpr int kPowerIterations = 3;

double NormOf(const std::vector<float>& v) { return std::sqrt(MeasureFloat(v).sum_squares); }

// A vector with a part in every direction: the fractions of multiples of the golden ratio.
std::vector<float> Start(size_t size) {
  constexpr double kGolden = 0.6180339887498949;
  std::vector<float> v(size);
  for (size_t i = 0; i < size; ++i) {
    const double turn = static_cast<double>(i + 1) * kGolden;
    v[i] = static_cast<float>(turn - std::floor(turn) - 0.5);
  }
  return v;
}

}  // namespace

double LargestSingularValue(const NewtonSchulz& newton_schulz) {
  double largest = 0.0;
  for (int i = 0; i < kSingularGrid; ++i) {
    double x = SingularGrid(i);
    for (int k = 0; k < newton_schulz.iterations; ++k) x = newton_schulz.coefficients.at(k).Of(x);
    largest = std::fmax(largest, std::abs(x));
  }
  return largest;
}

bool WithinSingularBound(const NewtonSchulz& newton_schulz, MatrixView x) {
  const auto rows = static_cast<size_t>(x.rows);
  const auto cols = static_cast<size_t>(x.cols);
  if (!AllFinite({x.data, rows * cols})) return false;
  const double bound = kSlack * LargestSingularValue(newton_schulz);
  std::vector<float> right = Start(cols);
  for (int i = 0; i < kPowerIterations; ++i) {
    std::vector<float> next(cols, 0.0F);
    for (size_t r = 0; r < rows; ++r) {
      const std::span<const float> row(x.data + r * cols, cols);
      const float left = Dot(row, right);
      AddMultiple(left, row, next);
    }
    // |X^T X v| / |v| approaches the square of the largest singular value, from below.
    const double grown = NormOf(next) / NormOf(right);
    if (!(grown <= bound * bound)) return false;
    if (grown == 0.0) return true;
    right.swap(next);
  }
  return true;
}

}  // namespace dmuon::kernels
