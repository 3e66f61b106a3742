// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/plan/optimizers.h"

#include "absl/strings/str_cat.h"
#include "wire/error.h"

namespace dmuon::plan {
namespace {

kernels::Optimizer RowOf(v1::Variant variant) {
  switch (variant) {
    case v1::VARIANT_NORMUON:
      return kernels::NorMuon();
    case v1::VARIANT_ADAMUON:
      return kernels::AdaMuon();
    case v1::VARIANT_MUON2:
      return kernels::Muon2();
    case v1::VARIANT_MUON2_FACTORED:
      return kernels::Muon2Factored();
    case v1::VARIANT_MONA:
      return kernels::Mona();
    case v1::VARIANT_DION2:
      return kernels::Dion2();
    case v1::VARIANT_NUMUON:
      return kernels::NuMuon();
    default:
      return kernels::Muon();
  }
}

// Each of these returns `own` where the group says nothing.
kernels::Momentum Or(v1::MomentumForm form, kernels::Momentum own) {
  if (form == v1::MOMENTUM_FORM_EMA) return kernels::Momentum::kEma;
  return form == v1::MOMENTUM_FORM_ACCUMULATE ? kernels::Momentum::kAccumulate : own;
}

kernels::Polynomials Or(v1::CoefficientSet set, const kernels::Polynomials& own) {
  switch (set) {
    case v1::COEFFICIENT_SET_JORDAN:
      return kernels::CoefficientSet::kJordan;
    case v1::COEFFICIENT_SET_YOU:
      return kernels::CoefficientSet::kYou;
    case v1::COEFFICIENT_SET_POLAR_EXPRESS:
      return kernels::CoefficientSet::kPolarExpress;
    default:
      return own;
  }
}

kernels::EpsMode Or(v1::EpsMode mode, kernels::EpsMode own) {
  switch (mode) {
    case v1::EPS_MODE_NONE:
      return kernels::EpsMode::kNone;
    case v1::EPS_MODE_ADD:
      return kernels::EpsMode::kAdd;
    case v1::EPS_MODE_CLAMP:
      return kernels::EpsMode::kClamp;
    default:
      return own;
  }
}

kernels::ScaleRule Or(v1::ScaleRule rule, kernels::ScaleRule own) {
  switch (rule) {
    case v1::SCALE_RULE_NONE:
      return kernels::ScaleRule::kNone;
    case v1::SCALE_RULE_ORIGINAL:
      return kernels::ScaleRule::kOriginal;
    case v1::SCALE_RULE_MATCH_RMS_ADAMW:
      return kernels::ScaleRule::kMatchRmsAdamw;
    case v1::SCALE_RULE_SPECTRAL:
      return kernels::ScaleRule::kSpectral;
    default:
      return own;
  }
}

kernels::WeightDecay ToWeightDecay(v1::WeightDecay form) {
  return form == v1::WEIGHT_DECAY_CAUTIOUS ? kernels::WeightDecay::kCautious : kernels::WeightDecay::kDecoupled;
}

void SetNewtonSchulz(const v1::MuonOptions& options, kernels::NewtonSchulz& newton_schulz) {
  newton_schulz.coefficients = Or(options.coefficients(), newton_schulz.coefficients);
  if (options.polynomials_size() > 0) {
    std::vector<kernels::Quintic> list;
    for (const v1::Quintic& q : options.polynomials()) list.push_back({q.a(), q.b(), q.c()});
    newton_schulz.coefficients = kernels::Polynomials(list);
  }
  newton_schulz.eps_mode = Or(options.eps_mode(), newton_schulz.eps_mode);
  if (options.iterations() != 0) newton_schulz.iterations = options.iterations();
  if (options.has_eps()) newton_schulz.eps = options.eps();
}

void SetTopK(const v1::MuonOptions& options, kernels::TopK& top_k) {
  if (options.has_rank_start()) top_k.rank_start = options.rank_start();
  if (options.has_rank_end()) top_k.rank_end = options.rank_end();
  top_k.rank_steps = options.rank_steps();
  if (options.rank_schedule() == v1::RANK_SCHEDULE_LINEAR) top_k.schedule = kernels::RankSchedule::kLinear;
}

kernels::Optimizer MuonOf(const v1::MuonOptions& options) {
  kernels::Optimizer row = RowOf(options.variant());
  SetNewtonSchulz(options, row.newton_schulz);
  SetTopK(options, row.top_k);
  row.momentum = Or(options.momentum_form(), row.momentum);
  row.weight_decay = ToWeightDecay(options.weight_decay());
  if (options.has_nesterov()) row.nesterov = options.nesterov();
  if (options.has_second_moment_eps()) row.second_moment_eps = options.second_moment_eps();
  if (options.has_sign()) row.sign = options.sign();
  if (options.has_selected()) row.selected = options.selected();
  if (options.has_slow_beta()) {
    row.slow_beta = options.slow_beta();
    row.acceleration = -1.0 / (2.0 * (1.0 - row.slow_beta));
  }
  if (options.has_acceleration()) row.acceleration = options.acceleration();
  if (options.has_rms()) row.rms = options.rms();
  if (options.rescale() == v1::RESCALE_RMS) {
    row.rescale = kernels::Rescale::kRms;
    row.scale = kernels::ScaleRule::kNone;
  } else if (options.rescale() == v1::RESCALE_KEEP_NORM) {
    row.rescale = kernels::Rescale::kKeepNorm;
  }
  row.scale = Or(options.scale(), row.scale);
  return row;
}

// A setting of Newton-Schulz; "" when there is none.
std::string OfNewtonSchulz(const v1::MuonOptions& options) {
  if (options.coefficients() != v1::COEFFICIENT_SET_UNSPECIFIED) return "coefficients";
  if (options.polynomials_size() > 0) return "polynomials";
  if (options.iterations() != 0) return "iterations";
  if (options.eps_mode() != v1::EPS_MODE_UNSPECIFIED) return "eps_mode";
  if (options.has_eps()) return "eps";
  if (options.precision() == v1::PRECISION_BF16) return "precision bf16";
  return "";
}

// A setting of top-k.
std::string OfTopK(const v1::MuonOptions& options) {
  if (options.has_rank_start()) return "rank_start";
  if (options.has_rank_end()) return "rank_end";
  if (options.rank_steps() != 0) return "rank_steps";
  if (options.rank_schedule() != v1::RANK_SCHEDULE_UNSPECIFIED) return "rank_schedule";
  return "";
}

// A setting of a stage that the variant does not have; "" when there is none.
std::string Meaningless(const v1::MuonOptions& options) {
  const kernels::Optimizer row = RowOf(options.variant());
  const bool of_update = row.rescale != kernels::Rescale::kNone;
  if (options.has_second_moment_eps() && row.second_moment == kernels::SecondMoment::kNone) return "second_moment_eps";
  if (options.has_selected() && !row.selects()) return "selected";
  if (options.has_slow_beta() && !row.accelerates()) return "slow_beta";
  if (options.has_acceleration() && !row.accelerates()) return "acceleration";
  if (options.rescale() != v1::RESCALE_UNSPECIFIED && !of_update) return "rescale";
  const bool to_rms = options.rescale() == v1::RESCALE_UNSPECIFIED ? row.rescale == kernels::Rescale::kRms
                                                                  : options.rescale() == v1::RESCALE_RMS;
  if (options.has_rms() && !to_rms) return "rms";
  return row.orthogonalizer == kernels::Orthogonalizer::kTopK ? OfNewtonSchulz(options) : OfTopK(options);
}

}  // namespace

kernels::Optimizer ToOptimizer(const v1::Group& group) {
  if (group.has_muon()) return MuonOf(group.muon());
  kernels::Optimizer row = kernels::AdamW();
  row.second_moment_eps = group.adamw().eps();
  row.weight_decay = ToWeightDecay(group.adamw().weight_decay());
  return row;
}

std::vector<kernels::Optimizer> OptimizersOf(const v1::JobSpec& job) {
  std::vector<kernels::Optimizer> optimizers;
  for (const v1::Group& group : job.groups()) optimizers.push_back(ToOptimizer(group));
  return optimizers;
}

absl::Status ValidateOptimizers(const v1::JobSpec& job) {
  for (const v1::Group& group : job.groups()) {
    if (const std::string field = Meaningless(group.muon()); !field.empty()) {
      std::string variant = v1::Variant_Name(group.muon().variant());
      return wire::InvalidField(
          absl::StrCat("group '", group.name(), "': ", field, " means nothing to ", variant));
    }
    if (group.muon().has_rank_end() && group.muon().rank_steps() == 0) {
      return wire::InvalidField(
          absl::StrCat("group '", group.name(), "': rank_end means nothing without rank_steps"));
    }
    if (absl::Status status = kernels::Validate(ToOptimizer(group)); !status.ok()) {
      return wire::InvalidField(absl::StrCat("group '", group.name(), "': ", status.message()));
    }
  }
  return absl::OkStatus();
}

}  // namespace dmuon::plan
