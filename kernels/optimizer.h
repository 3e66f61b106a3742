// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// An optimizer is a table of stages: one small choice for each thing that happens to a gradient
// between its arrival and the new weight. A new variant is a new row, not a new class.
//
//   stage              Muon        NorMuon    AdaMuon    Muon2        MONA       Dion2        NuMuon   AdamW
//   acceleration       -           -          -          -            towards    -            -        -
//                                                                     a slow mean
//   momentum           EMA or accumulate, Nesterov or not             ...        accumulate   EMA      EMA
//   second moment      -           of rows    of update  of gradient, -          -            -        of gradient
//                                  of update             or factored
//   sign               -           -          yes        -            -          -            -        -
//   selection          -           -          -          -            -          largest rows -        -
//   orthogonalize      Newton-Schulz                                                          top k    -
//   rescale            -           keep norm  to RMS     -            -          -            -        -
//   scale by shape     yes         with norm  -          yes          yes        yes          yes      -
//   weight decay       decoupled, W *= 1 - lr*wd, or cautious
//
// What a learning-rate scheduler may change from step to step is in `Hyper`; what must stay the
// same for a run is in `Optimizer`. Sources of the rows are in kernels/README.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "kernels/coefficients.h"
#include "kernels/precision.h"

namespace dmuon::kernels {

enum class Momentum : uint8_t {
  kEma,         // M <- mu*M + (1-mu)*G;  Nesterov direction (1-mu)*G + mu*M.  torch.optim.Muon
  kAccumulate,  // M <- mu*M + G;         Nesterov direction G + mu*M.         Moonlight
};

// V <- beta2*V + (1-beta2)*square. What it divides is divided by sqrt(V) + eps.
enum class SecondMoment : uint8_t {
  kNone,
  kElementwise,
  kRows,      // one number a row: the mean of its squares
  kFactored,  // sums R of rows and C of columns; V = R*C / sum(C), as Adafactor
};

// Whose squares, and what is divided.
enum class MomentOf : uint8_t {
  kGradient,  // the clipped gradient's; the momentum, before it is orthogonalized (AdamW: the step itself)
  kUpdate,    // the orthogonalized matrix's, and it
};

// How large the update is after a second moment of it.
enum class Rescale : uint8_t {
  kNone,
  kKeepNorm,  // its Frobenius norm stays what Newton-Schulz gave
  kRms,       // its root mean square becomes `rms`
};

enum class WeightDecay : uint8_t {
  kDecoupled,  // W <- (1 - lr*wd)*W
  kCautious,   // the same, only where W and the update have the same sign or one is zero (arXiv 2510.12402)
};

enum class Orthogonalizer : uint8_t {
  kNone,
  kNewtonSchulz,
  kTopK,  // U_k V_k^T of the k largest singular values
};

// How the input of Newton-Schulz is divided by its Frobenius norm.
enum class EpsMode : uint8_t {
  kNone,   // X / |X|: the same direction at every scale; a zero matrix stays zero
  kAdd,    // X / (|X| + eps): Keller Jordan
  kClamp,  // X / max(|X|, eps): torch.optim.Muon
};

struct NewtonSchulz {
  Polynomials coefficients = CoefficientSet::kJordan;
  int iterations = 5;
  EpsMode eps_mode = EpsMode::kNone;
  double eps = 1e-7;  // of kAdd and kClamp
};

// Singular values to try polynomials on: equally spaced in the logarithm from 1e-6, as small ones are amplified
// most, to 1, and last what rounding to bf16 can make of 1.
inline constexpr int kSingularGrid = 2001;
double SingularGrid(int i);

// How the rank goes from its first to its last value.
enum class RankSchedule : uint8_t { kCosine, kLinear };

// The rank of a top-k step as a share of the shorter side s: rank_start during the first tenth of rank_steps
// updates, rank_end from eight tenths on, and on the way between them in the meantime. rank_steps 0: rank_start for
// ever.
struct TopK {
  double rank_start = 0.25;  // in (0, 1]; so is rank_end
  double rank_end = 0.25;
  int64_t rank_steps = 0;  // >= 0
  RankSchedule schedule = RankSchedule::kCosine;
};
// ceil(share * s), at least 1, for the step after `step` updates. The same on every machine.
int64_t RankAt(const TopK& top_k, int64_t step, int64_t s);

// A singular value of a rows x cols matrix below this share of the largest counts as zero: 2^-20 times the root of
// the longer side, which is above what fp32 products leave of nothing.
double SmallestKept(int64_t rows, int64_t cols);

// How Newton-Schulz is computed, which decides speed and rounding, but not the formula. A plan chooses one
// for each shape.
enum class Form : uint8_t {
  kStandard,  // X <- (a*I + b*A + c*A*A)*X with A = X*X^T, every iteration
  kGram,      // the same polynomials on X*X^T alone, multiplied with X at the end and at restarts
};
struct Method {
  Form form = Form::kStandard;
  Precision precision = Precision::kFloat32;

