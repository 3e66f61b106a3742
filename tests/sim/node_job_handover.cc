// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A job that goes over to other owners: see job_handover.cc.

#include <algorithm>
#include <utility>

#include "daemon/plan/plan.h"
#include "tests/sim/node_job.h"
#include "wire/error.h"

namespace dmuon::sim {
namespace {

constexpr absl::Duration kMeetNow = absl::Seconds(1);

}  // namespace

Task<void> NodeJob::OnSuccessor(v1::WatchPlansResponse event) {
  const v1::Plan& plan = event.successor();
  const uint64_t current = plan_.generation();
  if (ended_ || current == 0 || plan.generation() <= current) co_return;
  if (next_ != nullptr && next_->plan.generation() == plan.generation()) co_return;
  if (plan.former_generation() > current) {
    early_ = event;
    co_return;
  }
  absl::Status status = plan::ValidatePlan(spec_, plan, event.routes());
  if (status.ok()) status = plan::ValidateSuccessor(plan_, plan);
  if (!status.ok()) {
    world_.Trace(environment_.process->name, "generation ", plan.generation(), ": ", status.ToString());
    co_return;
  }
  Successor next;
  next.plan = plan;
  next.ready = [this] { return !saving_; };
  next_ = std::make_shared<const Successor>(std::move(next));
  if (pipeline_ == nullptr) co_return;
  pipeline_->Succeed(next_);
  world_.Trace(environment_.process->name, "is to go over to generation ", plan.generation());
  if (!core_.initialized()) co_return;
  const absl::Status helped = co_await HelpOthers(std::min(peer_timeout_, kMeetNow));
  helped.IgnoreError();
}

bool NodeJob::GoOver() {
  Pipeline::Heir heir = pipeline_->TakeHeir();
  if (heir.pipeline == nullptr) return false;
  const uint64_t former = plan_.generation();
  plan_ = heir.successor->plan;  // peers_ refer to it
  pipeline_ = std::move(heir.pipeline);
  current_ = std::move(heir.successor);
  next_ = nullptr;
  HoldPlan();
  RecordAdopted();
  Event event = pipeline_->HandedOver();
  event.before = former;
  cluster_->Record(std::move(event));
  world_.Trace(environment_.process->name, "goes over to generation ", plan_.generation());
  environment_.link->Rejoin();
  if (early_.has_value()) {
    Post([this, event = *std::exchange(early_, std::nullopt)] { return OnSuccessor(event); }, nullptr);
  }
  return true;
}

Task<bool> NodeJob::EndMeeting() {
  if (GoOver()) co_return true;
  const absl::Status why = pipeline_->TakeHandoverFailure();
  if (why.ok() || next_ == nullptr) co_return false;
  const uint64_t generation = next_->plan.generation();
  next_ = nullptr;
  world_.Trace(environment_.process->name, "cannot go over to generation ", generation, ": ", why.ToString());
  v1::ReleaseJobRequest request;
  request.set_job_id(job_id_);
  request.set_generation(generation);
  request.set_handover_failure(std::string(why.message()));
  const absl::Status released = co_await environment_.link->ReleaseJob(std::move(request));
  released.IgnoreError();
  co_return false;
}

Task<absl::Status> NodeJob::HelpOthers(absl::Duration timeout) {
  const absl::Time until = world_.now() + timeout;
  if (pipeline_->IsAheadOf(core_.last_step())) {
    co_await RunStep(core_.last_step() + 1, until);
    co_return absl::OkStatus();
  }
  const absl::Status status = co_await pipeline_->Help(until);
  world_.Trace(environment_.process->name, "helps with step ", core_.last_step(), ": ", status.ToString());
  co_await EndMeeting();
  co_await TakeLoss(status);
  co_return status;
}

}  // namespace dmuon::sim
