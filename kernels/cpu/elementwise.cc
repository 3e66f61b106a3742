// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/elementwise.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

namespace dmuon::kernels {
namespace {

constexpr uint32_t kMagnitude = 0x7fffffff;  // all but the sign
constexpr uint32_t kInfinity = 0x7f800000;   // magnitudes from here on are not finite
constexpr size_t kLanes = 8;
constexpr size_t kBlock = 4096;  // short enough that a block's sum loses nothing that matters

// Magnitudes compare as integers in the order of the numbers, and NaN comes out on top.
int32_t MagnitudeBits(float value) {
  return static_cast<int32_t>(std::bit_cast<uint32_t>(value) & kMagnitude);
}

int32_t LargestMagnitude(std::span<const float> values) {
  int32_t largest = 0;
  for (const float value : values) largest = std::max(largest, MagnitudeBits(value));
  return largest;
}

// Sums kept apart by index modulo kLanes: the same order of additions in vectors as one by one.
double BlockSumSquares(std::span<const float> block) {
  std::array<double, kLanes> sums{};
  const size_t whole = block.size() / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const double value = block[i + lane];
      sums[lane] += value * value;
    }
  }
  double total = 0.0;
  for (const double sum : sums) total += sum;
  for (const float value : block.subspan(whole)) {
    total += static_cast<double>(value) * static_cast<double>(value);
  }
  return total;
}

float WidenBf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

uint16_t RoundToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  // Half an ulp, less one unless the kept part is odd: ties go to even. A carry into the exponent
  // gives the next binade or infinity, as it should.
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x40;  // its payload may lie in the lost bits only
  return static_cast<uint16_t>((bits & kMagnitude) > kInfinity ? quiet_nan : rounded);
}

}  // namespace

GradientStats MeasureFloat(std::span<const float> values) {
  GradientStats stats;
  int32_t largest = 0;
  for (size_t at = 0; at < values.size(); at += kBlock) {
    const auto block = values.subspan(at, std::min(kBlock, values.size() - at));
    stats.sum_squares += BlockSumSquares(block);
    largest = std::max(largest, LargestMagnitude(block));
  }
  stats.max_abs = std::bit_cast<float>(largest);
  stats.finite = largest < static_cast<int32_t>(kInfinity);
  return stats;
}

bool AllFinite(std::span<const float> values) {
  return LargestMagnitude(values) < static_cast<int32_t>(kInfinity);
}

float Dot(std::span<const float> a, std::span<const float> b) {
  std::array<float, 2 * kLanes> sums{};
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
  for (size_t i = 0; i < to.size(); ++i) {
    to[i] = static_cast<float>(factor * static_cast<double>(from[i]));
  }
}

void Bf16ToFloat(std::span<const uint16_t> from, std::span<float> to) {
  for (size_t i = 0; i < to.size(); ++i) to[i] = WidenBf16(from[i]);
}

void AddBf16ToFloat(std::span<const uint16_t> from, std::span<float> to) {
  for (size_t i = 0; i < to.size(); ++i) to[i] += WidenBf16(from[i]);
}

void AddFloat(std::span<const float> from, std::span<float> to) {
  for (size_t i = 0; i < to.size(); ++i) to[i] += from[i];
}

void FloatToBf16(std::span<const float> from, std::span<uint16_t> to) {
  for (size_t i = 0; i < to.size(); ++i) to[i] = RoundToBf16(from[i]);
}

}  // namespace dmuon::kernels
