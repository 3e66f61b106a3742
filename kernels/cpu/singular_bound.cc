// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/singular_bound.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/team.h"

namespace dmuon::kernels {
namespace {

constexpr double kSlack = 1.25;
constexpr size_t kMostParts = 8;

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
  // Rows are cut into as many parts as size alone decides, each with a sum of its own.
  const size_t parts = std::max<size_t>(1, std::min({kMostParts, rows, Grains(rows * cols)}));
  std::vector<std::vector<float>> sums(parts);
  return GrowthWithinBound(newton_schulz, [&] {
    ForEach(parts, [&](size_t part) {
      sums[part].assign(cols, 0.0F);
      for (size_t r = part * rows / parts; r < (part + 1) * rows / parts; ++r) {
        const std::span<const float> row(x.data + r * cols, cols);
        AddMultiple(Dot(row, right), row, sums[part]);
      }
    });
    for (size_t part = 1; part < parts; ++part) AddMultiple(1.0F, sums[part], sums[0]);
    const double grown = NormOf(sums[0]) / NormOf(right);
    right.swap(sums[0]);
    return grown;
  });
}

}  // namespace dmuon::kernels
