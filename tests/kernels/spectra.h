// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Matrices whose singular values and polar factor are known, for tests and benchmarks.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace dmuon::kernels {

// X = U * diag(values) * V^T with U and V of orthonormal columns.
struct SpectralMatrix {
  int64_t rows, cols;
  std::vector<float> x;
  std::vector<double> polar;  // U * V^T of the values above zero
};

// min(rows, cols) singular values; U and V are random, the same for a seed on every machine.
SpectralMatrix WithSpectrum(int64_t rows, int64_t cols, const std::vector<double>& values, uint32_t seed);

// The spectra on which Newton-Schulz is judged: "gaussian" (those of a matrix of normal elements, roughly:
// evenly spaced from 1 to (1 - r) / (1 + r), r the root of the shorter by the longer side), "log 1e-3" and
// "log 1e-7" (from 1 down to it, evenly in the logarithm) and "rank 1/8" (an eighth of them 1, the rest 0).
std::vector<double> Spectrum(std::string_view name, int64_t rows, int64_t cols);
inline constexpr std::string_view kSpectra[] = {"gaussian", "log 1e-3", "log 1e-7", "rank 1/8"};

}  // namespace dmuon::kernels
