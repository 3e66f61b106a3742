// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/restored_units.h"

#include <utility>

#include "daemon/node/step_report.h"

namespace dmuon::node {

RestoredUnits::RestoredUnits(const SavedJob* saved, const States* states) : saved_(saved), states_(states) {
  values_.resize(states->size());
  for (size_t slot = 0; slot < states->size(); ++slot) {
    const OwnedState& state = *(*states)[slot];
    values_[slot].resize(state.size());
    for (size_t i = 0; i < state.size(); ++i) {
      for (SavedJob::Piece& piece : saved->PiecesOf(state.unit(i).tensor, state.unit(i).box())) {
        if (!saved->IsHere(piece.saved)) from_others_[piece.saved].push_back({slot, i, std::move(piece.array)});
      }
    }
  }
}

absl::Status RestoredUnits::ReadHere(SlotThreads& slots) {
  StepReport unused;  // no step
  return RunSlots(slots, unused, [&](size_t slot, SlotWork& work) {
    for (size_t i = 0; i < values_[slot].size() && work.status.ok(); ++i) work.status = ReadUnit(slot, i);
  });
}

absl::Status RestoredUnits::ReadUnit(size_t slot, size_t i) {
  const OwnedUnit& unit = (*states_)[slot]->unit(i);
  UnitValues& values = values_[slot][i];
  values = UnitValues::Like(unit);
  std::vector<float> buffer;
  for (const auto& [array, saved] : saved_->PiecesOf(unit.tensor, unit.box())) {
    const checkpoint::Entry& entry = saved_->entry(saved);
    values.updates = static_cast<int64_t>(entry.updates);
    if (!saved_->IsHere(saved)) continue;
    buffer.resize(entry.elements());
    if (absl::Status status = saved_->Read(saved, buffer); !status.ok()) return status;
    CopyIn(unit, array, entry.box, buffer, values);
  }
  return absl::OkStatus();
}

void RestoredUnits::Take(const ArrayRef& array, std::span<const float> values) {
  for (const Place& place : from_others_.at(array)) {
    const OwnedUnit& unit = (*states_)[place.slot]->unit(place.unit);
    CopyIn(unit, place.array, saved_->entry(array).box, values, values_[place.slot][place.unit]);
  }
}

void RestoredUnits::Apply() {
  for (size_t slot = 0; slot < values_.size(); ++slot) {
    for (size_t i = 0; i < values_[slot].size(); ++i) {
      Exchange((*states_)[slot]->mutable_unit(i), values_[slot][i]);
    }
  }
}

}  // namespace dmuon::node
