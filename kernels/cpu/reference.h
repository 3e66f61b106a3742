// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The judge: every stage of a step in double and in plain loops, to be read beside the formulas.
// Slow, and meant to stay so; whatever is faster is compared with this.
//
// Matrices are row-major. Spans of one call have the same length and do not overlap. Nothing here
// can fail: callers pass optimizers and hyper-parameters that Validate accepted, and finite input.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/optimizer.h"

namespace dmuon::kernels::reference {

// As kernels::UnitState, in double.
struct State {
  std::span<double> weight;
  std::span<double> momentum;
  std::span<double> second_moment;  // empty when the optimizer has none
  int64_t step = 0;
};

// sqrt(sum of squares), taken relative to the largest element, so that neither huge nor tiny
// elements leave the range of double.
double FrobeniusNorm(std::span<const double> x);

// x <- NewtonSchulz(x) of a rows x cols matrix; a matrix taller than wide is transposed first. A
// zero matrix stays zero in every EpsMode.
void Orthogonalize(const NewtonSchulz& newton_schulz, int64_t rows, int64_t cols,
                   std::span<double> x);

// update = the direction that the momentum stage makes of clip*gradient; the state stays as it is.
void Direction(const Optimizer& optimizer, const Hyper& hyper, double clip,
               std::span<const double> gradient, std::span<const double> momentum,
               std::span<double> update);

// Momentum, second moment, weight and step, as Backend::Apply.
void Apply(const Optimizer& optimizer, const Hyper& hyper, double clip, double scale,
           std::span<const double> gradient, std::span<const double> update, State& state);

}  // namespace dmuon::kernels::reference
