// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/optimizer.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace dmuon::kernels {
namespace {

constexpr int kMaxIterations = 99;

absl::Status Refuse(absl::string_view field, double value, absl::string_view bound) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, "; must be ", bound));
}

absl::Status NotNegative(absl::string_view field, double value) {
  if (std::isfinite(value) && value >= 0.0) return absl::OkStatus();
  return Refuse(field, value, "finite and at least 0");
}

absl::Status BelowOne(absl::string_view field, double value) {
  if (value >= 0.0 && value < 1.0) return absl::OkStatus();  // false for NaN
  return Refuse(field, value, "in [0, 1)");
}

// Enumerations may come from a wire or a file, so a value outside the list is the world's doing.
template <typename Enum>
absl::Status Known(absl::string_view field, Enum value, Enum last) {
  if (value <= last) return absl::OkStatus();
  return Refuse(field, static_cast<double>(value),
                absl::StrCat("at most ", static_cast<int>(last)));
}

absl::Status First(std::initializer_list<absl::Status> checks) {
  for (const absl::Status& check : checks) {
    if (!check.ok()) return check;
  }
  return absl::OkStatus();
}

// Sound polynomials take every singular value near 1. Published sets stay below 2 on the way.
absl::Status ValidatePolynomials(const NewtonSchulz& ns) {
  constexpr double kLargest = 2.0;
  const std::span<const Quintic> list = ns.coefficients.list();
  if (list.empty()) return absl::InvalidArgumentError("newton_schulz.coefficients is empty; must be 1 to 20 triples");
  for (size_t i = 0; i < list.size(); ++i) {
    for (const double value : {list[i].a, list[i].b, list[i].c}) {
      if (!std::isfinite(value)) return Refuse(absl::StrCat("newton_schulz.coefficients[", i, "]"), value, "finite");
    }
  }
  for (int point = 0; point < kSingularGrid; ++point) {
    double x = SingularGrid(point);
    for (int i = 0; i < ns.iterations; ++i) {
      x = ns.coefficients.at(i).Of(x);
      if (std::abs(x) <= kLargest) continue;
      return absl::InvalidArgumentError(absl::StrCat("newton_schulz.coefficients take the singular value ",
                                                     SingularGrid(point), " to ", x, " in iteration ", i + 1,
                                                     "; must stay within [-", kLargest, ", ", kLargest, "]"));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateNewtonSchulz(const NewtonSchulz& ns) {
  if (ns.iterations < 1 || ns.iterations > kMaxIterations) {
    return Refuse("newton_schulz.iterations", ns.iterations,
                  absl::StrCat("in [1, ", kMaxIterations, "]"));
  }
  return First({ValidatePolynomials(ns),
                Known("newton_schulz.eps_mode", ns.eps_mode, EpsMode::kClamp),
                NotNegative("newton_schulz.eps", ns.eps)});
}

absl::Status Share(absl::string_view field, double value) {
  if (value > 0.0 && value <= 1.0) return absl::OkStatus();  // false for NaN
  return Refuse(field, value, "in (0, 1]");
}

absl::Status ValidateTopK(const TopK& top_k) {
  return First({Known("rank_schedule", top_k.schedule, RankSchedule::kLinear),
                Share("rank_start", top_k.rank_start), Share("rank_end", top_k.rank_end),
                NotNegative("rank_steps", static_cast<double>(top_k.rank_steps))});
}

absl::Status Positive(absl::string_view field, double value) {
  if (std::isfinite(value) && value > 0.0) return absl::OkStatus();
  return Refuse(field, value, "finite and above 0");
}

absl::Status RefuseUnless(bool holds, absl::string_view message) {
  return holds ? absl::OkStatus() : absl::InvalidArgumentError(message);
}

// Stages are chosen one by one, but not every choice means something beside the others. What no
// kernel computes is refused here rather than ignored there.
absl::Status ValidateMatrix(const Optimizer& o) {
  const bool of_update = o.moment_of == MomentOf::kUpdate;
  return First({
      RefuseUnless(!o.bias_correction,
                   "bias_correction is true; must be false when the optimizer orthogonalizes, whose result does "
                   "not depend on the scale of its input"),
      RefuseUnless(o.second_moment != SecondMoment::kRows || of_update,
                   "second_moment is of rows; then it must be of the update"),
      RefuseUnless(o.second_moment != SecondMoment::kFactored || !of_update,
                   "second_moment is factored; then it must be of the gradient"),
      RefuseUnless(!of_update || o.second_moment != SecondMoment::kNone,
                   "moment_of is the update; then there must be a second_moment"),
      RefuseUnless(of_update == (o.rescale != Rescale::kNone),
                   "rescale must be chosen when the second moment is of the update, and none otherwise"),
      RefuseUnless(o.rescale != Rescale::kRms || o.scale == ScaleRule::kNone,
                   "scale must be none when rescale sets the root mean square"),
      o.second_moment == SecondMoment::kNone ? absl::OkStatus() : Positive("second_moment_eps", o.second_moment_eps),
      Positive("rms", o.rms),
      BelowOne("slow_beta", o.slow_beta),
      std::isfinite(o.acceleration) ? absl::OkStatus() : Refuse("acceleration", o.acceleration, "finite"),
      Share("selected", o.selected),
      RefuseUnless(!o.selects() || (o.momentum == Momentum::kAccumulate && !o.nesterov && !o.accelerates() && !o.sign &&
                                    o.second_moment == SecondMoment::kNone),
                   "selected is below 1; then momentum must accumulate without nesterov, and acceleration, sign and "
                   "second_moment must be off"),
      RefuseUnless(!o.selects() || o.orthogonalizer != Orthogonalizer::kTopK,
                   "selected is below 1; then the orthogonalizer must be Newton-Schulz"),
      ValidateNewtonSchulz(o.newton_schulz),
      ValidateTopK(o.top_k),
  });
}

absl::Status ValidateElementwise(const Optimizer& o) {
  return First({
      RefuseUnless(o.second_moment == SecondMoment::kElementwise && o.moment_of == MomentOf::kGradient,
                   "second_moment must be element-wise and of the gradient when the optimizer does not orthogonalize"),
      RefuseUnless(o.momentum == Momentum::kEma && !o.nesterov,
                   "momentum is accumulate or nesterov; must be a plain EMA when the optimizer does not orthogonalize"),
      RefuseUnless(o.scale == ScaleRule::kNone,
                   "scale depends on the matrix shape; must be none when the optimizer does not orthogonalize"),
      RefuseUnless(!o.accelerates() && !o.sign && !o.selects() && o.rescale == Rescale::kNone,
                   "acceleration, sign, selected and rescale must be off when the optimizer does not orthogonalize"),
      Positive("second_moment_eps", o.second_moment_eps),
  });
}

// (1 - cos(pi x)) / 2 for x in [0, 1], as sin^2(pi x / 2), by its series: the C library may round a cosine
// differently on another machine, and with it a rank.
double SmoothStep(double x) {
  constexpr double kHalfPi = 1.5707963267948966;
  const double y = kHalfPi * x;
  double term = y;
  double sine = y;
  for (int k = 1; k < 12; ++k) {
    term *= -y * y / static_cast<double>(2 * k * (2 * k + 1));
    sine += term;
  }
  return sine * sine;
}

}  // namespace

bool IsProven(const NewtonSchulz& newton_schulz, const Method& method) {
  if (method != Method{Form::kGram, Precision::kBFloat16}) return true;
  const auto is = [&](CoefficientSet set) { return newton_schulz.coefficients == Polynomials(set); };
  return newton_schulz.iterations <= kListedIterations &&
         std::any_of(std::begin(kCoefficientSets), std::end(kCoefficientSets), is);
}

absl::Status Validate(const Optimizer& optimizer) {
  absl::Status known =
      First({Known("momentum", optimizer.momentum, Momentum::kAccumulate),
             Known("second_moment", optimizer.second_moment, SecondMoment::kFactored),
             Known("moment_of", optimizer.moment_of, MomentOf::kUpdate),
             Known("rescale", optimizer.rescale, Rescale::kRms),
             Known("weight_decay", optimizer.weight_decay, WeightDecay::kCautious),
             Known("orthogonalizer", optimizer.orthogonalizer, Orthogonalizer::kTopK),
             Known("scale", optimizer.scale, ScaleRule::kSpectral)});
  if (!known.ok()) return known;
  return optimizer.needs_whole_matrix() ? ValidateMatrix(optimizer)
                                        : ValidateElementwise(optimizer);
}

absl::Status Validate(const Hyper& hyper) {
  return First({NotNegative("lr", hyper.lr), NotNegative("weight_decay", hyper.weight_decay),
                BelowOne("momentum", hyper.momentum), BelowOne("beta2", hyper.beta2)});
}

std::vector<StateTensor> StateTensors(const Optimizer& optimizer, int64_t rows, int64_t cols) {
  std::vector<StateTensor> tensors = {{"momentum", rows, cols}};
  switch (optimizer.second_moment) {
    case SecondMoment::kElementwise:
      tensors.push_back({"second_moment", rows, cols});
      break;
    case SecondMoment::kRows:
      tensors.push_back({"second_moment", rows, 1});
      break;
    case SecondMoment::kFactored:
      tensors.push_back({"second_moment", rows, 1});
      tensors.push_back({"column_moment", 1, cols});
      break;
    case SecondMoment::kNone:
      break;
  }
  if (optimizer.accelerates()) tensors.push_back({"slow_gradient", rows, cols});
  if (const auto [kept, length] = BasisShape(optimizer, rows, cols); kept > 0) {
    tensors.push_back({"basis", kept, length});
  }
  return tensors;
}

MatrixShape BasisShape(const Optimizer& optimizer, int64_t rows, int64_t cols) {
  if (optimizer.orthogonalizer != Orthogonalizer::kTopK) return {0, 0};
  const int64_t s = std::min(rows, cols);
  // Where the block spans all directions there is nothing to start from.
  const int64_t krylov = (s - 1) / kKrylovIterations - kOversampling;
  const TopK& top_k = optimizer.top_k;
  const int64_t last = top_k.rank_steps == 0 ? 0 : RankAt(top_k, top_k.rank_steps, s);
  return {std::max<int64_t>(0, std::min(krylov, std::max(RankAt(top_k, 0, s), last))), s};
}

size_t UpdateSize(const Optimizer& optimizer, int64_t rows, int64_t cols) {
  const auto [kept, length] = BasisShape(optimizer, rows, cols);
  return static_cast<size_t>(rows * cols + kept * length);
}

double SingularGrid(int i) {
  constexpr int kLast = kSingularGrid - 1;
  return i == kLast ? 1.0 + 0x1p-8 : std::pow(10.0, -6.0 * (1.0 - static_cast<double>(i + 1) / kLast));
}

int64_t RankAt(const TopK& top_k, int64_t step, int64_t s) {
  constexpr double kHold = 0.1, kDone = 0.8;
  double share = top_k.rank_start;
  if (top_k.rank_steps > 0) {
    const double progress = static_cast<double>(step) / static_cast<double>(top_k.rank_steps);
    const double way = std::clamp((progress - kHold) / (kDone - kHold), 0.0, 1.0);
    share += (top_k.rank_end - top_k.rank_start) * (top_k.schedule == RankSchedule::kCosine ? SmoothStep(way) : way);
  }
  // 0.3 * 10 shall be 3, whatever the last bit of 0.3 is.
  constexpr double kRounding = 1e-9;
  const auto rank = static_cast<int64_t>(std::ceil(share * static_cast<double>(s) - kRounding));
  return std::clamp<int64_t>(rank, 1, s);
}

double SmallestKept(int64_t rows, int64_t cols) {
  return 0x1p-20 * std::sqrt(static_cast<double>(std::max(rows, cols)));
}

int64_t WorkingFloats(const Optimizer& optimizer, int64_t rows, int64_t cols) {
  if (!optimizer.needs_whole_matrix()) return 0;
  constexpr int64_t kCopies = 2;
  constexpr int64_t kSquares = 4;
  const int64_t s = std::min(rows, cols);
  return static_cast<int64_t>(UpdateSize(optimizer, rows, cols)) + kCopies * rows * cols + kSquares * s * s;
}

double LargestSafeGradient(const Optimizer& optimizer, const Hyper& hyper) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  // The kernels compute each element in double and round it once, so a sum of parts that stays
  // within the largest float cannot leave it by rounding.
  // EMA: a mean of two numbers is never above both. Accumulate: mu*M takes up to mu*kLargest.
  double bound =
      optimizer.momentum == Momentum::kEma ? kLargest : (1.0 - hyper.momentum) * kLargest;
  // The slow mean is never above the largest gradient so far.
  const double pull = optimizer.acceleration * (1.0 - optimizer.slow_beta);
  if (optimizer.accelerates()) bound /= std::max(1.0, std::abs(1.0 + pull) + std::abs(pull));
  // A line that is not selected only grows, until it is the largest. No bound holds for ever; this one does for
  // a million steps.
  if (optimizer.selects()) bound = kLargest * 1e-6;
  if (optimizer.second_moment != SecondMoment::kNone && optimizer.moment_of == MomentOf::kGradient) {
    // The state holds its square, or a sum of as many as a line has elements: at most 2^31.
    const double sum = optimizer.second_moment == SecondMoment::kFactored ? 0x1p31 : 1.0;
    bound = std::min(bound, std::sqrt(kLargest / sum));
  }
  return bound;
}

}  // namespace dmuon::kernels
