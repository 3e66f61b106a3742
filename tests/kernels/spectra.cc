// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "tests/kernels/spectra.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numbers>
#include <random>
#include <utility>

namespace dmuon::kernels {
namespace {

using Vectors = std::vector<std::vector<double>>;

// `count` orthonormal vectors of `size`, by Gram-Schmidt, twice.
Vectors Orthonormal(int64_t count, int64_t size, std::mt19937& bits) {
  const auto uniform = [&bits] { return (static_cast<double>(bits()) + 0.5) / 4294967296.0; };
  Vectors vectors;
  for (int64_t i = 0; i < count; ++i) {
    std::vector<double> v(static_cast<size_t>(size));
    for (double& value : v) {
      value = std::sqrt(-2.0 * std::log(uniform())) * std::cos(2.0 * std::numbers::pi * uniform());
    }
    for (int pass = 0; pass < 2; ++pass) {
      for (const std::vector<double>& other : vectors) {
        double dot = 0.0;
        for (size_t k = 0; k < v.size(); ++k) dot += v[k] * other[k];
        for (size_t k = 0; k < v.size(); ++k) v[k] -= dot * other[k];
      }
    }
    double norm = 0.0;
    for (const double value : v) norm += value * value;
    for (double& value : v) value /= std::sqrt(norm);
    vectors.push_back(std::move(v));
  }
  return vectors;
}

}  // namespace

SpectralMatrix WithSpectrum(int64_t rows, int64_t cols, const std::vector<double>& values, uint32_t seed) {
  std::mt19937 bits(seed);
  const int64_t s = std::min(rows, cols);
  const Vectors left = Orthonormal(s, rows, bits);
  const Vectors right = Orthonormal(s, cols, bits);
  const auto elements = static_cast<size_t>(rows * cols);
  std::vector<double> x(elements);
  std::vector<double> polar(elements);
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] == 0.0) continue;
    for (size_t r = 0; r < left[i].size(); ++r) {
      for (size_t c = 0; c < right[i].size(); ++c) {
        const double outer = left[i][r] * right[i][c];
        x[r * right[i].size() + c] += values[i] * outer;
        polar[r * right[i].size() + c] += outer;
      }
    }
  }
  return {rows, cols, {x.begin(), x.end()}, std::move(polar)};
}

std::vector<double> Spectrum(std::string_view name, int64_t rows, int64_t cols) {
  const auto s = static_cast<double>(std::min(rows, cols));
  const auto l = static_cast<double>(std::max(rows, cols));
  const double root = std::sqrt(s / l);
  std::vector<double> values;
  for (double i = 0.0; i < s; ++i) {
    const double part = s == 1.0 ? 0.0 : i / (s - 1.0);
    if (name == "gaussian") {
      values.push_back(1.0 - part * (1.0 - (1.0 - root) / (1.0 + root)));
    } else if (name == "rank 1/8") {
      values.push_back(i < std::max(1.0, s / 8.0) ? 1.0 : 0.0);
    } else {
      values.push_back(std::pow(name == "log 1e-3" ? 1e-3 : 1e-7, part));
    }
  }
  return values;
}

}  // namespace dmuon::kernels
