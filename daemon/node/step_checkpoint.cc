// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The state between steps: copied out for a checkpoint, or replaced by one.

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/failpoint.h"
#include "daemon/node/array_exchange.h"
#include "daemon/node/array_transfers.h"
#include "daemon/node/recovery.h"
#include "daemon/node/restored_units.h"
#include "daemon/node/saved_job.h"
#include "daemon/node/state_in_use.h"
#include "daemon/node/step_pipeline.h"
#include "daemon/plan/plan.h"
#include "wire/error.h"

namespace dmuon::node {

absl::StatusOr<checkpoint::Image> StepPipeline::Copy() {
  DMUON_ASSIGN_OR_RETURN(checkpoint::Image image, CopyInto([this](std::vector<checkpoint::Entry> entries) {
                           return checkpoint::Image::Create(std::move(entries), std::move(copy_memory_));
                         }));
  copy_memory_ = image.memory();
  return image;
}

absl::StatusOr<checkpoint::Image> StepPipeline::CopyInto(const MakeImage& make) {
  const ArraysInUse arrays(*job_, states_);
  DMUON_ASSIGN_OR_RETURN(checkpoint::Image image, make(arrays.entries()));
  slots_->Run([&](size_t slot) {
    for (size_t i = arrays.first(slot); i < arrays.end(slot); ++i) arrays.Read(i, image.values(i)).IgnoreError();
  });
  return image;
}

// `mine` goes with all that is told, and outlives it.
RestoreMeeting::Tell StepPipeline::TellerOf(v1::PeerReport& mine, Until until) {
  return [this, &mine, until = std::move(until)](const absl::Status& status, const v1::RestoreShare& share) -> absl::StatusOr<Reports> {
    SetStatus(status, mine);
    *mine.mutable_restore_share() = share;
    DMUON_ASSIGN_OR_RETURN(Reports reports, Tell(mine, until()));
    DMUON_RETURN_IF_ERROR(CheckRestore(*job_, *plan_, reports));
    return reports;
  };
}

absl::StatusOr<StepPipeline::Restored> StepPipeline::Restore(const RestoreSource& source, const std::string& wanted,
                                                             MemoryBudget& budget, absl::Time deadline) {
  v1::PeerReport mine;
  mine.set_target(reached_ + 1);
  mine.set_reached(reached_);
  const std::vector<std::string> nodes(plan_->nodes().begin(), plan_->nodes().end());
  RestoreMeeting meeting(&source, nodes, self_);
  if (absl::Status known = meeting.Announce(mine); !known.ok()) SetStatus(known, mine);
  mine.set_follows(!plan::HasWorkers(*plan_, self_));
  mine.set_restore_name(wanted);
  const Until until = [deadline] { return deadline; };
  const RestoreMeeting::Tell tell = TellerOf(mine, until);
  DMUON_ASSIGN_OR_RETURN(const Reports first, MeetToRestore(mine, deadline));
  DMUON_RETURN_IF_ERROR(CheckRestore(*job_, *plan_, first));
  DMUON_ASSIGN_OR_RETURN(RestoreMeeting::Sources met, meeting.Agree(first, tell));
  Restored restored{met.id, met.step, 0};
  DMUON_ASSIGN_OR_RETURN(const Gathered gathered,
                         Gather(std::move(met), source.name(), *plan_, states_, budget, tell, until));
  restored.fetched_bytes = gathered.fetched_bytes;

  // From here on all nodes have all that they need.
  AtFailpoint(Failpoint::kRestoreRead);
  restoring_ = true;
  replicas_.Forget();
  saves_.clear();
  gathered.units->Apply();
  reached_ = restored.step + kLoaded;
  verdict_.Clear();
  mine.set_reached(reached_);
  DMUON_RETURN_IF_ERROR(PublishAll(deadline));
  AtFailpoint(Failpoint::kRestoreApplied);
  DMUON_RETURN_IF_ERROR(tell(absl::OkStatus(), {}).status());
  restoring_ = false;
  workers_->ClearGradients();
  workers_->MarkDelivered(restored.step);
  reduction_.Open(restored.step + 1);
  return restored;
}

absl::StatusOr<StepPipeline::Gathered> StepPipeline::Gather(RestoreMeeting::Sources met, const std::string& name,
                                                            const v1::Plan& plan, const RestoredUnits::States& states,
                                                            MemoryBudget& budget, const RestoreMeeting::Tell& tell,
                                                            const Until& until) {
  Gathered gathered;
  uint64_t bytes = 0;
  for (const auto& state : states) {
    for (size_t i = 0; i < state->size(); ++i) bytes += state->unit(i).state_bytes();
  }
  // By the heads alone; so far gradients that were submitted ahead still count.
  absl::StatusOr<std::unique_ptr<SavedJob>> saved = SavedJob::Open(name, met.step, std::move(met.sources), *job_, plan);
  std::vector<ArrayTransfer> transfers;
  if (saved.ok()) {
    gathered.saved = *std::move(saved);
    transfers = TransfersOf(gathered.saved->NeedsOf(static_cast<size_t>(plan.nodes_size())), met.holders);
  }
  const std::string what = absl::StrCat(name, ", beside that of job '", job_->job_id(), "'");
  absl::StatusOr<MemoryBudget::Share> share =
      saved.ok() ? budget.Take(bytes + ArrayExchange::BytesFor(transfers, self_), what) : saved.status();
  DMUON_RETURN_IF_ERROR(tell(share.status(), {}).status());
  gathered.share = *std::move(share);
  DMUON_RETURN_IF_ERROR(Settle(until()));
  gathered.units = std::make_unique<RestoredUnits>(gathered.saved.get(), &states);
  DMUON_RETURN_IF_ERROR(tell(gathered.units->ReadHere(*slots_), {}).status());
  DMUON_ASSIGN_OR_RETURN(gathered.fetched_bytes, Fetch(*gathered.saved, transfers, tell, *gathered.units, until));
  return gathered;
}

// What this node needs and has not, from the others, who do the same. The bytes that came.
absl::StatusOr<uint64_t> StepPipeline::Fetch(const SavedJob& saved, const std::vector<ArrayTransfer>& transfers,
                                             const RestoreMeeting::Tell& tell, RestoredUnits& units, const Until& until) {
  ExchangeEnd end;
  end.read = [&](const ArrayRef& array, std::span<float> to) { return saved.Read(array, to); };
  end.take = [&](const ArrayRef& array, std::span<const float> values) { units.Take(array, values); };
  end.agree = [&](const absl::Status& status) { return tell(status, {}).status(); };
  end.move = [&](std::vector<transport::Outgoing> out, std::vector<transport::Incoming> in) {
    return peers_->Move(std::move(out), std::move(in), until());
  };
  ArrayExchange exchange(transfers, static_cast<size_t>(plan_->nodes_size()), self_, std::move(end));
  DMUON_RETURN_IF_ERROR(exchange.Run());
  return exchange.received_bytes();
}

// Until all nodes want it; whoever still needs this one for the end of a step is helped first.
absl::StatusOr<Reports> StepPipeline::MeetToRestore(const v1::PeerReport& mine, absl::Time deadline) {
  DMUON_ASSIGN_OR_RETURN(Reports reports, Assemble(mine, deadline));
  // Who takes a step would recover first; who restores has nothing to recover.
  if (replicas_.on() && ((!AllRestore(reports) && NeedRecovery(*plan_, reports)) || AnyIsLost(*plan_, reports))) {
    return CommonStep(*plan_, reports, LostNodes(*plan_, reports)).status();
  }
  recoveries_ = MostRecoveries(reports);  // the checkpoint is a step that all have
  while (!AllRestore(reports)) {
    if (!RestoreToFollow(reports).empty()) {  // it knows what now, and comes with that
      DMUON_ASSIGN_OR_RETURN(reports, Tell(mine, deadline));
      continue;
    }
    const uint64_t lowest = LowestTarget(reports);
    DMUON_RETURN_IF_ERROR(CheckReports(*job_, *plan_, reports, lowest));
    StepReport report;
    DMUON_RETURN_IF_ERROR(Round(lowest, reports, {}, deadline, report));
    DMUON_ASSIGN_OR_RETURN(reports, Tell(mine, deadline));
  }
  return reports;
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
