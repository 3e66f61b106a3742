// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What a step does to the data of this node.

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/failpoint.h"
#include "daemon/node/stage_timer.h"
#include "daemon/node/step_pipeline.h"
#include "wire/error.h"

namespace dmuon::node {

void StepPipeline::Connect() {
  std::vector<OwnedUnit*> owned(static_cast<size_t>(plan_->units_size()), nullptr);
  for (const auto& state : states_) {
    for (size_t i = 0; i < state->size(); ++i) {
      owned[state->unit(i).index] = &state->mutable_unit(i);
    }
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
  for (const Message& message : publications_.in) {
    for (const Piece& piece : message.pieces) undelivered_.Add(piece.tensor);
  }
  for (OwnedUnit* unit : owned) {
    if (unit == nullptr) continue;
    undelivered_.Add(unit->tensor);
    if (!unit->publications.empty()) unpublished_.Add(unit->bucket);
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

// All gradients of this node's units are in.
v1::StepVerdict StepPipeline::Judge(const StepSettings& settings) const {
  v1::StepVerdict verdict;
  double sum_squares = 0.0;
  for (const auto& state : states_) {
    for (size_t i = 0; i < state->size(); ++i) {
      const OwnedUnit& unit = state->unit(i);
      if (reduction_.skipped(unit.tensor)) continue;
      const double bound = kernels::LargestSafeGradient(state->optimizer(i), settings.hypers[unit.group]);
      if (unit.stats.finite && unit.stats.max_abs <= bound) {
        sum_squares += unit.stats.sum_squares;
        continue;
      }
      verdict.set_skip(true);
      verdict.set_skip_reason(absl::StrCat(
          "gradient of tensor '", workers_->tensor(unit.tensor).name(), "', box ",
          unit.box().ToString(),
          unit.stats.finite ? absl::StrCat(": element of ", unit.stats.max_abs,
                                           " would overflow the state (bound ", bound, ")")
                            : ": an element is not finite"));
      return verdict;
    }
  }
  verdict.set_sum_squares(sum_squares);
  return verdict;
}

void StepPipeline::Update(size_t slot, const StepSettings& settings, double clip, uint64_t step,
                          bool early, MailExchange* mail, SlotWork& work) {
  OwnedState& state = *states_[slot];
  StageTimer timer(work.seconds);
  const auto skipped = [this](const OwnedUnit& unit) { return reduction_.skipped(unit.tensor); };
  size_t orthogonalized = 0;  // units before this one are
  for (size_t i = 0; i < state.size(); ++i) {
    const OwnedUnit& unit = state.unit(i);
    if (!skipped(unit)) {
      if (state.is_matrix(i) && i >= orthogonalized) {
        orthogonalized = state.BatchEnd(i, skipped);
        work.status = state.Orthogonalize(i, orthogonalized, settings.hypers[unit.group], clip, work.newton_schulz);
        if (!work.status.ok()) return;
        timer.Charge(Stage::kOrthogonalize);
      }
      state.Apply(i, settings.hypers[unit.group], clip);
      state.MultiplyRows(i, settings.row_factors);
      timer.Charge(Stage::kApply);
    }
    AtFailpoint(Failpoint::kStepUnit);
    // The way to another node is the longer one.
    state.Pack(i);
    if (early && !unit.publications.empty() && unpublished_.Done(unit.bucket)) {
      mail->Send(unit.bucket);
    }
    timer.Charge(Stage::kPublish);
    state.Deliver(i, *workers_);
    if (early && undelivered_.Done(unit.tensor)) workers_->MarkTensor(unit.tensor, step);
    timer.Charge(Stage::kDeliver);
    // Behind what workers wait for. An asynchronous copy has until the next step.
    if (replicas_.on()) replicas_.Pack(slot, i, early && replicas_.sync());
    timer.Charge(Stage::kPublish);
  }
}

// In the order of the forward. An error is found again when the mail is closed.
void StepPipeline::DeliverAsTheyArrive(MailExchange& mail, uint64_t step) {
  for (const Message& message : publications_.in) {
    if (!mail.Receive(message.bucket).ok()) return;
    for (const Piece& piece : message.pieces) {
      DeliverArrival(piece, message, -1);
      if (undelivered_.Done(piece.tensor)) workers_->MarkTensor(piece.tensor, step);
    }
  }
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
