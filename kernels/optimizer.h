// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// An optimizer is a table of stages: one small choice for each thing that happens to a gradient
// between its arrival and the new weight. A new variant is a new row, not a new class.
//
//   stage             Muon                        AdamW
//   momentum          EMA or accumulate,          EMA (beta1), bias-corrected
//                     Nesterov
//   second moment     none                        element-wise (beta2), bias-corrected
//   orthogonalize     Newton-Schulz               none
//   scale             by the matrix's shape       none
//   weight decay      decoupled: W *= 1 - lr*wd   the same
//
// What a learning-rate scheduler may change from step to step is in `Hyper`; what must stay the
// same for a run is in `Optimizer`.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "kernels/coefficients.h"
#include "kernels/precision.h"

namespace dmuon::kernels {

enum class Momentum : uint8_t {
  kEma,         // M <- mu*M + (1-mu)*G;  Nesterov direction (1-mu)*G + mu*M.  torch.optim.Muon
  kAccumulate,  // M <- mu*M + G;         Nesterov direction G + mu*M.         Moonlight
};

enum class SecondMoment : uint8_t { kNone, kElementwise };

enum class Orthogonalizer : uint8_t { kNone, kNewtonSchulz };

// How the input of Newton-Schulz is divided by its Frobenius norm.
enum class EpsMode : uint8_t {
  kNone,   // X / |X|: the same direction at every scale; a zero matrix stays zero
  kAdd,    // X / (|X| + eps): Keller Jordan
  kClamp,  // X / max(|X|, eps): torch.optim.Muon
};

struct NewtonSchulz {
  CoefficientSet coefficients = CoefficientSet::kJordan;
  int iterations = 5;
  EpsMode eps_mode = EpsMode::kNone;
  double eps = 1e-7;  // of kAdd and kClamp
};

// How Newton-Schulz is computed, which decides speed and rounding, but not the formula. A plan chooses one
// for each shape.
enum class Form : uint8_t {
  kStandard,  // X <- (a*I + b*A + c*A*A)*X with A = X*X^T, every iteration
  kGram,      // the same polynomials on X*X^T alone, multiplied with X at the end and at restarts
};
struct Method {
  Form form = Form::kStandard;
  Precision precision = Precision::kFloat32;
};

struct Optimizer {
  Momentum momentum = Momentum::kEma;
  bool nesterov = true;
  bool bias_correction = false;
  SecondMoment second_moment = SecondMoment::kNone;
  double second_moment_eps = 1e-8;
  Orthogonalizer orthogonalizer = Orthogonalizer::kNewtonSchulz;
  NewtonSchulz newton_schulz = {};
  ScaleRule scale = ScaleRule::kOriginal;

  // True when a unit of this optimizer is a whole matrix, false when any box of it will do.
  [[nodiscard]] bool needs_whole_matrix() const { return orthogonalizer != Orthogonalizer::kNone; }
  // fp32 buffers of the tensor's size that the state holds beside the master weight.
  [[nodiscard]] int state_buffers() const { return second_moment == SecondMoment::kNone ? 1 : 2; }
};

// The two optimizers of this release, as rows of the table.
constexpr Optimizer Muon() { return Optimizer{}; }
constexpr Optimizer AdamW() {
  Optimizer row;
  row.nesterov = false;
  row.bias_correction = true;
  row.second_moment = SecondMoment::kElementwise;
  row.orthogonalizer = Orthogonalizer::kNone;
  row.scale = ScaleRule::kNone;
  return row;
}

// May change at every step. All must be finite; see Validate.
struct Hyper {
  double lr = 0.0;            // >= 0
  double weight_decay = 0.0;  // >= 0; decoupled, multiplied by the raw lr
  double momentum = 0.95;     // mu of Muon, beta1 of AdamW; in [0, 1)
  double beta2 = 0.95;        // of the second moment; in [0, 1)
};

// INVALID_ARGUMENT naming the field, its value and its bound.
absl::Status Validate(const Optimizer& optimizer);
absl::Status Validate(const Hyper& hyper);

// The largest |gradient element| whose step keeps all fp32 state finite, whatever the state holds
// by earlier accepted steps. A larger element counts as non-finite: the step is skipped.
double LargestSafeGradient(const Optimizer& optimizer, const Hyper& hyper);

}  // namespace dmuon::kernels
