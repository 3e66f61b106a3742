// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/optimizer.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>

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

absl::Status ValidateNewtonSchulz(const NewtonSchulz& ns) {
  if (ns.iterations < 1 || ns.iterations > kMaxIterations) {
    return Refuse("newton_schulz.iterations", ns.iterations,
                  absl::StrCat("in [1, ", kMaxIterations, "]"));
  }
  return First({Known("newton_schulz.coefficients", ns.coefficients, CoefficientSet::kPolarExpress),
                Known("newton_schulz.eps_mode", ns.eps_mode, EpsMode::kClamp),
                NotNegative("newton_schulz.eps", ns.eps)});
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
      o.selected > 0.0 && o.selected <= 1.0 ? absl::OkStatus() : Refuse("selected", o.selected, "in (0, 1]"),
      RefuseUnless(!o.selects() || (o.momentum == Momentum::kAccumulate && !o.nesterov && !o.accelerates() && !o.sign &&
                                    o.second_moment == SecondMoment::kNone),
                   "selected is below 1; then momentum must accumulate without nesterov, and acceleration, sign and "
                   "second_moment must be off"),
      ValidateNewtonSchulz(o.newton_schulz),
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

}  // namespace

absl::Status Validate(const Optimizer& optimizer) {
  absl::Status known =
      First({Known("momentum", optimizer.momentum, Momentum::kAccumulate),
             Known("second_moment", optimizer.second_moment, SecondMoment::kFactored),
             Known("moment_of", optimizer.moment_of, MomentOf::kUpdate),
             Known("rescale", optimizer.rescale, Rescale::kRms),
             Known("weight_decay", optimizer.weight_decay, WeightDecay::kCautious),
             Known("orthogonalizer", optimizer.orthogonalizer, Orthogonalizer::kNewtonSchulz),
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
  return tensors;
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
