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

// Stages are chosen one by one, but not every choice means something beside the others. What no
// kernel computes is refused here rather than ignored there.
absl::Status ValidateMatrix(const Optimizer& optimizer) {
  if (optimizer.second_moment != SecondMoment::kNone) {
    return absl::InvalidArgumentError(
        "second_moment is element-wise; must be none when the optimizer orthogonalizes");
  }
  if (optimizer.bias_correction) {
    return absl::InvalidArgumentError(
        "bias_correction is true; must be false when the optimizer orthogonalizes, whose result "
        "does not depend on the scale of its input");
  }
  return ValidateNewtonSchulz(optimizer.newton_schulz);
}

absl::Status ValidateElementwise(const Optimizer& optimizer) {
  if (optimizer.second_moment != SecondMoment::kElementwise) {
    return absl::InvalidArgumentError(
        "second_moment is none; must be element-wise when the optimizer does not orthogonalize");
  }
  if (optimizer.momentum != Momentum::kEma || optimizer.nesterov) {
    return absl::InvalidArgumentError(
        "momentum is accumulate or nesterov; must be a plain EMA when the optimizer does not "
        "orthogonalize");
  }
  if (optimizer.scale != ScaleRule::kNone) {
    return absl::InvalidArgumentError(
        "scale depends on the matrix shape; must be none when the optimizer does not "
        "orthogonalize");
  }
  const double eps = optimizer.second_moment_eps;
  if (std::isfinite(eps) && eps > 0.0) return absl::OkStatus();
  return Refuse("second_moment_eps", eps, "finite and above 0");
}

}  // namespace

absl::Status Validate(const Optimizer& optimizer) {
  absl::Status known =
      First({Known("momentum", optimizer.momentum, Momentum::kAccumulate),
             Known("second_moment", optimizer.second_moment, SecondMoment::kElementwise),
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

double LargestSafeGradient(const Optimizer& optimizer, const Hyper& hyper) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  // The kernels compute each element in double and round it once, so a sum of parts that stays
  // within the largest float cannot leave it by rounding.
  // EMA: a mean of two numbers is never above both. Accumulate: mu*M takes up to mu*kLargest.
  double bound =
      optimizer.momentum == Momentum::kEma ? kLargest : (1.0 - hyper.momentum) * kLargest;
  if (optimizer.second_moment == SecondMoment::kElementwise) {
    bound = std::min(bound, std::sqrt(kLargest));  // its square is what the state holds
  }
  return bound;
}

}  // namespace dmuon::kernels
