// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/owned_state.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/plan/cost.h"
#include "daemon/plan/methods.h"
#include "daemon/plan/optimizers.h"
#include "daemon/plan/units.h"
#include "wire/error.h"

namespace dmuon::node {
namespace {

void Count(int iterations, const kernels::Method& method, const kernels::MatrixView& x, NewtonSchulzWork& work) {
  ++work.by_method[static_cast<size_t>(kernels::IndexOf(method))];
  work.iterations += static_cast<uint64_t>(iterations);
  work.flops += kernels::NewtonSchulzFlops(method, x.rows, x.cols, iterations);
}

}  // namespace

v1::StepSettings ToProto(const StepSettings& settings, uint64_t target) {
  v1::StepSettings message;
  for (const kernels::Hyper& hyper : settings.hypers) {
    v1::Hyper& values = *message.add_hypers();
    values.set_lr(hyper.lr);
    values.set_weight_decay(hyper.weight_decay);
    values.set_momentum(hyper.momentum);
    values.set_beta2(hyper.beta2);
  }
  *message.mutable_row_factors() = {settings.row_factors.begin(), settings.row_factors.end()};
  message.set_target(target);
  return message;
}

StepSettings FromProto(const v1::StepSettings& settings) {
  StepSettings values;
  for (const v1::Hyper& hyper : settings.hypers()) values.hypers.push_back(ToHyper(hyper));
  values.row_factors.assign(settings.row_factors().begin(), settings.row_factors().end());
  return values;
}

kernels::Hyper ToHyper(const v1::Hyper& hyper) {
  return {hyper.lr(), hyper.weight_decay(), hyper.momentum(), hyper.beta2()};
}

OwnedState::OwnedState(const v1::JobSpec& job, const v1::Plan& plan, uint32_t node, uint32_t slot,
                       kernels::Backend* backend)
    : job_(&job), optimizers_(plan::OptimizersOf(job)), backend_(backend) {
  for (int index = 0; index < plan.units_size(); ++index) {
    const v1::Unit& planned = plan.units(index);
    const v1::Slot& owner = planned.owners(0);
    if (owner.node() != node || owner.slot() != slot) continue;
    units_.push_back(MakeUnit(planned, static_cast<uint32_t>(index)));
  }
}

OwnedUnit OwnedState::MakeUnit(const v1::Unit& planned, uint32_t index) const {
  const v1::Tensor& tensor = job_->tensors(static_cast<int>(planned.tensor()));
  OwnedUnit unit;
  unit.index = index;
  unit.tensor = planned.tensor();
  unit.bucket = planned.bucket();
  unit.group = tensor.group();
  unit.layout = Layout(tensor, wire::FromProto(planned.box()));
  size_t elements = 0;
  size_t updates = 0;
  for (const kernels::MatrixShape& shape : plan::MatricesOf(tensor, unit.box())) {
    OwnedMatrix& matrix = unit.matrices.emplace_back();
    matrix.shape = shape;
    matrix.first = elements;
    elements += static_cast<size_t>(shape.rows * shape.cols);
    matrix.first_update = updates;
    matrix.update_size = kernels::UpdateSize(optimizers_[unit.group], shape.rows, shape.cols);
    updates += matrix.update_size;
    if (const auto m = static_cast<int>(unit.matrices.size()) - 1; m < planned.methods_size()) {
      matrix.method = plan::FromProto(planned.methods(m));
    }
    for (const kernels::StateTensor& state : kernels::StateTensors(optimizers_[unit.group], shape.rows, shape.cols)) {
      matrix.state.emplace_back(static_cast<size_t>(state.rows * state.cols), 0.0F);
    }
  }
  unit.weight.assign(elements, 0.0F);
  unit.gradient.assign(elements, 0.0F);
  return unit;
}

uint64_t OwnedState::BytesFor(const v1::JobSpec& job, const v1::Plan& plan, uint32_t node) {
  int64_t bytes = 0;
  std::map<uint32_t, int64_t> working;  // by slot: of its largest unit
  for (const v1::Unit& unit : plan.units()) {
    if (unit.owners(0).node() != node) continue;
    const v1::Tensor& tensor = job.tensors(static_cast<int>(unit.tensor()));
    const v1::Group& group = job.groups(static_cast<int>(tensor.group()));
    const std::vector<kernels::MatrixShape> matrices = plan::MatricesOf(tensor, wire::FromProto(unit.box()));
    bytes += plan::UnitBytes(group, matrices);
    int64_t floats = 0;
    for (const auto& [rows, cols] : matrices) floats += kernels::WorkingFloats(plan::ToOptimizer(group), rows, cols);
    int64_t& most = working[unit.owners(0).slot()];
    most = std::max(most, floats);
  }
  for (const auto& [slot, floats] : working) bytes += static_cast<int64_t>(sizeof(float)) * floats;
  return static_cast<uint64_t>(bytes);
}

absl::Status OwnedState::Load(size_t i, const WorkerBoxes& workers) {
  OwnedUnit& unit = units_[i];
  const v1::Tensor& tensor = workers.tensor(unit.tensor);
  for (const Arrival& load : unit.loads) {
    Store(unit, load.piece->box, load.piece->dtype, load.message->at(*load.piece));
  }
  // In reverse, so that where several workers hold an element the lowest rank's value stays.
  for (auto rank = workers.ranks().rbegin(); rank != workers.ranks().rend(); ++rank) {
    Store(unit, workers.shard(*rank, unit.tensor).param, tensor.param_dtype(),
          workers.arena(*rank)->param(unit.tensor).data());
  }
  if (!backend_->Measure(unit.weight).finite) {
    return wire::InvalidField(absl::StrCat("initial parameter '", tensor.name(), "', box ",
                                           unit.box().ToString(), ": an element is not finite"));
  }
  return absl::OkStatus();
}

// What `box` and the unit share, into the weight.
void OwnedState::Store(OwnedUnit& unit, const wire::Box& box, v1::DType dtype,
                       const std::byte* from) const {
  unit.layout.ForEachRun(box, [&](const wire::Run& run) {
    backend_->CastToFloat(ToKernel(dtype), from + static_cast<size_t>(run.b) * wire::SizeOf(dtype),
                          std::span(unit.weight).subspan(static_cast<size_t>(run.a),
                                                         static_cast<size_t>(run.count)));
  });
}

void OwnedState::Collect(size_t i, const WorkerBoxes& workers, const MissingRanks& missing) {
  OwnedUnit& unit = units_[i];
  const auto stretch = [&](const wire::Run& run) {
    return std::span(unit.gradient).subspan(static_cast<size_t>(run.a),
                                            static_cast<size_t>(run.count));
  };
  for (const GradientSource& source : unit.sources) {
    bool first = true;
    for (const GradientTerm& term : source.terms) {
      if (term.piece == nullptr && first) {
        SumRanks(unit.tensor, source.box, term.ranks, missing, workers, *backend_, unit.layout,
                 unit.gradient);
      } else {
        const Elements part = PartOf(unit, source, term, workers, missing);
        unit.layout.ForEachRun(source.box, [&](const wire::Run& run) {
          const std::byte* at = part.data + static_cast<size_t>(run.b) * wire::SizeOf(part.dtype);
          if (first) {
            backend_->CastToFloat(ToKernel(part.dtype), at, stretch(run));
          } else {
            backend_->AddToFloat(ToKernel(part.dtype), at, stretch(run));
          }
        });
      }
      first = false;
    }
    if (source.copies < 2) continue;
    unit.layout.ForEachRun(source.box, [&](const wire::Run& run) {
      backend_->Multiply(1.0 / static_cast<double>(source.copies), stretch(run));
    });
  }
  unit.stats = {};
  for (const OwnedMatrix& matrix : unit.matrices) {
    const kernels::GradientStats stats = backend_->Measure(matrix.of(unit.gradient));
    unit.stats.sum_squares += stats.sum_squares;
    unit.stats.max_abs = std::max(unit.stats.max_abs, stats.max_abs);
    unit.stats.finite = unit.stats.finite && stats.finite;
  }
}

// A node's part of a piece, laid out as the piece: another node's lies in its message, this node's is
// summed first.
OwnedState::Elements OwnedState::PartOf(const OwnedUnit& unit, const GradientSource& source,
                                        const GradientTerm& term, const WorkerBoxes& workers,
                                        const MissingRanks& missing) {
  if (term.piece != nullptr) return {term.piece->dtype, term.message->at(*term.piece)};
  partial_.resize(static_cast<size_t>(source.box.elements()));
  SumRanks(unit.tensor, source.box, term.ranks, missing, workers, *backend_, Layout(source.box), partial_);
  return {v1::DTYPE_FLOAT32, std::as_bytes(std::span(partial_)).data()};
}

size_t OwnedState::BatchEnd(size_t i, const std::function<bool(const OwnedUnit&)>& skipped) const {
  const OwnedUnit& first = units_[i];
  const bool newton_schulz = optimizer(i).orthogonalizer == kernels::Orthogonalizer::kNewtonSchulz;
  if (!newton_schulz || first.matrices.size() != 1 || skipped(first)) return i + 1;
  const OwnedMatrix& matrix = first.matrices.front();
  const size_t most = std::min(units_.size(), i + backend_->BatchSize(matrix.shape));
  size_t end = i + 1;
  for (; end < most; ++end) {
    const OwnedUnit& next = units_[end];
    if (next.group != first.group || next.matrices.size() != 1 || skipped(next)) break;
    const OwnedMatrix& other = next.matrices.front();
    if (other.shape.rows != matrix.shape.rows || other.shape.cols != matrix.shape.cols || other.method != matrix.method) {
      break;
    }
  }
  return end;
}

absl::Status OwnedState::Orthogonalize(size_t i, size_t end, const kernels::Hyper& hyper, double clip,
                                       NewtonSchulzWork& work) {
  const std::span<OwnedUnit> units = std::span(units_).subspan(i, end - i);
  size_t updates = 0;
  for (OwnedUnit& unit : units) {
    unit.first_update = updates;
    updates += unit.matrices.back().first_update + unit.matrices.back().update_size;
  }
  update_.resize(updates);
  if (units.size() > 1) return OrthogonalizeBatch(units, hyper, clip, work);
  OwnedUnit& unit = units.front();
  for (OwnedMatrix& matrix : unit.matrices) {
    absl::Status status = Orthogonalize(unit, matrix, matrix.method, hyper, clip, work);
    DMUON_RETURN_IF_ERROR(Conclude(std::move(status), unit, matrix, hyper, clip, work));
  }
  return absl::OkStatus();
}

absl::Status OwnedState::OrthogonalizeBatch(std::span<OwnedUnit> units, const kernels::Hyper& hyper, double clip,
                                            NewtonSchulzWork& work) {
  const kernels::Optimizer& row = optimizers_[units.front().group];
  const kernels::Method method = units.front().matrices.front().method;
  std::vector<kernels::MatrixView> directions;
  for (OwnedUnit& unit : units) {
    OwnedMatrix& matrix = unit.matrices.front();
    directions.push_back(backend_->Direction(row, hyper, clip, matrix.of(unit.gradient), StateOf(unit, matrix),
                                             UpdateOf(unit, matrix)));
    Count(row.newton_schulz.iterations, method, directions.back(), work);
  }
  std::vector<absl::Status> statuses(units.size());
  backend_->OrthogonalizeBatch(row.newton_schulz, method, directions, statuses, scratch_);
  for (size_t k = 0; k < units.size(); ++k) {
    DMUON_RETURN_IF_ERROR(
        Conclude(std::move(statuses[k]), units[k], units[k].matrices.front(), hyper, clip, work));
  }
  return absl::OkStatus();
}

absl::Status OwnedState::Conclude(absl::Status status, OwnedUnit& unit, OwnedMatrix& matrix, const kernels::Hyper& hyper,
                                  double clip, NewtonSchulzWork& work) {
  if (status.code() == absl::StatusCode::kAborted) {
    ++work.recomputed;
    kernels::Method method = matrix.method;
    method.form = kernels::Form::kStandard;
    status = Orthogonalize(unit, matrix, method, hyper, clip, work);
  }
  if (!status.ok()) {
    return wire::Error(absl::StatusCode::kInternal, v1::ERROR_REASON_NUMERICAL,
                       absl::StrCat("tensor '", job_->tensors(static_cast<int>(unit.tensor)).name(),
                                    "': ", status.message()));
  }
  ++work.calls;
  return absl::OkStatus();
}

absl::Status OwnedState::Orthogonalize(OwnedUnit& unit, OwnedMatrix& matrix, const kernels::Method& method,
                                       const kernels::Hyper& hyper, double clip, NewtonSchulzWork& work) {
  const kernels::Optimizer& row = optimizers_[unit.group];
  const kernels::UnitState state = StateOf(unit, matrix);
  const std::span<float> update = UpdateOf(unit, matrix);
  const kernels::MatrixView direction =
      backend_->Direction(row, hyper, clip, matrix.of(unit.gradient), state, update);
  if (row.orthogonalizer == kernels::Orthogonalizer::kTopK) {
    const auto [rows, cols] = matrix.shape;
    const auto [products, small] =
        kernels::TopKFlops(rows, cols, kernels::RankAt(row.top_k, state.step, std::min(rows, cols)));
    work.flops += products + small;
  } else {
    Count(row.newton_schulz.iterations, method, direction, work);
  }
  return backend_->OrthogonalizeDirection(row, method, direction, state, update, scratch_);
}

void OwnedState::Apply(size_t i, const kernels::Hyper& hyper, double clip) {
  OwnedUnit& unit = units_[i];
  for (OwnedMatrix& matrix : unit.matrices) {
    kernels::UnitState state = StateOf(unit, matrix);
    const std::span<float> update = is_matrix(i) ? UpdateOf(unit, matrix) : std::span<float>();
    backend_->Apply(optimizer(i), hyper, clip, matrix.of(unit.gradient), update, state);
  }
  ++unit.updates;
}

void OwnedState::MultiplyRows(size_t i, std::span<const v1::RowFactors> rows) {
  OwnedUnit& unit = units_[i];
  const int64_t begin = unit.box().offset[0];
  const int64_t end = begin + unit.box().length[0];
  for (const v1::RowFactors& of : rows) {
    if (of.tensor() != unit.tensor) continue;
    for (int k = 0; k < of.factors_size(); ++k) {
      const int64_t first = of.first_row() + k * of.rows_each();
      wire::Box head = unit.box();
      head.offset[0] = std::max(first, begin);
      head.length[0] = std::min(first + of.rows_each(), end) - head.offset[0];
      if (head.length[0] <= 0) continue;
      unit.layout.ForEachRun(head, [&](const wire::Run& run) {
        backend_->Multiply(of.factors(k), std::span(unit.weight).subspan(static_cast<size_t>(run.a),
                                                                         static_cast<size_t>(run.count)));
      });
    }
  }
}

kernels::UnitState OwnedState::StateOf(OwnedUnit& unit, OwnedMatrix& matrix) const {
  return kernels::BindState(optimizers_[unit.group], matrix.shape.rows, matrix.shape.cols, matrix.of(unit.weight),
                            matrix.state, unit.updates);
}

void OwnedState::Deliver(size_t i, const WorkerBoxes& workers, int64_t only_rank) const {
  const OwnedUnit& unit = units_[i];
  const v1::DType dtype = workers.tensor(unit.tensor).param_dtype();
  for (const uint32_t rank : workers.ranks()) {
    if ((only_rank >= 0 && rank != only_rank) || workers.arena(rank) == nullptr) continue;
    Write(unit, workers.shard(rank, unit.tensor).param, dtype,
          workers.arena(rank)->param(unit.tensor).data());
  }
}

void OwnedState::Pack(size_t i) const {
  for (const Departure& departure : units_[i].publications) {
    const Piece& piece = *departure.piece;
    Write(units_[i], piece.box, piece.dtype, departure.message->at(piece));
  }
}

// What `box` and the unit share, out of the weight.
void OwnedState::Write(const OwnedUnit& unit, const wire::Box& box, v1::DType dtype,
                       std::byte* to) const {
  unit.layout.ForEachRun(box, [&](const wire::Run& run) {
    backend_->CastFromFloat(std::span(unit.weight).subspan(static_cast<size_t>(run.a),
                                                           static_cast<size_t>(run.count)),
                            ToKernel(dtype),
                            to + static_cast<size_t>(run.b) * wire::SizeOf(dtype));
  });
}

}  // namespace dmuon::node
