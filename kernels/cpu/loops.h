// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The innermost loops of all work on elements, compiled for each kind of CPU from one text (loop_impl.h).
//
// An element is computed in double, without fused multiply-add, and rounded once to T. So its bits do not depend on
// the CPU, on vector width, on where in a buffer it lies or on who cuts the buffer into what. A sum is taken
// in double in a fixed order: by kSumLanes running sums, one for each index modulo kSumLanes, which are then added
// by halves, the upper to the lower.
//
// `n` is a number of elements, at least 0; buffers have as many and any alignment that their type has. An output
// may be the same as an input, but must not overlap it otherwise. Thread-safe; nothing here holds state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace dmuon::kernels {

// The elements that one call of a loop gets. Between loops over a block its elements stay in the nearest caches,
// so that stages of several loops touch memory once. It decides the bits of sums.
inline constexpr size_t kBlock = 2048;
inline constexpr size_t kSumLanes = 32;

// The second moments after a step: beta2*v + (1-beta2)*(clip*g)^2, unrounded.
template <typename T>
struct NextMomentOf {
  double beta2, clip, eps;
  const T* g;
  const T* v;
};

// Roots of second moments by rows and columns.
struct Factors {
  double row;
  const double* columns;
  double eps;
};

// The constants of one AdamW step. m <- beta1*m + (1-beta1)*clip*g; v <- beta2*v + (1-beta2)*(clip*g)^2;
// u = m / (sqrt(v)*inverse_root + eps); w <- decay*w - rate*u. Cautious: no decay where w*u is below zero.
struct AdamStep {
  double clip, beta1, beta2;
  double inverse_root, eps;
  double decay, rate;
  bool cautious;
};

// T is float or double.
template <typename T>
struct StageLoops {
  std::string_view name;  // of the CPUs

  // out = a*x + b*y.
  void (*combine)(size_t n, double a, const T* x, double b, const T* y, T* out);
  // The same over (sqrt(next moment) + eps), and over (row*columns + eps).
  void (*combine_over_moment)(size_t n, double a, const T* x, double b, const T* y, const NextMomentOf<T>& moment,
                              T* out);
  void (*combine_over_factors)(size_t n, double a, const T* x, double b, const T* y, const Factors& factors, T* out);
  // values *= factor.
  void (*multiply)(size_t n, double factor, T* values);
  // w = decay*w - rate*u; where w*u is below zero, w = w - rate*u.
  void (*move_cautiously)(size_t n, double decay, double rate, const T* u, T* w);
  // values = their sign: -1, 0 or 1.
  void (*sign)(size_t n, T* values);

  // v = beta2*v + (1-beta2)*(clip*g)^2.
  void (*commit_moment)(size_t n, double beta2, double clip, const T* g, T* v);
  // u = u / (sqrt(v') + eps), v = v' = beta2*v + (1-beta2)*u^2.
  void (*normalize)(size_t n, double beta2, double eps, T* v, T* u);
  // u = u / divisor.
  void (*divide)(size_t n, double divisor, T* u);

  void (*adam)(size_t n, const AdamStep& step, const T* g, T* m, T* v, T* w);

  double (*sum_squares)(size_t n, const T* x);
  // Of x^2, and of |x + factor*y|: the sum, and each is added to `totals`, which overlap nothing. Those of magnitudes
  // may be null.
  double (*add_squares)(size_t n, const T* x, double* totals);
  double (*add_magnitudes)(size_t n, const T* x, double factor, const T* y, double* totals);
};

struct CastLoops {
  // As Backend::CastToFloat, AddToFloat and CastFromFloat; a bf16 is the upper half of a fp32 number.
  void (*widen)(size_t n, const uint16_t* from, float* to);
  void (*add_widened)(size_t n, const uint16_t* from, float* to);
  void (*add)(size_t n, const float* from, float* to);
  void (*round)(size_t n, const float* from, uint16_t* to);
  // to = factor * from.
  void (*multiply)(size_t n, double factor, const float* from, float* to);
  // The bits of the largest magnitude. Magnitudes compare as integers; infinity and NaN come out on top.
  int32_t (*largest)(size_t n, const float* x);
};

// The loops of one kind of CPU.
struct CpuLoops {
  StageLoops<float> stages;
  CastLoops casts;
};

// What this CPU can run, the fastest first; the last is for any. Never empty.
std::span<const CpuLoops* const> AllLoops();

// The fastest for float; for double, which only the judge uses, those for any CPU.
template <typename T>
const StageLoops<T>& Stages();
const CastLoops& Casts();

// To be used where the CPU has been asked.
extern const CpuLoops kAvx512Loops;
extern const CpuLoops kAvx2Loops;

}  // namespace dmuon::kernels