  friend bool operator==(const Method&, const Method&) = default;
};
inline constexpr int kMethods = 4;
constexpr int IndexOf(const Method& method) {
  return 2 * static_cast<int>(method.form) + static_cast<int>(method.precision);
}
constexpr Method MethodAt(int index) {
  return {static_cast<Form>(index / 2), static_cast<Precision>(index % 2)};
}
constexpr std::string_view Name(Form form) { return form == Form::kGram ? "gram" : "standard"; }
constexpr std::string_view Name(Precision precision) {
  return precision == Precision::kBFloat16 ? "bf16" : "fp32";
}

// Whether tests bound the method's error with these polynomials and iterations. In bf16 the Gram form amplifies its own
// rounding from iteration to iteration, by how much depends on the polynomials: it is proven for the published sets,
// up to kListedIterations. The other methods are for any. The planner takes only what is proven; a backend computes
// what it is told.
bool IsProven(const NewtonSchulz& newton_schulz, const Method& method);

inline double NewtonSchulzFlops(const Method& method, int64_t rows, int64_t cols, int iterations) {
  return method.form == Form::kGram ? GramNewtonSchulzFlops(rows, cols, iterations)
                                    : NewtonSchulzFlops(rows, cols, iterations);
}
// What its time grows with: the same, but that a bf16 method does its fp32 products at half the rate.
inline double NewtonSchulzWork(const Method& method, int64_t rows, int64_t cols, int iterations) {
  const bool mixed = method == Method{Form::kGram, Precision::kBFloat16};
  return NewtonSchulzFlops(method, rows, cols, iterations) + (mixed ? GramFloat32Flops(rows, cols, iterations) : 0.0);
}

struct Optimizer {
  // MONA: G <- G + acceleration*(1-slow_beta)*(G - E), then E <- slow_beta*E + (1-slow_beta)*G of the raw,
  // clipped G; E starts as the first gradient. A slow_beta of 0: no such stage.
  double slow_beta = 0.0;
  double acceleration = 0.0;
  Momentum momentum = Momentum::kEma;
  bool nesterov = true;
  bool bias_correction = false;
  SecondMoment second_moment = SecondMoment::kNone;
  MomentOf moment_of = MomentOf::kGradient;
  double second_moment_eps = 1e-8;
  bool sign = false;  // of the momentum, before it is orthogonalized
  // Dion2: of the shorter dimension's lines, the share with the largest sums of magnitudes, at least one. Only
  // they are orthogonalized and applied, and only their momentum then decays, by Hyper::momentum. 1: all.
  double selected = 1.0;
  Orthogonalizer orthogonalizer = Orthogonalizer::kNewtonSchulz;
  NewtonSchulz newton_schulz = {};  // of kNewtonSchulz
  TopK top_k = {};                  // of kTopK
  Rescale rescale = Rescale::kNone;
  double rms = 0.2;  // of kRms
  ScaleRule scale = ScaleRule::kOriginal;
  WeightDecay weight_decay = WeightDecay::kDecoupled;

