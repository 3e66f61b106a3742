// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/owned_state.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "wire/error.h"

namespace dmuon::node {
namespace {

kernels::DType ToKernel(v1::DType dtype) {
  return dtype == v1::DTYPE_BFLOAT16 ? kernels::DType::kBFloat16 : kernels::DType::kFloat32;
}

kernels::Optimizer ToOptimizer(const v1::MuonOptions& options) {
  kernels::Optimizer muon = kernels::Muon();
  muon.momentum = options.momentum_form() == v1::MOMENTUM_FORM_ACCUMULATE
                      ? kernels::Momentum::kAccumulate
                      : kernels::Momentum::kEma;
  muon.nesterov = options.nesterov();
  switch (options.coefficients()) {
    case v1::COEFFICIENT_SET_YOU:
      muon.newton_schulz.coefficients = kernels::CoefficientSet::kYou;
      break;
    case v1::COEFFICIENT_SET_POLAR_EXPRESS:
      muon.newton_schulz.coefficients = kernels::CoefficientSet::kPolarExpress;
      break;
    default:
      muon.newton_schulz.coefficients = kernels::CoefficientSet::kJordan;
  }
  muon.newton_schulz.iterations = options.iterations();
  muon.newton_schulz.eps = options.eps();
  muon.newton_schulz.eps_mode = options.eps_mode() == v1::EPS_MODE_ADD ? kernels::EpsMode::kAdd
                                : options.eps_mode() == v1::EPS_MODE_CLAMP
                                    ? kernels::EpsMode::kClamp
                                    : kernels::EpsMode::kNone;
  switch (options.scale()) {
    case v1::SCALE_RULE_ORIGINAL:
      muon.scale = kernels::ScaleRule::kOriginal;
      break;
    case v1::SCALE_RULE_MATCH_RMS_ADAMW:
      muon.scale = kernels::ScaleRule::kMatchRmsAdamw;
      break;
    case v1::SCALE_RULE_SPECTRAL:
      muon.scale = kernels::ScaleRule::kSpectral;
      break;
    default:
      muon.scale = kernels::ScaleRule::kNone;
  }
  return muon;
}

// A box of the tensor seen as a matrix: rows of the first dimension, all else in a row.
std::pair<int64_t, int64_t> MatrixOf(const wire::Box& box) {
  const int64_t rows = box.ndim > 0 ? box.length[0] : 1;
  return {rows, rows == 0 ? 0 : box.elements() / rows};
}

uint64_t FloatsOf(const kernels::Optimizer& optimizer) {
  return 2 + static_cast<uint64_t>(optimizer.state_buffers());  // weight, staging, state
}

wire::Box UnitBox(const v1::Unit& unit) {
  wire::Box box;
  box.ndim = unit.box().offset_size();
  for (int d = 0; d < box.ndim; ++d) {
    box.offset[static_cast<size_t>(d)] = unit.box().offset(d);
    box.length[static_cast<size_t>(d)] = unit.box().length(d);
  }
  return box;
}

}  // namespace

std::vector<kernels::Optimizer> OptimizersOf(const v1::JobSpec& job) {
  std::vector<kernels::Optimizer> optimizers;
  for (const v1::Group& group : job.groups()) {
    if (group.has_muon()) {
      optimizers.push_back(ToOptimizer(group.muon()));
    } else {
      optimizers.push_back(kernels::AdamW());
      optimizers.back().second_moment_eps = group.adamw().eps();
    }
  }
  return optimizers;
}

kernels::Hyper ToHyper(const v1::Hyper& hyper) {
  return {hyper.lr(), hyper.weight_decay(), hyper.momentum(), hyper.beta2()};
}

OwnedState::OwnedState(const v1::JobSpec& job, const v1::Plan& plan, uint32_t node, uint32_t slot,
                       kernels::Backend* backend)
    : job_(&job), optimizers_(OptimizersOf(job)), backend_(backend) {
  for (const v1::Unit& planned : plan.units()) {
    const v1::Slot& owner = planned.owners(0);
    if (owner.node() != node || owner.slot() != slot) continue;
    OwnedUnit unit;
    unit.tensor = planned.tensor();
    unit.group = job.tensors(static_cast<int>(unit.tensor)).group();
    unit.box = UnitBox(planned);
    std::tie(unit.rows, unit.cols) = MatrixOf(unit.box);
    const auto elements = static_cast<size_t>(unit.box.elements());
    unit.weight.assign(elements, 0.0F);
    unit.momentum.assign(elements, 0.0F);
    unit.gradient.assign(elements, 0.0F);
    if (optimizers_[unit.group].second_moment != kernels::SecondMoment::kNone) {
      unit.second_moment.assign(elements, 0.0F);
    }
    units_.push_back(std::move(unit));
  }
}

uint64_t OwnedState::BytesFor(const v1::JobSpec& job, const v1::Plan& plan, uint32_t node) {
  const std::vector<kernels::Optimizer> optimizers = OptimizersOf(job);
  uint64_t bytes = 0;
  for (const v1::Unit& unit : plan.units()) {
    if (unit.owners(0).node() != node) continue;
    const uint32_t group = job.tensors(static_cast<int>(unit.tensor())).group();
    bytes += 4 * FloatsOf(optimizers[group]) * static_cast<uint64_t>(UnitBox(unit).elements());
  }
  return bytes;
}

absl::Status OwnedState::Load(size_t i, const WorkerBoxes& workers) {
  OwnedUnit& unit = units_[i];
  const v1::Tensor& tensor = workers.tensor(unit.tensor);
  const size_t size = wire::SizeOf(tensor.param_dtype());
  // In reverse, so that where several workers hold an element the lowest rank's value stays.
  for (uint32_t rank = workers.world_size(); rank-- > 0;) {
    const wire::Box& box = workers.shard(rank, unit.tensor).param;
    const std::byte* from = workers.arena(rank)->param(unit.tensor).data();
    wire::ForEachRun(unit.box, box, [&](const wire::Run& run) {
      backend_->CastToFloat(ToKernel(tensor.param_dtype()),
                            from + static_cast<size_t>(run.b) * size,
                            std::span(unit.weight).subspan(static_cast<size_t>(run.a),
                                                           static_cast<size_t>(run.count)));
    });
  }
  if (!backend_->Measure(unit.weight).finite) {
    return wire::InvalidField(absl::StrCat("initial parameter '", tensor.name(), "', box ",
                                           unit.box.ToString(), ": an element is not finite"));
  }
  return absl::OkStatus();
}

void OwnedState::Collect(size_t i, const WorkerBoxes& workers, const MissingRanks& missing) {
  OwnedUnit& unit = units_[i];
  const v1::Tensor& tensor = workers.tensor(unit.tensor);
  const kernels::DType dtype = ToKernel(tensor.grad_dtype());
  const size_t size = wire::SizeOf(tensor.grad_dtype());
  const bool reduced = workers.reduced(unit.tensor);
  const auto is_missing = [&](uint32_t rank) {
    return std::find(missing.begin(), missing.end(), rank) != missing.end();
  };
  if (!missing.empty()) std::fill(unit.gradient.begin(), unit.gradient.end(), 0.0F);
  for (const Holders& holders : workers.grad_holders(unit.tensor)) {
    bool first = true;
    for (const uint32_t rank : holders.ranks) {
      if (is_missing(rank)) continue;
      const std::byte* from = workers.arena(rank)->grad(unit.tensor).data();
      wire::ForEachRun(unit.box, holders.box, [&](const wire::Run& run) {
        const std::span<float> to = std::span(unit.gradient)
                                        .subspan(static_cast<size_t>(run.a),
                                                 static_cast<size_t>(run.count));
        const std::byte* piece = from + static_cast<size_t>(run.b) * size;
        if (first) {
          backend_->CastToFloat(dtype, piece, to);
        } else {
          backend_->AddToFloat(dtype, piece, to);
        }
      });
      first = false;
      if (reduced) break;  // every holder has the same values
    }
    if (reduced || holders.ranks.size() == 1) continue;
    wire::ForEachRun(unit.box, holders.box, [&](const wire::Run& run) {
      backend_->Multiply(1.0 / static_cast<double>(holders.ranks.size()),
                         std::span(unit.gradient).subspan(static_cast<size_t>(run.a),
                                                          static_cast<size_t>(run.count)));
    });
  }
  unit.stats = backend_->Measure(unit.gradient);
}

absl::Status OwnedState::Orthogonalize(size_t i, const kernels::Hyper& hyper, double clip) {
  OwnedUnit& unit = units_[i];
  update_.resize(unit.weight.size());
  const kernels::UnitState state{unit.weight, unit.momentum, unit.second_moment, unit.updates};
  backend_->Direction(optimizer(i), hyper, clip, unit.gradient, state, update_);
  const absl::Status status = backend_->Orthogonalize(
      optimizer(i).newton_schulz, {update_.data(), unit.rows, unit.cols}, scratch_);
  if (status.ok()) return status;
  return wire::Error(absl::StatusCode::kInternal, v1::ERROR_REASON_NUMERICAL,
                     absl::StrCat("tensor '", job_->tensors(static_cast<int>(unit.tensor)).name(),
                                  "': ", status.message()));
}

void OwnedState::Apply(size_t i, const kernels::Hyper& hyper, double clip) {
  OwnedUnit& unit = units_[i];
  kernels::UnitState state{unit.weight, unit.momentum, unit.second_moment, unit.updates};
  const bool matrix = is_matrix(i);
  const double scale =
      matrix ? kernels::Scale(optimizer(i).scale, unit.rows, unit.cols) : 1.0;
  backend_->Apply(optimizer(i), hyper, clip, scale, unit.gradient,
                  matrix ? std::span<const float>(update_) : std::span<const float>(), state);
  unit.updates = state.step;
}

void OwnedState::Deliver(size_t i, const WorkerBoxes& workers, int64_t only_rank) const {
  const OwnedUnit& unit = units_[i];
  const v1::Tensor& tensor = workers.tensor(unit.tensor);
  const size_t size = wire::SizeOf(tensor.param_dtype());
  for (uint32_t rank = 0; rank < workers.world_size(); ++rank) {
    if ((only_rank >= 0 && rank != only_rank) || workers.arena(rank) == nullptr) continue;
    const wire::Box& box = workers.shard(rank, unit.tensor).param;
    std::byte* to = workers.arena(rank)->param(unit.tensor).data();
    wire::ForEachRun(unit.box, box, [&](const wire::Run& run) {
      backend_->CastFromFloat(std::span(unit.weight).subspan(static_cast<size_t>(run.a),
                                                             static_cast<size_t>(run.count)),
                              ToKernel(tensor.param_dtype()),
                              to + static_cast<size_t>(run.b) * size);
    });
  }
}

}  // namespace dmuon::node
