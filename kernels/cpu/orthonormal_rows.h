// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Orthonormal rows that span what given rows span, by Householder reflections in double. Rows that depend on
// earlier ones, and zero rows, get directions of their own, orthogonal to all before.
//
// Also the two loops that other small dense problems are made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace dmuon::kernels {

// A sum in an order that depends on the length alone.
double WideDot(std::span<const double> a, std::span<const double> b);
// to += factor * from.
void AddWideMultiple(double factor, std::span<const double> from, std::span<double> to);

// Turns `x` into a vector v with |v|^2 = 2 for which (I - v v^T) x is zero beyond its first element; returns that
// element. A zero x stays zero.
double MakeReflector(std::span<double> x);
// x <- (I - v v^T) x.
void Reflect(std::span<const double> v, std::span<double> x);

class OrthonormalRows {
 public:
  // Rows of `length`, at most as many.
  explicit OrthonormalRows(int64_t length) : length_(static_cast<size_t>(length)) {}

  void Append(std::span<const float> row);
  // Row `i` of those appended so far; later ones do not change it.
  void Get(int64_t i, std::span<float> row) const;

 private:
  // Reflector `i` acts from element i on.
  [[nodiscard]] std::span<const double> Reflector(size_t i) const {
    return std::span(reflectors_).subspan(i * length_ + i, length_ - i);
  }

  const size_t length_;
  size_t count_ = 0;
  std::vector<double> reflectors_;
};

}  // namespace dmuon::kernels
