// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/worker_boxes.h"

#include <algorithm>

namespace dmuon::node {

MissingRanks WorkerBoxes::MissingIn(size_t tensor, uint64_t step) const {
  MissingRanks missing;
  for (const uint32_t rank : ranks_) {
    if (!shards_[rank][tensor].grad.empty() && !IsReady(rank, tensor, step)) missing.push_back(rank);
  }
  return missing;
}

bool WorkerBoxes::IsReady(uint32_t rank, size_t tensor, uint64_t step) const {
  const wire::Arena* const arena = arenas_[rank];
  return arena != nullptr && arena->entry(tensor).grad_word.load(std::memory_order_acquire) ==
                                 wire::MakeWord(step, wire::WordState::kReady);
}

bool WorkerBoxes::AllAttached() const {
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [this](uint32_t rank) { return arenas_[rank] != nullptr; });
}

std::vector<WorkerBoxes::SubmissionStamp> WorkerBoxes::SubmissionStamps() const {
  std::vector<SubmissionStamp> stamps;
  for (const uint32_t rank : ranks_) {
    SubmissionStamp& stamp = stamps.emplace_back();
    stamp.attachment = attachments_[rank];
    if (arenas_[rank] == nullptr) continue;
    stamp.resubmissions = arenas_[rank]->header().resubmissions.load(std::memory_order_acquire);
  }
  return stamps;
}

void WorkerBoxes::MarkTensor(size_t tensor, uint64_t step) const {
  const uint64_t word = wire::MakeWord(step, wire::WordState::kReady);
  for (const uint32_t rank : ranks_) {
    if (arenas_[rank] != nullptr) arenas_[rank]->entry(tensor).param_word.Store(word);
  }
}

void WorkerBoxes::MarkDelivered(uint64_t step, int64_t rank) const {
  const uint64_t word = wire::MakeWord(step, wire::WordState::kReady);
  for (const uint32_t r : ranks_) {
    if ((rank >= 0 && r != rank) || arenas_[r] == nullptr) continue;
    for (size_t tensor = 0; tensor < tensors(); ++tensor) {
      arenas_[r]->entry(tensor).param_word.Store(word);
    }
  }
}

void WorkerBoxes::ClearGradients() const {
  for (const uint32_t rank : ranks_) {
    if (arenas_[rank] == nullptr) continue;
    for (size_t tensor = 0; tensor < tensors(); ++tensor) {
      arenas_[rank]->entry(tensor).grad_word.store(wire::MakeWord(0, wire::WordState::kNone), std::memory_order_release);
    }
  }
}

void WorkerBoxes::Answer(uint64_t step, const wire::StepAnswer& answer) const {
  for (const uint32_t rank : ranks_) {
    if (arenas_[rank] == nullptr) continue;
    wire::ArenaHeader& header = arenas_[rank]->header();
    header.answer = answer;
    header.answer_word.Store(wire::MakeWord(step, wire::WordState::kReady));
  }
}

void WorkerBoxes::Refer(uint32_t rank, uint64_t step) const {
  if (arenas_[rank] == nullptr) return;
  arenas_[rank]->header().answer_word.Store(wire::MakeWord(step, wire::WordState::kMissing));
}

}  // namespace dmuon::node
