// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// From one plan to its successor, between two steps: a restore from what all nodes have in use into units of other owners,
// beside the old ones. Nothing changes before all nodes have all of theirs, on buddies as well.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/clock.h"
#include "daemon/base/failpoint.h"
#include "daemon/base/log.h"
#include "daemon/node/restore_meeting.h"
#include "daemon/node/state_in_use.h"
#include "daemon/node/step_pipeline.h"
#include "daemon/plan/plan.h"
#include "wire/error.h"

namespace dmuon::node {
namespace {

// Then this node does not know what the others have done.
bool IsLost(const absl::Status& status) {
  const v1::ErrorReason reason = wire::ReasonOf(status);
  return reason == v1::ERROR_REASON_PEER_LOST || reason == v1::ERROR_REASON_DRAINING;
}

}  // namespace

void StepPipeline::ConfirmHandover() {
  if (successor_ != nullptr && plan::OnlyNodesDiffer(*plan_, successor_->plan)) {
    heir_.successor = successor_;
  } else if (heir_.successor == nullptr && successor_ != nullptr && reached_ == 0) {
    absl::StatusOr<Heir> heir = EmptyHeir();
    if (heir.ok()) {
      heir_ = *std::move(heir);
    } else {
      LogError("job ", job_->job_id(), ": cannot follow the other nodes: ", heir.status().message());
    }
  }
  is_over_ = heir_.successor != nullptr;
}

void StepPipeline::TakeNodes(const v1::Plan& plan, Peers* peers) {
  plan_ = &plan;
  peers_ = peers;
  reduction_.TakePeers(peers);
  replicas_.TakePeers(peers);
  successor_ = nullptr;
  heir_ = Heir();
}

StepPipeline::Heir StepPipeline::TakeHeir() {
  if (!is_over_) return {};
  is_over_ = false;
  return std::exchange(heir_, Heir());
}

absl::StatusOr<StepPipeline::Heir> StepPipeline::EmptyHeir() const {
  const Successor& next = *successor_;
  const std::string what = absl::StrCat("the state of job '", job_->job_id(), "' under generation ", next.plan.generation());
  DMUON_ASSIGN_OR_RETURN(MemoryBudget::Share share, next.budget->Take(BytesFor(*job_, next.plan, next.routes, self_), what));
  return Heir{successor_,
              std::make_unique<StepPipeline>(*job_, next.plan, next.routes, self_, workers_, backend_, slots_, peers_, overlap_),
              std::move(share)};
}

absl::Status StepPipeline::HandOver(absl::Time deadline) {
  if (plan::OnlyNodesDiffer(*plan_, successor_->plan)) {  // all are ready, and nothing moves
    ConfirmHandover();
    return absl::OkStatus();
  }
  // As long for every part of it: there may be far more to move than in a step.
  const absl::Duration patience = deadline - MonotonicNow();
  absl::Status status = MakeHeir([patience] { return MonotonicNow() + patience; });
  if (IsLost(status)) return status;  // to be tried again, or found to have been done
  is_over_ = status.ok();
  if (is_over_) {
    heir_.pipeline->reduction_.Open(reached_ - kLoaded + 1);
    return absl::OkStatus();
  }
  // All nodes have the same error.
  handover_failure_ = std::move(status);
  heir_ = Heir();
  successor_ = nullptr;
  return absl::OkStatus();
}

absl::Status StepPipeline::MakeHeir(const Until& until) {
  const absl::Time begin = MonotonicNow();
  const Successor& next = *successor_;
  v1::PeerReport mine;
  mine.set_target(reached_ + 1);
  mine.set_reached(reached_);
  const RestoreMeeting::Tell tell = TellerOf(mine, until);
  const StateInUse source(*job_, *plan_, self_, reached_ - kLoaded, states_);
  RestoreMeeting meeting(&source, {plan_->nodes().begin(), plan_->nodes().end()}, self_);
  DMUON_RETURN_IF_ERROR(meeting.Announce(mine));

  absl::StatusOr<Heir> made = EmptyHeir();
  DMUON_ASSIGN_OR_RETURN(const Reports reports, tell(made.status(), {}));
  Heir heir = *std::move(made);
  DMUON_ASSIGN_OR_RETURN(RestoreMeeting::Sources met, meeting.Agree(reports, tell));
  AtFailpoint(Failpoint::kHandoverMet);
  DMUON_ASSIGN_OR_RETURN(const Gathered gathered, Gather(std::move(met), source.name(), next.plan, heir.pipeline->states_,
                                                         *next.budget, tell, until));
  AtFailpoint(Failpoint::kHandoverGathered);
  gathered.units->Apply();
  heir.pipeline->reached_ = reached_;
  heir.pipeline->verdict_ = verdict_;
  heir.pipeline->settings_ = settings_;
  heir.pipeline->recoveries_ = recoveries_;
  // The workers have these values. They are for the buffers of nodes that will want them for a worker that returns.
  DMUON_RETURN_IF_ERROR(heir.pipeline->PublishAll(until()));
  AtFailpoint(Failpoint::kHandoverPublished);
  heir_ = std::move(heir);  // whole; if the last reports are lost, another node may have gone over
  DMUON_RETURN_IF_ERROR(tell(absl::OkStatus(), {}).status());
  AtFailpoint(Failpoint::kHandoverAgreed);
  LogInfo("job ", job_->job_id(), ": gone over from generation ", plan_->generation(), " to ", next.plan.generation(),
          " after step ", reached_ - kLoaded, " in ", absl::ToDoubleSeconds(MonotonicNow() - begin), " s: ", state_bytes_, " -> ",
          heir_.pipeline->state_bytes_, " bytes of state here, ", gathered.fetched_bytes, " from other nodes (",
          next.plan.reason(), ")");
  return absl::OkStatus();
}

}  // namespace dmuon::node
