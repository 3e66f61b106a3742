// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What the stages of a step multiply with, from an optimizer's row and its hyper-parameters: the part that is the
// same for every element, shared by all backends. For optimizers and hyper-parameters that Validate accepted.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/optimizer.h"

namespace dmuon::kernels {

// What the momentum stage takes for a gradient: own * G + slow * E. `own` holds the clip.
struct Acceleration {
  double own, slow;
};
// E starts as the first gradient, so that the first step has none. `step`: of the updates applied so far.
inline Acceleration AccelerationOf(const Optimizer& optimizer, double clip, int64_t step) {
  if (!optimizer.accelerates() || step == 0) return {clip, 0.0};
  const double pull = optimizer.acceleration * (1.0 - optimizer.slow_beta);
  return {clip * (1.0 + pull), -pull};
}

// M <- keep * M + take * g.
struct MomentumFactors {
  double keep, take;
};
inline MomentumFactors MomentumOf(const Optimizer& optimizer, const Hyper& hyper) {
  if (optimizer.selects()) return {1.0, 1.0};  // decays later, where it is selected
  return {hyper.momentum, optimizer.momentum == Momentum::kEma ? 1.0 - hyper.momentum : 1.0};
}

// base^exponent by repeated squaring: the same bits everywhere, which std::pow does not promise. Squarings double a
// relative error, so it is below exponent * 2^-53.
inline double Power(double base, int64_t exponent) {
  double power = 1.0;
  for (; exponent > 0; exponent /= 2, base *= base) {
    if (exponent % 2 != 0) power *= base;
  }
  return power;
}

// W <- (cautious where the signs differ ? 1 : decay)*W - rate*m / (sqrt(v)*inverse_root + eps).
struct AdamFactors {
  double beta1, beta2, decay, rate, inverse_root, eps;
  bool cautious;
};
// `step` counts the update itself.
inline AdamFactors AdamOf(const Optimizer& optimizer, const Hyper& hyper, int64_t step) {
  const double first = optimizer.bias_correction ? 1.0 - Power(hyper.momentum, step) : 1.0;
  const double second = optimizer.bias_correction ? 1.0 - Power(hyper.beta2, step) : 1.0;
  return {.beta1 = hyper.momentum,
          .beta2 = hyper.beta2,
          .decay = 1.0 - hyper.lr * hyper.weight_decay,
          .rate = hyper.lr / first,
          .inverse_root = 1.0 / std::sqrt(second),
          .eps = optimizer.second_moment_eps,
          .cautious = optimizer.weight_decay == WeightDecay::kCautious};
}

// What gives an update of `elements` elements the size that `rescale` says, from its Frobenius norms before and
// after its second moment divided it.
inline double RescaleFactor(const Optimizer& optimizer, double before, double after, size_t elements) {
  const double wanted = optimizer.rescale == Rescale::kKeepNorm
                            ? before
                            : optimizer.rms * std::sqrt(static_cast<double>(elements));
  return wanted / (after + optimizer.second_moment_eps);
}

// The selected share of lines, those with the largest sums, in rising order. Equal sums: the first wins.
inline std::vector<int64_t> LargestLines(const Optimizer& optimizer, std::span<const double> sums) {
  const auto lines = static_cast<int64_t>(sums.size());
  std::vector<int64_t> order(sums.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return sums[static_cast<size_t>(a)] > sums[static_cast<size_t>(b)];
  });
  const auto count = static_cast<int64_t>(std::ceil(optimizer.selected * static_cast<double>(lines)));
  order.resize(static_cast<size_t>(std::clamp<int64_t>(count, 1, lines)));
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace dmuon::kernels
