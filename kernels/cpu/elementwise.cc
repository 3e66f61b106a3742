// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/elementwise.h"

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/loops.h"

namespace dmuon::kernels {
namespace {

constexpr int32_t kInfinity = 0x7f800000;  // magnitudes from here on are not finite
constexpr size_t kLanes = 16;

struct Part {
  double sum_squares = 0.0;
  int32_t largest = 0;
};

}  // namespace

GradientStats MeasureFloat(std::span<const float> values) {
  std::vector<Part> parts(Grains(values.size()));
  ForEachBlock(values.size(), [&](size_t at, size_t count) {
    Part& part = parts[at / kGrain];
    part.sum_squares += Stages<float>().sum_squares(count, values.data() + at);
    part.largest = std::max(part.largest, Casts().largest(count, values.data() + at));
  });
  Part all;
  for (const Part& part : parts) {
    all.sum_squares += part.sum_squares;
    all.largest = std::max(all.largest, part.largest);
  }
  return {all.sum_squares, std::bit_cast<float>(all.largest), all.largest < kInfinity};
}

bool AllFinite(std::span<const float> values) { return MeasureFloat(values).finite; }

float Dot(std::span<const float> a, std::span<const float> b) {
  std::array<float, kLanes> sums{};
  const size_t whole = a.size() / sums.size() * sums.size();
  for (size_t i = 0; i < whole; i += sums.size()) {
    for (size_t lane = 0; lane < sums.size(); ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  float total = 0.0F;
  for (const float sum : sums) total += sum;
  for (size_t i = whole; i < a.size(); ++i) total += a[i] * b[i];
  return total;
}

void AddMultiple(float factor, std::span<const float> from, std::span<float> to) {
  for (size_t i = 0; i < to.size(); ++i) to[i] += factor * from[i];
}

void MultiplyFloat(double factor, std::span<const float> from, std::span<float> to) {
  ForEachBlock(to.size(), [&](size_t at, size_t n) { Casts().multiply(n, factor, from.data() + at, to.data() + at); });
}

void Bf16ToFloat(std::span<const uint16_t> from, std::span<float> to) {
  ForEachBlock(to.size(), [&](size_t at, size_t n) { Casts().widen(n, from.data() + at, to.data() + at); });
}

void AddBf16ToFloat(std::span<const uint16_t> from, std::span<float> to) {
  ForEachBlock(to.size(), [&](size_t at, size_t n) { Casts().add_widened(n, from.data() + at, to.data() + at); });
}

void AddFloat(std::span<const float> from, std::span<float> to) {
  ForEachBlock(to.size(), [&](size_t at, size_t n) { Casts().add(n, from.data() + at, to.data() + at); });
}

void FloatToBf16(std::span<const float> from, std::span<uint16_t> to) {
  ForEachBlock(to.size(), [&](size_t at, size_t n) { Casts().round(n, from.data() + at, to.data() + at); });
}

void CopyFloat(std::span<const float> from, std::span<float> to) {
  ForEach(Grains(to.size()), [&](size_t grain) {
    const size_t at = grain * kGrain;
    std::copy_n(from.data() + at, std::min(kGrain, to.size() - at), to.data() + at);
  });
}

}  // namespace dmuon::kernels
