// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The state between steps: copied out for a checkpoint, or replaced by one.

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/node/recovery.h"
#include "daemon/node/step_pipeline.h"
#include "daemon/node/unit_values.h"
#include "wire/error.h"

namespace dmuon::node {

absl::StatusOr<checkpoint::Image> StepPipeline::Copy() {
  struct Source {
    const OwnedUnit* unit;
    UnitArray array;
  };
  std::vector<std::vector<Source>> sources(states_.size());  // by slot; the image has them one slot after the other
  std::vector<checkpoint::Entry> entries;
  for (size_t slot = 0; slot < states_.size(); ++slot) {
    for (size_t i = 0; i < states_[slot]->size(); ++i) {
      const OwnedUnit& unit = states_[slot]->unit(i);
      for (UnitArray& array : ArraysOf(*job_, workers_->tensor(unit.tensor), unit.box())) {
        array.entry.updates = static_cast<uint64_t>(unit.updates);
        entries.push_back(array.entry);
        sources[slot].push_back({&unit, std::move(array)});
      }
    }
  }
  DMUON_ASSIGN_OR_RETURN(checkpoint::Image image, checkpoint::Image::Create(std::move(entries), std::move(copy_memory_)));
  copy_memory_ = image.memory();
  slots_->Run([&](size_t slot) {
    size_t entry = 0;
    for (size_t before = 0; before < slot; ++before) entry += sources[before].size();
    for (const Source& source : sources[slot]) CopyOut(*source.unit, source.array, image.values(entry++));
  });
  return image;
}

absl::Status StepPipeline::Restore(const std::string& id, const absl::StatusOr<const SavedJob*>& saved,
                                   absl::Time deadline) {
  v1::PeerReport mine;
  mine.set_target(reached_ + 1);
  mine.set_reached(reached_);
  mine.set_restore(id);
  SetStatus(saved.status(), mine);
  DMUON_RETURN_IF_ERROR(MeetToRestore(mine, deadline));
  DMUON_RETURN_IF_ERROR(Settle(deadline));

  std::vector<std::vector<UnitValues>> values;  // by slot, by unit
  SetStatus(ReadUnits(**saved, values), mine);
  DMUON_ASSIGN_OR_RETURN(const Reports read, Tell(mine, deadline));
  DMUON_RETURN_IF_ERROR(CheckRestore(*job_, *plan_, read));

  // From here on all nodes have all that they need.
  restoring_ = true;
  replicas_.Forget();
  for (size_t slot = 0; slot < states_.size(); ++slot) {
    for (size_t i = 0; i < states_[slot]->size(); ++i) Exchange(states_[slot]->mutable_unit(i), values[slot][i]);
  }
  reached_ = (*saved)->step() + kLoaded;
  verdict_.Clear();
  mine.set_reached(reached_);
  DMUON_RETURN_IF_ERROR(PublishAll(deadline));
  DMUON_ASSIGN_OR_RETURN(const Reports ends, Tell(mine, deadline));
  DMUON_RETURN_IF_ERROR(CheckRestore(*job_, *plan_, ends));
  restoring_ = false;
  workers_->ClearGradients();
  workers_->MarkDelivered((*saved)->step());
  reduction_.Open((*saved)->step() + 1);
  return absl::OkStatus();
}

// Until all nodes want the same; whoever still needs this one for the end of a step is helped first.
absl::Status StepPipeline::MeetToRestore(const v1::PeerReport& mine, absl::Time deadline) {
  DMUON_ASSIGN_OR_RETURN(Reports reports, Assemble(mine, deadline));
  if (replicas_.on() && AnyIsLost(reports)) return CommonStep(*plan_, reports, LostNodes(reports)).status();
  while (!AllRestore(reports)) {
    const uint64_t lowest = LowestTarget(reports);
    DMUON_RETURN_IF_ERROR(CheckReports(*job_, *plan_, reports, lowest));
    StepReport report;
    DMUON_RETURN_IF_ERROR(Round(lowest, reports, {}, deadline, report));
    DMUON_ASSIGN_OR_RETURN(reports, Tell(mine, deadline));
  }
  return CheckRestore(*job_, *plan_, reports);
}

absl::Status StepPipeline::ReadUnits(const SavedJob& saved, std::vector<std::vector<UnitValues>>& values) const {
  values.resize(states_.size());
  StepReport unused;  // no step
  return RunSlots(*slots_, unused, [&](size_t slot, SlotWork& work) {
    for (size_t i = 0; i < states_[slot]->size() && work.status.ok(); ++i) {
      const OwnedUnit& unit = states_[slot]->unit(i);
      work.status = saved.Read(unit, values[slot].emplace_back(UnitValues::Like(unit)));
    }
  });
}

// Ends what may be open between two steps.
absl::Status StepPipeline::Settle(absl::Time deadline) {
  DMUON_RETURN_IF_ERROR(reduction_.GiveUp(deadline));
  return replicas_.underway() ? replicas_.End(deadline) : absl::OkStatus();
}

// All parameters as they are, to all workers of all nodes, and all state to who keeps copies of it.
absl::Status StepPipeline::PublishAll(absl::Time deadline) {
  Open(publications_, deadline);
  slots_->Run([&](size_t slot) {
    for (size_t i = 0; i < states_[slot]->size(); ++i) {
      states_[slot]->Pack(i);
      states_[slot]->Deliver(i, *workers_);
    }
  });
  DMUON_RETURN_IF_ERROR(Close());
  DeliverArrivals(-1);
  return replicas_.Exchange(reached_ - kLoaded, deadline);
}

}  // namespace dmuon::node
