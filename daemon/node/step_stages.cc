// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What a step does to the data of this node.

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/node/stage_timer.h"
#include "daemon/node/step_pipeline.h"
#include "wire/error.h"

namespace dmuon::node {

// What one slot reports of its part of a step.
struct StepPipeline::SlotWork {
  std::array<double, kStageNames.size()> seconds{};
  uint64_t calls = 0;
  uint64_t iterations = 0;
  double flops = 0.0;
  absl::Status status;
};

void StepPipeline::Connect() {
  std::vector<OwnedUnit*> owned(static_cast<size_t>(plan_->units_size()), nullptr);
  for (const auto& state : states_) {
    for (size_t i = 0; i < state->size(); ++i) {
      owned[state->unit(i).index] = &state->mutable_unit(i);
    }
  }
  std::vector<std::vector<Arrival>> arrivals(owned.size());
  for (const Message& message : gradients_.in) {
    for (const Piece& piece : message.pieces) arrivals[piece.unit].push_back({&message, &piece});
  }
  for (const Message& message : loads_.in) {
    for (const Piece& piece : message.pieces) {
      owned[piece.unit]->loads.push_back({&message, &piece});
    }
  }
  for (Message& message : publications_.out) {
    for (const Piece& piece : message.pieces) {
      owned[piece.unit]->publications.push_back({&message, &piece});
    }
  }
  for (OwnedUnit* unit : owned) {
    if (unit == nullptr) continue;
    unit->sources = SourcesOf(unit->tensor, unit->box, self_, *workers_, arrivals[unit->index]);
  }
  for (const Message& message : gradients_.out) {
    std::vector<std::vector<uint32_t>>& senders = senders_.emplace_back();
    for (const Piece& piece : message.pieces) {
      const v1::Unit& unit = plan_->units(static_cast<int>(piece.unit));
      senders.push_back(
          RanksOf(piece.tensor, wire::FromProto(unit.box()), piece.box, *workers_));
    }
  }
}

void StepPipeline::CopyParameters(const Piece& piece, Message& message) const {
  for (const uint32_t rank : workers_->ranks()) {
    const wire::Box& box = workers_->shard(rank, piece.tensor).param;
    if (wire::Intersect(box, piece.box) != piece.box) continue;
    const std::byte* from = workers_->arena(rank)->param(piece.tensor).data();
    const size_t size = wire::SizeOf(piece.dtype);
    wire::ForEachRun(piece.box, box, [&](const wire::Run& run) {
      std::memcpy(message.at(piece) + static_cast<size_t>(run.a) * size,
                  from + static_cast<size_t>(run.b) * size,
                  static_cast<size_t>(run.count) * size);
    });
    return;
  }
}

absl::Status StepPipeline::LoadUnits() {
  std::vector<absl::Status> statuses(states_.size());
  slots_->Run([&](size_t slot) {
    for (size_t i = 0; i < states_[slot]->size() && statuses[slot].ok(); ++i) {
      statuses[slot] = states_[slot]->Load(i, *workers_);
      states_[slot]->Pack(i);
    }
  });
  for (absl::Status& status : statuses) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

void StepPipeline::FindMissing(uint64_t step) {
  for (size_t tensor = 0; tensor < missing_.size(); ++tensor) {
    missing_[tensor] = workers_->MissingIn(tensor, step);
  }
}

void StepPipeline::MergeMissing(const Reports& reports) {
  for (uint32_t node = 0; node < reports.size(); ++node) {
    if (node == self_) continue;
    for (const v1::MissingGradients& missing : reports[node].missing()) {
      if (missing.tensor() >= missing_.size()) continue;
      MissingRanks& ranks = missing_[missing.tensor()];
      ranks.insert(ranks.end(), missing.ranks().begin(), missing.ranks().end());
    }
  }
}

bool StepPipeline::skipped(uint32_t tensor) const {
  return !missing_[tensor].empty() && job_->missing_gradient() == v1::MISSING_GRADIENT_SKIP;
}

void StepPipeline::PackGradients(StepReport& report) {
  if (gradients_.out.empty()) return;
  StageTimer timer(report.stage_seconds);
  slots_->Run([&](size_t slot) {
    size_t turn = 0;
    for (size_t m = 0; m < gradients_.out.size(); ++m) {
      Message& message = gradients_.out[m];
      for (size_t p = 0; p < message.pieces.size(); ++p) {
        if (turn++ % slots_->size() == slot) PackGradient(message.pieces[p], senders_[m][p], message);
      }
    }
  });
  timer.Charge(Stage::kCollect);
}

void StepPipeline::PackGradient(const Piece& piece, const std::vector<uint32_t>& ranks,
                                Message& message) const {
  if (skipped(piece.tensor)) return;
  const auto elements = static_cast<size_t>(piece.box.elements());
  if (piece.dtype == v1::DTYPE_FLOAT32) {
    const std::span<float> sum(reinterpret_cast<float*>(message.at(piece)), elements);
    SumRanks(piece.tensor, piece.box, ranks, missing_[piece.tensor], *workers_, *backend_,
             piece.box, sum);
    return;
  }
  // One copy: it travels as it is.
  std::vector<float> sum(elements);
  SumRanks(piece.tensor, piece.box, ranks, missing_[piece.tensor], *workers_, *backend_, piece.box,
           sum);
  backend_->CastFromFloat(sum, ToKernel(piece.dtype), message.at(piece));
}

void StepPipeline::SumGradients(StepReport& report) {
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

// All gradients of this node's units are in.
v1::StepVerdict StepPipeline::Judge(const Hypers& hypers) const {
  v1::StepVerdict verdict;
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
      verdict.set_skip(true);
      verdict.set_skip_reason(absl::StrCat(
          "gradient of tensor '", workers_->tensor(unit.tensor).name(), "', box ",
          unit.box.ToString(),
          unit.stats.finite ? absl::StrCat(": element of ", unit.stats.max_abs,
                                           " would overflow the state (bound ", bound, ")")
                            : ": an element is not finite"));
      return verdict;
    }
  }
  verdict.set_sum_squares(sum_squares);
  return verdict;
}

absl::Status StepPipeline::Update(const Hypers& hypers, const Verdict& verdict,
                                  StepReport& report) {
  const double clip = verdict.clip;
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
      state.Pack(i);
      timer.Charge(Stage::kPublish);
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

void StepPipeline::DeliverArrivals(int64_t only_rank) {
  if (publications_.in.empty()) return;
  slots_->Run([&](size_t slot) {
    for (size_t m = slot; m < publications_.in.size(); m += slots_->size()) {
      const Message& message = publications_.in[m];
      for (const Piece& piece : message.pieces) DeliverArrival(piece, message, only_rank);
    }
  });
}

void StepPipeline::DeliverArrival(const Piece& piece, const Message& message,
                                  int64_t only_rank) const {
  const size_t size = wire::SizeOf(piece.dtype);
  for (const uint32_t rank : workers_->ranks()) {
    if ((only_rank >= 0 && rank != only_rank) || workers_->arena(rank) == nullptr) continue;
    std::byte* to = workers_->arena(rank)->param(piece.tensor).data();
    wire::ForEachRun(workers_->shard(rank, piece.tensor).param, piece.box,
                     [&](const wire::Run& run) {
                       std::memcpy(to + static_cast<size_t>(run.a) * size,
                                   message.at(piece) + static_cast<size_t>(run.b) * size,
                                   static_cast<size_t>(run.count) * size);
                     });
  }
}

void StepPipeline::Deliver(uint64_t step, uint32_t rank) {
  slots_->Run([&](size_t slot) {
    for (size_t i = 0; i < states_[slot]->size(); ++i) {
      states_[slot]->Deliver(i, *workers_, rank);
    }
  });
  DeliverArrivals(rank);
  workers_->MarkDelivered(step, rank);
}

}  // namespace dmuon::node
