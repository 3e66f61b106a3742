// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A job that goes over to other owners while it runs: when this node is ready to, and what follows here.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/failpoint.h"
#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/node/job.h"
#include "daemon/plan/plan.h"

namespace dmuon::node {
namespace {

// The other nodes hear of a successor within moments. Who does not is met later, or in the next step.
constexpr absl::Duration kMeetNow = absl::Seconds(10);
constexpr absl::Duration kMeetAgain = absl::Seconds(1);

}  // namespace

void Job::OnSuccessor(const v1::WatchPlansResponse& event) {
  const v1::Plan& plan = event.successor();
  const uint64_t current = plan_->generation();
  if (ended_ || current == 0 || plan.generation() <= current) return;  // without a plan it comes again, behind that
  if (next_ != nullptr && next_->plan.generation() == plan.generation()) return;
  if (plan.former_generation() > current) {  // another node has said that all go over to that one
    early_ = event;
    return;
  }
  absl::Status status = plan::ValidatePlan(spec_, plan, event.routes());
  if (status.ok()) status = plan::ValidateSuccessor(*plan_, plan);
  if (!status.ok()) {
    LogError("job ", job_id_, ": generation ", plan.generation(), ": ", status.message());
    return;
  }
  Successor next{plan, event.routes(), nullptr, environment_.budget};
  // What is being saved has the current generation in its name; the other nodes wait for it.
  next.ready = [this] { return !checkpoints_->busy(); };
  next_ = std::make_shared<const Successor>(std::move(next));
  pipeline_->Succeed(next_);
  LogInfo("job ", job_id_, ": to go over from generation ", current, " to ", plan.generation(), ", ",
          plan::MovedUnits(*plan_, plan), " of ", plan.units_size(), " units move (", plan.reason(), ")");
  meet_at_ = MonotonicNow();
}

// Where steps are taken these go over. Without, the nodes look for each other until all have heard of it.
void Job::MeetForSuccessor() {
  if (MonotonicNow() < meet_at_) return;
  meet_at_ = absl::InfiniteFuture();
  if (next_ == nullptr || ended_ || follows_ || !core_.initialized()) return;
  HelpOthers(std::min(peer_timeout_, kMeetNow)).IgnoreError();
  if (next_ != nullptr) meet_at_ = MonotonicNow() + kMeetAgain;
}

absl::Status Job::Together(const std::function<absl::Status()>& meeting) {
  absl::Status status = meeting();
  while (EndMeeting()) status = meeting();
  return status;
}

// All nodes have handed their state over: what comes from now on is the heir's.
bool Job::GoOver() {
  StepPipeline::Heir heir = pipeline_->TakeHeir();
  if (heir.successor == nullptr) return false;
  const v1::Plan& plan = heir.successor->plan;
  if (heir.pipeline == nullptr) {
    TakeNodes(std::shared_ptr<const v1::Plan>(std::move(heir.successor), &plan));
    return true;
  }
  peers_->GoOver(plan.generation());
  checkpoints_->GoOver(plan, heir.pipeline.get());
  pipeline_ = std::move(heir.pipeline);
  state_share_ = std::move(heir.share);
  plan_ = std::shared_ptr<const v1::Plan>(std::move(heir.successor), &plan);
  next_ = nullptr;
  PublishPlan("handover");
  AtFailpoint(Failpoint::kHandoverDone);
  environment_.link->Rejoin();
  TakeEarly();
  return true;
}

void Job::TakeEarly() {
  if (!early_.has_value()) return;
  Post([this, event = *std::exchange(early_, std::nullopt)] { OnSuccessor(event); });
}

// A node that was lost has been replaced by one of another name, or is not missed.
bool Job::OnNodes(const v1::WatchPlansResponse& event) {
  if (!event.has_plan() || event.plan().generation() <= plan_->generation() || !plan::OnlyNodesDiffer(*plan_, event.plan()) ||
      PlaceIn(*plan_) != PlaceIn(event.plan())) {
    return false;
  }
  LogWarning("job ", job_id_, ": generation ", event.plan().generation(), " after ", plan_->generation(), ": ", event.plan().reason());
  TakeNodes(std::make_shared<const v1::Plan>(event.plan()));
  return true;
}

// What is here stays as it is.
void Job::TakeNodes(std::shared_ptr<const v1::Plan> plan) {
  wanted_.reset();
  next_ = nullptr;
  if (!PlaceIn(*plan).has_value()) {
    LogInfo("job ", job_id_, ": goes on without this node, generation ", plan->generation(), " (", plan->reason(), ")");
    ended_ = true;
    return Forget();
  }
  if (plan->nodes_size() == 1) {
    SetPeers(nullptr);
  } else if (peers_ == nullptr) {
    SetPeers(std::make_shared<Peers>(*plan, *PlaceIn(*plan), environment_.link, environment_.connect_peers));
  } else {
    peers_->TakeNodes(*plan);
  }
  pipeline_->TakeNodes(*plan, peers_.get());
  checkpoints_->GoOver(*plan, pipeline_.get());
  plan_ = std::move(plan);
  PublishPlan("nodes");
  environment_.link->Rejoin();
  TakeEarly();
}

void Job::SetPeers(std::shared_ptr<Peers> peers) {
  const std::shared_ptr<Peers> former = std::exchange(peers_, std::move(peers));
  if (pipeline_ != nullptr) pipeline_->TakeNodes(*plan_, peers_.get());  // before the former go
  wire::MutexLock lock(mu_);
  to_cancel_ = peers_;
  if (stopping_ && peers_ != nullptr) peers_->Cancel();
}

bool Job::EndMeeting() {
  if (GoOver()) return true;
  const absl::Status why = pipeline_->TakeHandoverFailure();
  if (why.ok() || next_ == nullptr) return false;
  const uint64_t generation = next_->plan.generation();
  next_ = nullptr;
  LogWarning("job ", job_id_, ": stays with generation ", plan_->generation(), ", cannot go over to ", generation, ": ",
             why.message());
  v1::ReleaseJobRequest request;
  request.set_job_id(job_id_);
  request.set_generation(generation);
  request.set_handover_failure(std::string(why.message()));
  if (absl::Status status = environment_.link->ReleaseJob(std::move(request)); !status.ok()) {
    LogWarning("job ", job_id_, ": cannot tell the coordinator so: ", status.message());
  }
  return false;
}

}  // namespace dmuon::node
