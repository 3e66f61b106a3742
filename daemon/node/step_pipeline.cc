// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/step_pipeline.h"

#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "wire/error.h"

namespace dmuon::node {
namespace {

using SteadyClock = std::chrono::steady_clock;

// As torch.nn.utils.clip_grad_norm_: keeps the factor finite for a norm of zero.
constexpr double kClipEps = 1e-6;

// Adds the time since the last reading to a stage.
class StageTimer {
 public:
  explicit StageTimer(std::array<double, kStageNames.size()>& seconds) : seconds_(seconds) {}
  void Charge(Stage stage) {
    const SteadyClock::time_point now = SteadyClock::now();
    seconds_[static_cast<size_t>(stage)] += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }

 private:
  std::array<double, kStageNames.size()>& seconds_;
  SteadyClock::time_point last_ = SteadyClock::now();
};

}  // namespace

// What one slot reports of its part of a step.
struct StepPipeline::SlotWork {
  std::array<double, kStageNames.size()> seconds{};
  uint64_t calls = 0;
  uint64_t iterations = 0;
  double flops = 0.0;
  absl::Status status;
};

StepPipeline::StepPipeline(const v1::JobSpec& job, const v1::Plan& plan, uint32_t node,
                           const WorkerBoxes* workers, kernels::Backend* backend,
                           SlotThreads* slots)
    : job_(&job), workers_(workers), slots_(slots) {
  for (size_t slot = 0; slot < slots->size(); ++slot) {
    states_.push_back(std::make_unique<OwnedState>(job, plan, node, static_cast<uint32_t>(slot),
                                                   backend));
    for (size_t i = 0; i < states_[slot]->size(); ++i) {
      ++(states_[slot]->is_matrix(i) ? matrix_units_ : elementwise_units_);
      state_bytes_ += states_[slot]->unit(i).state_bytes();
    }
  }
  missing_.resize(workers->tensors());
}

absl::Status StepPipeline::Initialize() {
  std::vector<absl::Status> statuses(states_.size());
  slots_->Run([&](size_t slot) {
    for (size_t i = 0; i < states_[slot]->size() && statuses[slot].ok(); ++i) {
      statuses[slot] = states_[slot]->Load(i, *workers_);
    }
  });
  for (absl::Status& status : statuses) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status StepPipeline::Run(uint64_t step, const std::vector<kernels::Hyper>& hypers,
                               StepReport& report) {
  report.step = step;
  StageTimer timer(report.stage_seconds);
  DMUON_RETURN_IF_ERROR(CheckSubmitted(step));
  timer.Charge(Stage::kSubmit);
  Collect(report);
  StageTimer agree_timer(report.stage_seconds);
  report.verdict = Agree(hypers);
  agree_timer.Charge(Stage::kReduce);
  if (!report.verdict.skip) DMUON_RETURN_IF_ERROR(Update(hypers, report));
  StageTimer deliver_timer(report.stage_seconds);
  workers_->MarkDelivered(step);
  deliver_timer.Charge(Stage::kDeliver);
  return absl::OkStatus();
}

absl::Status StepPipeline::CheckSubmitted(uint64_t step) {
  for (size_t tensor = 0; tensor < missing_.size(); ++tensor) {
    missing_[tensor] = workers_->MissingIn(tensor, step);
    if (missing_[tensor].empty() || job_->missing_gradient() != v1::MISSING_GRADIENT_ERROR) {
      continue;
    }
    return wire::Error(
        absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_MISSING_GRADIENT,
        absl::StrCat("step ", step, ": no gradient for tensor '", workers_->tensor(tensor).name(),
                     "' from rank ", absl::StrJoin(missing_[tensor], ", "),
                     "; nothing changed (policies: missing_gradient = error, skip, zero)"));
  }
  return absl::OkStatus();
}

bool StepPipeline::skipped(uint32_t tensor) const {
  return !missing_[tensor].empty() && job_->missing_gradient() == v1::MISSING_GRADIENT_SKIP;
}

void StepPipeline::Collect(StepReport& report) {
  std::vector<SlotWork> work(states_.size());
  slots_->Run([&](size_t slot) {
    StageTimer timer(work[slot].seconds);
    OwnedState& state = *states_[slot];
    for (size_t i = 0; i < state.size(); ++i) {
      const uint32_t tensor = state.unit(i).tensor;
      if (!skipped(tensor)) state.Collect(i, *workers_, missing_[tensor]);
    }
    timer.Charge(Stage::kCollect);
  });
  for (const SlotWork& slot : work) {
    report.stage_seconds[static_cast<size_t>(Stage::kCollect)] +=
        slot.seconds[static_cast<size_t>(Stage::kCollect)] / static_cast<double>(work.size());
  }
}

// All gradients are in. Decides for the whole job, before any state changes.
Verdict StepPipeline::Agree(const std::vector<kernels::Hyper>& hypers) const {
  Verdict verdict;
  double sum_squares = 0.0;
  for (const auto& state : states_) {
    for (size_t i = 0; i < state->size(); ++i) {
      const OwnedUnit& unit = state->unit(i);
      if (skipped(unit.tensor)) continue;
      const double bound = kernels::LargestSafeGradient(state->optimizer(i), hypers[unit.group]);
      if (unit.stats.finite && unit.stats.max_abs <= bound) {
        sum_squares += unit.stats.sum_squares;
        continue;
      }
      verdict.skip = true;
      verdict.grad_norm = std::numeric_limits<double>::quiet_NaN();
      verdict.skip_reason = absl::StrCat(
          "gradient of tensor '", workers_->tensor(unit.tensor).name(), "', box ",
          unit.box.ToString(),
          unit.stats.finite ? absl::StrCat(": element of ", unit.stats.max_abs,
                                           " would overflow the state (bound ", bound, ")")
                            : ": an element is not finite");
      return verdict;
    }
  }
  verdict.grad_norm = std::sqrt(sum_squares);
  if (job_->max_grad_norm() > 0.0) {
    verdict.clip = std::min(1.0, job_->max_grad_norm() / (verdict.grad_norm + kClipEps));
  }
  return verdict;
}

absl::Status StepPipeline::Update(const std::vector<kernels::Hyper>& hypers, StepReport& report) {
  const double clip = report.verdict.clip;
  std::vector<SlotWork> work(states_.size());
  slots_->Run([&](size_t slot) {
    SlotWork& mine = work[slot];
    OwnedState& state = *states_[slot];
    StageTimer timer(mine.seconds);
    for (size_t i = 0; i < state.size() && mine.status.ok(); ++i) {
      const OwnedUnit& unit = state.unit(i);
      if (skipped(unit.tensor)) continue;
      if (state.is_matrix(i)) {
        mine.status = state.Orthogonalize(i, hypers[unit.group], clip);
        if (!mine.status.ok()) return;
        const int iterations = state.optimizer(i).newton_schulz.iterations;
        ++mine.calls;
        mine.iterations += static_cast<uint64_t>(iterations);
        mine.flops += kernels::NewtonSchulzFlops(unit.rows, unit.cols, iterations);
        timer.Charge(Stage::kOrthogonalize);
      }
      state.Apply(i, hypers[unit.group], clip);
      timer.Charge(Stage::kApply);
      state.Deliver(i, *workers_);
      timer.Charge(Stage::kDeliver);
    }
  });
  for (const SlotWork& slot : work) {
    DMUON_RETURN_IF_ERROR(slot.status);
    report.newton_schulz_calls += slot.calls;
    report.newton_schulz_iterations += slot.iterations;
    report.newton_schulz_flops += slot.flops;
    for (size_t stage = 0; stage < slot.seconds.size(); ++stage) {
      report.stage_seconds[stage] += slot.seconds[stage] / static_cast<double>(work.size());
    }
  }
  return absl::OkStatus();
}

void StepPipeline::Deliver(uint64_t step, uint32_t rank) {
  slots_->Run([&](size_t slot) {
    for (size_t i = 0; i < states_[slot]->size(); ++i) {
      states_[slot]->Deliver(i, *workers_, rank);
    }
  });
  workers_->MarkDelivered(step, rank);
}

}  // namespace dmuon::node
