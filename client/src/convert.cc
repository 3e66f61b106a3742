// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "client/src/convert.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "wire/address.h"
#include "wire/error.h"

namespace dmuon::client {
namespace {

// An enum that came over the ABI may hold any number; reading it as the enum would be undefined.
template <typename Enum>
int32_t Raw(const Enum& value) {
  static_assert(sizeof(Enum) == sizeof(int32_t));
  int32_t raw = 0;
  std::memcpy(&raw, &value, sizeof(raw));
  return raw;
}

// The C enumerators have the numbers of dmuon.v1, from `first` to `last`.
template <typename To, typename From>
absl::StatusOr<To> Enumerator(const From& value, To last, absl::string_view field, int first = 1) {
  const int32_t raw = Raw(value);
  if (raw >= first && raw <= last) return static_cast<To>(raw);
  return wire::InvalidField(
      absl::StrCat(field, " ", raw, " is not in ", first, "..", static_cast<int>(last)));
}

static_assert(int{DMUON_BFLOAT16} == int{v1::DTYPE_BFLOAT16});
static_assert(int{DMUON_ACCUMULATE} == int{v1::MOMENTUM_FORM_ACCUMULATE});
static_assert(int{DMUON_POLAR_EXPRESS} == int{v1::COEFFICIENT_SET_POLAR_EXPRESS});
static_assert(int{DMUON_EPS_CLAMP} == int{v1::EPS_MODE_CLAMP});
static_assert(int{DMUON_SCALE_SPECTRAL} == int{v1::SCALE_RULE_SPECTRAL});
static_assert(int{DMUON_RESCALE_RMS} == int{v1::RESCALE_RMS});
static_assert(int{DMUON_VARIANT_NUMUON} == int{v1::VARIANT_NUMUON});
static_assert(int{DMUON_RANK_LINEAR} == int{v1::RANK_SCHEDULE_LINEAR});
static_assert(int{DMUON_PRECISION_AUTO} == int{v1::PRECISION_AUTO});
static_assert(int{DMUON_AUTOTUNE_ON} == int{v1::AUTOTUNE_ON});
static_assert(int{DMUON_DECAY_CAUTIOUS} == int{v1::WEIGHT_DECAY_CAUTIOUS});
static_assert(int{DMUON_VIEW_EXPERTS} == int{v1::VIEW_EXPERTS});
static_assert(int{DMUON_REPLICATION_SYNC} == int{v1::REPLICATION_SYNC});
static_assert(int{DMUON_MISSING_ZERO} == int{v1::MISSING_GRADIENT_ZERO});

absl::StatusOr<std::string> Text(const char* text, absl::string_view field) {
  if (text == nullptr) return wire::InvalidField(absl::StrCat(field, " is NULL"));
  return std::string(text);
}

absl::StatusOr<bool> Flag(int32_t value, absl::string_view field) {
  if (value == 0 || value == 1) return value == 1;
  return wire::InvalidField(absl::StrCat(field, " ", value, " is not 0 or 1"));
}

// The words of a group; 0 is the variant's own.
absl::Status SetWords(const dmuon_group& group, v1::MuonOptions& muon) {
  constexpr int kOwn = 0;
  DMUON_ASSIGN_OR_RETURN(const auto variant,
                         Enumerator(group.variant, v1::VARIANT_NUMUON, "dmuon_group.variant"));
  DMUON_ASSIGN_OR_RETURN(const auto form, Enumerator(group.momentum_form, v1::MOMENTUM_FORM_ACCUMULATE,
                                                     "dmuon_group.momentum_form", kOwn));
  DMUON_ASSIGN_OR_RETURN(const auto coefficients,
                         Enumerator(group.coefficients, v1::COEFFICIENT_SET_POLAR_EXPRESS,
                                    "dmuon_group.coefficients", kOwn));
  DMUON_ASSIGN_OR_RETURN(const auto eps_mode, Enumerator(group.eps_mode, v1::EPS_MODE_CLAMP,
                                                         "dmuon_group.eps_mode", kOwn));
  DMUON_ASSIGN_OR_RETURN(const auto scale, Enumerator(group.scale, v1::SCALE_RULE_SPECTRAL,
                                                      "dmuon_group.scale", kOwn));
  DMUON_ASSIGN_OR_RETURN(const auto rescale, Enumerator(group.rescale, v1::RESCALE_RMS,
                                                        "dmuon_group.rescale", kOwn));
  DMUON_ASSIGN_OR_RETURN(const auto precision,
                         Enumerator(group.precision, v1::PRECISION_AUTO, "dmuon_group.precision"));
  DMUON_ASSIGN_OR_RETURN(const auto rank_schedule, Enumerator(group.rank_schedule, v1::RANK_SCHEDULE_LINEAR,
                                                              "dmuon_group.rank_schedule", kOwn));
  muon.set_precision(precision);
  muon.set_rank_schedule(rank_schedule);
  muon.set_variant(variant);
  muon.set_momentum_form(form);
  muon.set_coefficients(coefficients);
  muon.set_eps_mode(eps_mode);
  muon.set_scale(scale);
  muon.set_rescale(rescale);
  return absl::OkStatus();
}

absl::Status SetPolynomials(const dmuon_group& group, v1::MuonOptions& muon) {
  constexpr size_t kMost = 20;
  if (group.polynomial_count > kMost) {
    return wire::InvalidField(
        absl::StrCat("dmuon_group.polynomial_count ", group.polynomial_count, " is not in 0..", kMost));
  }
  if (group.polynomials == nullptr && group.polynomial_count > 0) {
    return wire::InvalidField(
        absl::StrCat("dmuon_group.polynomials is NULL, but polynomial_count is ", group.polynomial_count));
  }
  for (size_t i = 0; i < group.polynomial_count; ++i) {
    v1::Quintic& quintic = *muon.add_polynomials();
    quintic.set_a(group.polynomials[3 * i]);
    quintic.set_b(group.polynomials[3 * i + 1]);
    quintic.set_c(group.polynomials[3 * i + 2]);
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::MuonOptions> MuonFromC(const dmuon_group& group, v1::WeightDecay weight_decay) {
  v1::MuonOptions muon;
  DMUON_RETURN_IF_ERROR(SetWords(group, muon));
  muon.set_weight_decay(weight_decay);
  muon.set_iterations(group.iterations);
  // Below 0: the variant's own.
  if (group.nesterov >= 0) {
    DMUON_ASSIGN_OR_RETURN(const bool nesterov, Flag(group.nesterov, "dmuon_group.nesterov"));
    muon.set_nesterov(nesterov);
  }
  if (group.sign >= 0) {
    DMUON_ASSIGN_OR_RETURN(const bool sign, Flag(group.sign, "dmuon_group.sign"));
    muon.set_sign(sign);
  }
  const auto is_set = [](double value) { return !(value < 0.0); };
  if (is_set(group.newton_schulz_eps)) muon.set_eps(group.newton_schulz_eps);
  if (is_set(group.second_moment_eps)) muon.set_second_moment_eps(group.second_moment_eps);
  if (is_set(group.selected)) muon.set_selected(group.selected);
  if (is_set(group.slow_beta)) muon.set_slow_beta(group.slow_beta);
  if (is_set(group.rms)) muon.set_rms(group.rms);
  if (group.acceleration != 0.0) muon.set_acceleration(group.acceleration);
  if (is_set(group.rank_start)) muon.set_rank_start(group.rank_start);
  if (is_set(group.rank_end)) muon.set_rank_end(group.rank_end);
  muon.set_rank_steps(group.rank_steps);
  DMUON_RETURN_IF_ERROR(SetPolynomials(group, muon));
  return muon;
}

void SetBox(const dmuon_box& box, int ndim, v1::Box* out) {
  for (int d = 0; d < ndim; ++d) {
    out->add_offset(box.offset[d]);
    out->add_length(box.length[d]);
  }
}

dmuon_status_t CodeOfReason(v1::ErrorReason reason) {
  switch (reason) {
    case v1::ERROR_REASON_INVALID_FIELD:
      return DMUON_INVALID_ARGUMENT;
    case v1::ERROR_REASON_COVERAGE:
      return DMUON_COVERAGE;
    case v1::ERROR_REASON_SPEC_MISMATCH:
    case v1::ERROR_REASON_HYPER_MISMATCH:
      return DMUON_SPEC_MISMATCH;
    case v1::ERROR_REASON_STALE_GENERATION:
      return DMUON_STALE_GENERATION;
    case v1::ERROR_REASON_STEP_OUT_OF_ORDER:
      return DMUON_STEP_OUT_OF_ORDER;
    case v1::ERROR_REASON_MISSING_GRADIENT:
      return DMUON_MISSING_GRADIENT;
    case v1::ERROR_REASON_RANK_TAKEN:
      return DMUON_RANK_TAKEN;
    case v1::ERROR_REASON_WORKER_MISSING:
      return DMUON_DEADLINE_EXCEEDED;
    case v1::ERROR_REASON_DRAINING:
    case v1::ERROR_REASON_UNKNOWN_SESSION:
      return DMUON_UNAVAILABLE;
    case v1::ERROR_REASON_LIMIT:
      return DMUON_LIMIT;
    case v1::ERROR_REASON_DENIED:
      return DMUON_DENIED;
    case v1::ERROR_REASON_STATE_LOST:
      return DMUON_STATE_LOST;
    case v1::ERROR_REASON_NOT_READY:
      return DMUON_NOT_READY;
    case v1::ERROR_REASON_NUMERICAL:
      return DMUON_NUMERICAL;
    case v1::ERROR_REASON_PEER_LOST:
      return DMUON_PEER_LOST;
    case v1::ERROR_REASON_CHECKPOINT:
      return DMUON_CHECKPOINT;
    case v1::ERROR_REASON_ROLLED_BACK:
      return DMUON_ROLLED_BACK;
    default:
      return DMUON_INTERNAL;
  }
}

}  // namespace

absl::Status CheckStructSize(size_t given, size_t known, absl::string_view name) {
  if (given == known) return absl::OkStatus();
  return wire::InvalidField(absl::StrCat(name, ".struct_size is ", given, "; this library knows ",
                                         known, " bytes (use the _INIT macro of its header)"));
}

absl::StatusOr<v1::Autotune> AutotuneFromC(dmuon_autotune_t chosen) {
  DMUON_ASSIGN_OR_RETURN(const auto autotune, Enumerator(chosen, v1::AUTOTUNE_ON, "dmuon_config.autotune", 0));
  if (autotune != v1::AUTOTUNE_UNSPECIFIED) return autotune;
  const char* variable = std::getenv("DMUON_AUTOTUNE");
  const absl::string_view word = variable == nullptr ? "" : variable;
  if (word.empty() || word == "cached") return v1::AUTOTUNE_CACHED;
  if (word == "off") return v1::AUTOTUNE_OFF;
  if (word == "on") return v1::AUTOTUNE_ON;
  return wire::InvalidField(absl::StrCat("DMUON_AUTOTUNE is '", word, "'; it must be off, cached or on"));
}

absl::StatusOr<OpenArguments> FromC(const dmuon_config& config) {
  DMUON_RETURN_IF_ERROR(CheckStructSize(config.struct_size, sizeof(dmuon_config), "dmuon_config"));
  DMUON_ASSIGN_OR_RETURN(const std::string job_id, Text(config.job_id, "dmuon_config.job_id"));
  DMUON_ASSIGN_OR_RETURN(const auto missing,
                         Enumerator(config.missing_gradient, v1::MISSING_GRADIENT_ZERO,
                                    "dmuon_config.missing_gradient"));
  DMUON_ASSIGN_OR_RETURN(const v1::Autotune autotune, AutotuneFromC(config.autotune));
  DMUON_ASSIGN_OR_RETURN(const auto replication, Enumerator(config.replication, v1::REPLICATION_SYNC,
                                                            "dmuon_config.replication", 0));
  OpenArguments arguments;
  const bool given = config.address != nullptr && *config.address != '\0';
  arguments.endpoint.address = given ? config.address : wire::DefaultAddress();
  arguments.endpoint.rank = config.rank;
  arguments.endpoint.connect_timeout = std::chrono::milliseconds(config.connect_timeout_ms);
  arguments.endpoint.call_timeout = std::chrono::milliseconds(config.call_timeout_ms);
  arguments.job.set_job_id(job_id);
  arguments.job.set_world_size(config.world_size);
  arguments.job.set_max_grad_norm(config.max_grad_norm);
  arguments.job.set_missing_gradient(missing);
  arguments.job.set_autotune(autotune);
  arguments.job.set_replication(replication);
  // How many stay says nothing where none are made.
  if (config.checkpoint_every_steps != 0 || config.checkpoint_every_seconds != 0.0) {
    v1::CheckpointSchedule& schedule = *arguments.job.mutable_checkpoints();
    schedule.set_every_steps(config.checkpoint_every_steps);
    schedule.set_every_seconds(config.checkpoint_every_seconds);
    schedule.set_keep(config.checkpoint_keep);
  }
  return arguments;
}

absl::StatusOr<v1::Group> FromC(const dmuon_group& group) {
  DMUON_RETURN_IF_ERROR(CheckStructSize(group.struct_size, sizeof(dmuon_group), "dmuon_group"));
  v1::Group out;
  DMUON_ASSIGN_OR_RETURN(*out.mutable_name(), Text(group.name, "dmuon_group.name"));
  DMUON_ASSIGN_OR_RETURN(const auto weight_decay, Enumerator(group.weight_decay, v1::WEIGHT_DECAY_CAUTIOUS,
                                                             "dmuon_group.weight_decay"));
  switch (Raw(group.algorithm)) {
    case DMUON_MUON: {
      DMUON_ASSIGN_OR_RETURN(*out.mutable_muon(), MuonFromC(group, weight_decay));
      return out;
    }
    case DMUON_ADAMW:
      out.mutable_adamw()->set_eps(group.adamw_eps);
      out.mutable_adamw()->set_weight_decay(weight_decay);
      return out;
    default:
      return wire::InvalidField(
          absl::StrCat("dmuon_group.algorithm ", Raw(group.algorithm), " is not in 1..2"));
  }
}

absl::StatusOr<TensorArguments> FromC(const dmuon_tensor& tensor) {
  DMUON_RETURN_IF_ERROR(CheckStructSize(tensor.struct_size, sizeof(dmuon_tensor), "dmuon_tensor"));
  DMUON_ASSIGN_OR_RETURN(const std::string name, Text(tensor.name, "dmuon_tensor.name"));
  if (tensor.ndim < 0 || tensor.ndim > DMUON_MAX_DIMS) {
    return wire::InvalidField(
        absl::StrCat("tensor ", name, ": ndim ", tensor.ndim, " is not in 0..", DMUON_MAX_DIMS));
  }
  if (tensor.row_blocks == nullptr && tensor.row_block_count != 0) {
    return wire::InvalidField(
        absl::StrCat("tensor ", name, ": row_blocks is NULL, its count ", tensor.row_block_count));
  }
  DMUON_ASSIGN_OR_RETURN(const auto param_dtype, Enumerator(tensor.param_dtype, v1::DTYPE_BFLOAT16,
                                                            absl::StrCat(name, ".param_dtype")));
  DMUON_ASSIGN_OR_RETURN(const auto grad_dtype, Enumerator(tensor.grad_dtype, v1::DTYPE_BFLOAT16,
                                                           absl::StrCat(name, ".grad_dtype")));
  DMUON_ASSIGN_OR_RETURN(const auto view, Enumerator(tensor.view, v1::VIEW_EXPERTS, absl::StrCat(name, ".view"),
                                                     v1::VIEW_UNSPECIFIED));
  DMUON_ASSIGN_OR_RETURN(const bool reduced, Flag(tensor.reduced, absl::StrCat(name, ".reduced")));
  TensorArguments out;
  out.tensor.set_name(name);
  out.tensor.mutable_shape()->Add(tensor.shape, tensor.shape + tensor.ndim);
  out.tensor.set_param_dtype(param_dtype);
  out.tensor.set_grad_dtype(grad_dtype);
  out.tensor.set_group(tensor.group);
  for (size_t i = 0; i < tensor.row_block_count; ++i)
    out.tensor.add_row_blocks(tensor.row_blocks[i]);
  out.tensor.set_view(view);
  out.tensor.set_row_repeats(tensor.row_repeats);
  SetBox(tensor.grad_box, tensor.ndim, out.shard.mutable_grad_box());
  SetBox(tensor.param_box, tensor.ndim, out.shard.mutable_param_box());
  out.shard.set_reduced(reduced);
  return out;
}

std::vector<v1::Hyper> FromC(std::span<const dmuon_hyper> hypers) {
  std::vector<v1::Hyper> out(hypers.size());
  for (size_t i = 0; i < hypers.size(); ++i) {
    out[i].set_lr(hypers[i].lr);
    out[i].set_weight_decay(hypers[i].weight_decay);
    out[i].set_momentum(hypers[i].momentum);
    out[i].set_beta2(hypers[i].beta2);
  }
  return out;
}

dmuon_status_t CodeOf(const absl::Status& status) {
  if (status.ok()) return DMUON_OK;
  const v1::ErrorReason reason = wire::ReasonOf(status);
  if (reason != v1::ERROR_REASON_UNSPECIFIED) return CodeOfReason(reason);
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      return DMUON_INVALID_ARGUMENT;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kCancelled:
      return DMUON_UNAVAILABLE;
    case absl::StatusCode::kDeadlineExceeded:
      return DMUON_DEADLINE_EXCEEDED;
    case absl::StatusCode::kResourceExhausted:
      return DMUON_LIMIT;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return DMUON_DENIED;
    case absl::StatusCode::kDataLoss:
      return DMUON_STATE_LOST;
    default:
      return DMUON_INTERNAL;
  }
}

const char* NameOf(int32_t status) {
  static constexpr const char* kNames[] = {"DMUON_OK",
                                           "DMUON_INVALID_ARGUMENT",
                                           "DMUON_NOT_READY",
                                           "DMUON_UNAVAILABLE",
                                           "DMUON_DEADLINE_EXCEEDED",
                                           "DMUON_STALE_GENERATION",
                                           "DMUON_SPEC_MISMATCH",
                                           "DMUON_COVERAGE",
                                           "DMUON_STEP_OUT_OF_ORDER",
                                           "DMUON_MISSING_GRADIENT",
                                           "DMUON_RANK_TAKEN",
                                           "DMUON_LIMIT",
                                           "DMUON_DENIED",
                                           "DMUON_STATE_LOST",
                                           "DMUON_NUMERICAL",
                                           "DMUON_INTERNAL",
                                           "DMUON_REATTACHED",
                                           "DMUON_PEER_LOST",
                                           "DMUON_CHECKPOINT", "DMUON_ROLLED_BACK"};
  static_assert(std::size(kNames) == DMUON_ROLLED_BACK + 1);
  if (status < 0 || status > DMUON_ROLLED_BACK) return "DMUON_UNKNOWN_STATUS";
  return kNames[status];
}

}  // namespace dmuon::client