  // True when a unit of this optimizer is a whole matrix, false when any box of it will do.
  [[nodiscard]] bool needs_whole_matrix() const { return orthogonalizer != Orthogonalizer::kNone; }
  [[nodiscard]] bool selects() const { return selected < 1.0; }
  [[nodiscard]] bool accelerates() const { return slow_beta > 0.0; }
};

// The family, with the defaults of its authors; kernels/README.md says where they are from.
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
constexpr Optimizer NorMuon() {
  Optimizer row;
  row.second_moment = SecondMoment::kRows;
  row.moment_of = MomentOf::kUpdate;
  row.second_moment_eps = 1e-10;
  row.rescale = Rescale::kKeepNorm;
  return row;
}
constexpr Optimizer AdaMuon() {
  Optimizer row;
  row.second_moment = SecondMoment::kElementwise;
  row.moment_of = MomentOf::kUpdate;
  row.sign = true;
  row.rescale = Rescale::kRms;
  row.scale = ScaleRule::kNone;
  return row;
}
constexpr Optimizer Muon2() {
  Optimizer row;
  row.momentum = Momentum::kAccumulate;
  row.nesterov = false;
  row.second_moment = SecondMoment::kElementwise;
  row.newton_schulz.iterations = 3;
  row.scale = ScaleRule::kSpectral;
  return row;
}
constexpr Optimizer Muon2Factored() {
  Optimizer row = Muon2();
  row.second_moment = SecondMoment::kFactored;
  return row;
}
constexpr Optimizer Mona() {
  Optimizer row;
  row.slow_beta = 0.99;
  row.acceleration = -50.0;  // -1 / (2 * (1 - slow_beta)): half the gradient, half the slow mean
  row.momentum = Momentum::kAccumulate;
  row.scale = ScaleRule::kOriginal;
  return row;
}
constexpr Optimizer Dion2() {
  Optimizer row;
  row.momentum = Momentum::kAccumulate;
  row.nesterov = false;
  row.selected = 0.25;
  row.scale = ScaleRule::kSpectral;
  return row;
}

constexpr Optimizer NuMuon() {
  Optimizer row;
  row.nesterov = false;
  row.orthogonalizer = Orthogonalizer::kTopK;
  return row;
}

struct MatrixShape {
  int64_t rows, cols;
};

// A buffer of an optimizer's state beside the weight, by the name that it is saved under.
struct StateTensor {
  std::string_view name;
  int64_t rows, cols;
};
// All of them for one unit, in the order of UnitState.
std::vector<StateTensor> StateTensors(const Optimizer& optimizer, int64_t rows, int64_t cols);

// Of a unit's basis: singular vectors of the last step, a row each, of its shorter side; 0 rows where none are
// kept. Rows beyond the rank of that step are zero.
MatrixShape BasisShape(const Optimizer& optimizer, int64_t rows, int64_t cols);
// Floats of a unit's update: the matrix, and behind it the basis.
size_t UpdateSize(const Optimizer& optimizer, int64_t rows, int64_t cols);
// Floats that a step of one unit works on beside its state and gradient, at most: the update, another copy of the
// matrix, panels of it, and the squares of the Gram form. 0 for element-wise optimizers.
int64_t WorkingFloats(const Optimizer& optimizer, int64_t rows, int64_t cols);

// May change at every step. All must be finite; see Validate.
struct Hyper {
  double lr = 0.0;            // >= 0
  double weight_decay = 0.0;  // >= 0; decoupled, multiplied by the raw lr
  double momentum = 0.95;     // mu of Muon, beta1 of AdamW, decay of Dion2's selected lines; in [0, 1)
  double beta2 = 0.95;        // of the second moment; in [0, 1)
};

// INVALID_ARGUMENT naming the field, its value and its bound.
absl::Status Validate(const Optimizer& optimizer);
absl::Status Validate(const Hyper& hyper);

// The largest |gradient element| whose step keeps all fp32 state finite, whatever the state holds
// by earlier accepted steps. A larger element counts as non-finite: the step is skipped.
double LargestSafeGradient(const Optimizer& optimizer, const Hyper& hyper);

}  // namespace dmuon::kernels
