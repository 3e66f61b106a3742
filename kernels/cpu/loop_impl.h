// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The text of all loops in loops.h, which the compiler makes vectors of for the CPU of the including file. Everything
// here is that file's alone, and no function of the standard library is used that might be shared with files for
// all CPUs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/cpu/loops.h"

// No element depends on another; outputs may be inputs.
#ifdef __clang__
#define DMUON_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define DMUON_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace dmuon::kernels {
namespace {

template <typename T>
double Wide(T value) {
  return static_cast<double>(value);
}

double NextMoment(double beta2, double moment, double value) {
  return beta2 * moment + (1.0 - beta2) * (value * value);
}

template <typename T>
void Combine(size_t n, double a, const T* x, double b, const T* y, T* out) {
  DMUON_INDEPENDENT
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<T>(a * Wide(x[i]) + b * Wide(y[i]));
}

template <typename T>
void MultiplyTo(size_t n, double factor, const T* from, T* to) {
  DMUON_INDEPENDENT
  for (size_t i = 0; i < n; ++i) to[i] = static_cast<T>(factor * Wide(from[i]));
}

template <typename T>
void Multiply(size_t n, double factor, T* values) {
  MultiplyTo(n, factor, values, values);
}

template <typename T>
void MoveCautiously(size_t n, double decay, double rate, const T* u, T* w) {
  DMUON_INDEPENDENT
  for (size_t i = 0; i < n; ++i) {
    const double wide = Wide(w[i]);
    const double step = Wide(u[i]);
    w[i] = static_cast<T>((wide * step < 0.0 ? 1.0 : decay) * wide - rate * step);
  }
}

template <typename T>
void Sign(size_t n, T* values) {
  DMUON_INDEPENDENT
  for (size_t i = 0; i < n; ++i) {
    const T value = values[i];
    values[i] = static_cast<T>(value > T{0} ? 1 : 0) - static_cast<T>(value < T{0} ? 1 : 0);
  }
}

template <typename T>
void CommitMoment(size_t n, double beta2, double clip, const T* g, T* v) {
  DMUON_INDEPENDENT
  for (size_t i = 0; i < n; ++i) v[i] = static_cast<T>(NextMoment(beta2, Wide(v[i]), clip * Wide(g[i])));
}

template <typename T>
void CombineOverMoment(size_t n, double a, const T* x, double b, const T* y, const NextMomentOf<T>& moment, T* out) {
  const NextMomentOf<T> of = moment;  // lest stores to `out` might change it
  DMUON_INDEPENDENT
  for (size_t i = 0; i < n; ++i) {
    const double next = NextMoment(of.beta2, Wide(of.v[i]), of.clip * Wide(of.g[i]));
    out[i] = static_cast<T>((a * Wide(x[i]) + b * Wide(y[i])) / (__builtin_sqrt(next) + of.eps));
  }
}

template <typename T>
void CombineOverFactors(size_t n, double a, const T* x, double b, const T* y, const Factors& factors, T* out) {
  const Factors of = factors;
  DMUON_INDEPENDENT
  for (size_t i = 0; i < n; ++i) {
    out[i] = static_cast<T>((a * Wide(x[i]) + b * Wide(y[i])) / (of.row * of.columns[i] + of.eps));
  }
}

template <typename T>
void Normalize(size_t n, double beta2, double eps, T* v, T* u) {
  DMUON_INDEPENDENT
  for (size_t i = 0; i < n; ++i) {
    const double moment = NextMoment(beta2, Wide(v[i]), Wide(u[i]));
    v[i] = static_cast<T>(moment);
    u[i] = static_cast<T>(Wide(u[i]) / (__builtin_sqrt(moment) + eps));
  }
}

template <typename T>
void Divide(size_t n, double divisor, T* u) {
  DMUON_INDEPENDENT
  for (size_t i = 0; i < n; ++i) u[i] = static_cast<T>(Wide(u[i]) / divisor);
}

template <typename T>
void Adam(size_t n, const AdamStep& step, const T* gradient, T* m, T* v, T* w) {
  const AdamStep s = step;  // lest stores to the tensors might change it
  const double opposed = s.cautious ? 1.0 : s.decay;
  DMUON_INDEPENDENT
  for (size_t i = 0; i < n; ++i) {
    const double g = s.clip * Wide(gradient[i]);
    const double moment = s.beta1 * Wide(m[i]) + (1.0 - s.beta1) * g;
    const double square = NextMoment(s.beta2, Wide(v[i]), g);
    const double u = moment / (__builtin_sqrt(square) * s.inverse_root + s.eps);
    const double wide = Wide(w[i]);
    m[i] = static_cast<T>(moment);
    v[i] = static_cast<T>(square);
    w[i] = static_cast<T>((wide * u < 0.0 ? opposed : s.decay) * wide - s.rate * u);
  }
}

// The sum of term(i) for i below n, in the order that loops.h says.
template <class Term>
double Sum(size_t n, Term term) {
  double lanes[kSumLanes] = {};
  size_t i = 0;
  for (; i + kSumLanes <= n; i += kSumLanes) {
    for (size_t lane = 0; lane < kSumLanes; ++lane) lanes[lane] += term(i + lane);
  }
  for (size_t lane = 0; i + lane < n; ++lane) lanes[lane] += term(i + lane);
  for (size_t half = kSumLanes / 2; half > 0; half /= 2) {
    for (size_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

template <typename T>
double SumSquares(size_t n, const T* x) {
  return Sum(n, [x](size_t i) { return Wide(x[i]) * Wide(x[i]); });
}

// Also adds each term to `totals`.
template <class Term>
double SumAndAdd(size_t n, double* __restrict totals, Term term) {
  return Sum(n, [totals, term](size_t i) {
    const double value = term(i);
    totals[i] += value;
    return value;
  });
}

template <typename T>
double AddSquares(size_t n, const T* __restrict x, double* __restrict totals) {
  return SumAndAdd(n, totals, [x](size_t i) { return Wide(x[i]) * Wide(x[i]); });
}

template <typename T>
double AddMagnitudes(size_t n, const T* __restrict x, double factor, const T* __restrict y, double* __restrict totals) {
  const auto term = [x, factor, y](size_t i) { return __builtin_fabs(Wide(x[i]) + factor * Wide(y[i])); };
  return totals == nullptr ? Sum(n, term) : SumAndAdd(n, totals, term);
}

// -- fp32 and bf16 -----------------------------------------------------------------------------------

constexpr uint32_t kMagnitude = 0x7fffffff;  // all but the sign
constexpr uint32_t kInfinity = 0x7f800000;   // magnitudes above it are NaN

float WidenOne(uint16_t half) { return __builtin_bit_cast(float, static_cast<uint32_t>(half) << 16); }

uint16_t RoundOne(float value) {
  const auto bits = __builtin_bit_cast(uint32_t, value);
  // Half an ulp, less one unless the kept part is odd: ties go to even. A carry into the exponent
  // gives the next binade or infinity, as it should.
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x40;  // its payload may lie in the lost bits only
  return static_cast<uint16_t>((bits & kMagnitude) > kInfinity ? quiet_nan : rounded);
}

void Widen(size_t n, const uint16_t* from, float* to) {
  DMUON_INDEPENDENT
  for (size_t i = 0; i < n; ++i) to[i] = WidenOne(from[i]);
}

void AddWidened(size_t n, const uint16_t* from, float* to) {
  DMUON_INDEPENDENT
  for (size_t i = 0; i < n; ++i) to[i] += WidenOne(from[i]);
}

void AddFloats(size_t n, const float* from, float* to) {
  DMUON_INDEPENDENT
  for (size_t i = 0; i < n; ++i) to[i] += from[i];
}

void Round(size_t n, const float* from, uint16_t* to) {
  DMUON_INDEPENDENT
  for (size_t i = 0; i < n; ++i) to[i] = RoundOne(from[i]);
}

int32_t Largest(size_t n, const float* x) {
  int32_t largest = 0;
  for (size_t i = 0; i < n; ++i) {
    const auto magnitude = static_cast<int32_t>(__builtin_bit_cast(uint32_t, x[i]) & kMagnitude);
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

template <typename T>
constexpr StageLoops<T> MakeStageLoops(std::string_view name) {
  return {.name = name,
          .combine = Combine<T>,
          .combine_over_moment = CombineOverMoment<T>,
          .combine_over_factors = CombineOverFactors<T>,
          .multiply = Multiply<T>,
          .move_cautiously = MoveCautiously<T>,
          .sign = Sign<T>,
          .commit_moment = CommitMoment<T>,
          .normalize = Normalize<T>,
          .divide = Divide<T>,
          .adam = Adam<T>,
          .sum_squares = SumSquares<T>,
          .add_squares = AddSquares<T>,
          .add_magnitudes = AddMagnitudes<T>};
}

constexpr CpuLoops MakeLoops(std::string_view name) {
  return {.stages = MakeStageLoops<float>(name),
          .casts = {.widen = Widen,
                    .add_widened = AddWidened,
                    .add = AddFloats,
                    .round = Round,
                    .multiply = MultiplyTo<float>,
                    .largest = Largest}};
}

}  // namespace
}  // namespace dmuon::kernels
