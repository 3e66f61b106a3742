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

double NormOf(const std::vector<float>& v) { return std::sqrt(MeasureFloat(v).sum_squares); }

}  // namespace

std::vector<float> PowerIterationStart(size_t size) {
  // The fractions of multiples of the golden ratio.
  constexpr double kGolden = 0.6180339887498949;
  std::vector<float> v(size);
  for (size_t i = 0; i < size; ++i) {
    const double turn = static_cast<double>(i + 1) * kGolden;
    v[i] = static_cast<float>(turn - std::floor(turn) - 0.5);
  }
  return v;
}

double LargestSingularValue(const NewtonSchulz& newton_schulz) {
  double largest = 0.0;
  for (int i = 0; i < kSingularGrid; ++i) {
    double x = SingularGrid(i);
    for (int k = 0; k < newton_schulz.iterations; ++k) x = newton_schulz.coefficients.at(k).Of(x);
    largest = std::fmax(largest, std::abs(x));
  }
  return largest;
}

bool GrowthWithinBound(const NewtonSchulz& newton_schulz, const std::function<double()>& grow) {
  const double bound = kSlack * LargestSingularValue(newton_schulz);
  for (int i = 0; i < kPowerIterations; ++i) {
    // Approaches the square of the largest singular value, from below.
    const double grown = grow();
    if (!(grown <= bound * bound)) return false;
    if (grown == 0.0) return true;
  }
  return true;
}

bool WithinSingularBound(const NewtonSchulz& newton_schulz, MatrixView x) {
  const auto rows = static_cast<size_t>(x.rows);
  const auto cols = static_cast<size_t>(x.cols);
  if (!AllFinite({x.data, rows * cols})) return false;
  std::vector<float> right = PowerIterationStart(cols);
  return GrowthWithinBound(newton_schulz, [&] {
    std::vector<float> next(cols, 0.0F);
    for (size_t r = 0; r < rows; ++r) {
      const std::span<const float> row(x.data + r * cols, cols);
      const float left = Dot(row, right);
      AddMultiple(left, row, next);
    }
    const double grown = NormOf(next) / NormOf(right);
    right.swap(next);
    return grown;
  });
}

}  // namespace dmuon::kernels
