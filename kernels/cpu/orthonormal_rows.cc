// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/orthonormal_rows.h"

#include <array>
#include <cmath>

namespace dmuon::kernels {

double WideDot(std::span<const double> a, std::span<const double> b) {
  constexpr size_t kLanes = 8;
  std::array<double, kLanes> sums{};
  const size_t whole = a.size() / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  double total = 0.0;
  for (const double sum : sums) total += sum;
  for (size_t i = whole; i < a.size(); ++i) total += a[i] * b[i];
  return total;
}

void AddWideMultiple(double factor, std::span<const double> from, std::span<double> to) {
  const double* __restrict source = from.data();
  double* __restrict target = to.data();
  for (size_t i = 0; i < to.size(); ++i) target[i] += factor * source[i];
}

double MakeReflector(std::span<double> x) {
  const double norm = std::sqrt(WideDot(x, x));
  if (norm == 0.0) return 0.0;
  // The sign that adds magnitudes: nothing cancels.
  const double image = x[0] > 0.0 ? -norm : norm;
  x[0] -= image;
  const double scale = std::sqrt(2.0 / WideDot(x, x));
  for (double& value : x) value *= scale;
  return image;
}

void Reflect(std::span<const double> v, std::span<double> x) { AddWideMultiple(-WideDot(v, x), v, x); }

void OrthonormalRows::Append(std::span<const float> row) {
  const size_t i = count_;
  reflectors_.resize((i + 1) * length_);
  const std::span<double> wide = std::span(reflectors_).subspan(i * length_, length_);
  for (size_t k = 0; k < length_; ++k) wide[k] = row[k];
  for (size_t j = 0; j < i; ++j) Reflect(Reflector(j), wide.subspan(j));
  MakeReflector(wide.subspan(i));
  ++count_;
}

void OrthonormalRows::Get(int64_t i, std::span<float> row) const {
  std::vector<double> wide(length_);
  const auto index = static_cast<size_t>(i);
  wide[index] = 1.0;
  for (size_t j = index + 1; j-- > 0;) Reflect(Reflector(j), std::span(wide).subspan(j));
  for (size_t k = 0; k < length_; ++k) row[k] = static_cast<float>(wide[k]);
}

}  // namespace dmuon::kernels
