// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What a job and the coordinator say to each other: registrations, plans, calls to meet, the end.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/node/job.h"
#include "daemon/plan/plan.h"
#include "wire/error.h"

namespace dmuon::node {
namespace {

constexpr absl::Duration kResendPeriod = absl::Milliseconds(50);

// Whether a job can go on when this node's process has lost what it had: others have copies of it, or there was nothing.
bool CanComeBack(const v1::Plan& plan, uint32_t self) {
  return !plan.buddies().empty() || plan::OwnsNothing(plan, self);
}

// 0: none.
uint64_t GenerationThatIsOver(const v1::WatchPlansResponse& event) {
  return event.has_end() ? event.end().generation() : event.refusal().generation();
}

}  // namespace

// Kept and sent again while there is no coordinator; the waiting request's deadline bounds it.
void Job::SendRegistration(SessionId session) {
  const auto it = unsent_.find(session);
  if (it == unsent_.end()) return;
  const uint32_t rank = sessions_.at(session)->rank();
  const uint64_t sequence = environment_.registrations->fetch_add(1) + 1;
  v1::RegisterWorkerRequest request;
  *request.mutable_node() = environment_.node;
  request.set_rank(rank);
  *request.mutable_job() = it->second.request.job();
  *request.mutable_shards() = it->second.request.shards();
  request.set_sequence(sequence);
  if (core_.generation() == 0) {
    const std::vector<v1::UnitTime>& times = TimesFor(request.job());
    *request.mutable_times() = {times.begin(), times.end()};
  }
  const absl::Status status = environment_.link->RegisterWorker(std::move(request));
  if (absl::IsUnavailable(status) || absl::IsNotFound(status)) {
    resend_at_ = MonotonicNow() + kResendPeriod;
    return;
  }
  Registration registration = std::move(it->second);
  unsent_.erase(it);
  if (status.ok()) {
    // The coordinator has compared the specification with the other ranks'.
    spec_ = std::move(*registration.request.mutable_job());
    accepted_[rank] = {sequence, std::move(registration.boxes), std::move(*registration.request.mutable_shards())};
  }
  CarryOut(core_.RegistrationAnswered(MonotonicNow(), session, status));
}

const std::vector<v1::UnitTime>& Job::TimesFor(const v1::JobSpec& job) {
  std::string spec = job.SerializeAsString();
  if (spec == timed_spec_) return times_;
  times_ = environment_.autotuner->TimesFor(job, [this] {
    wire::MutexLock lock(mu_);
    return stopping_;
  });
  timed_spec_ = std::move(spec);
  return times_;
}

void Job::ResendRegistrations() {
  if (MonotonicNow() < resend_at_) return;
  resend_at_ = absl::InfiniteFuture();
  std::vector<SessionId> sessions;
  for (const auto& [session, registration] : unsent_) sessions.push_back(session);
  for (const SessionId session : sessions) SendRegistration(session);
}

// Where the coordinator still knows them, it hears the same again.
void Job::RegisterAnew() {
  Post([this] {
    if (ended_ || core_.generation() != 0) return;
    for (const auto& [session, worker] : sessions_) {
      const auto accepted = accepted_.find(worker->rank());
      if (accepted == accepted_.end() || unsent_.contains(session)) continue;
      Registration registration;
      *registration.request.mutable_job() = spec_;
      *registration.request.mutable_shards() = accepted->second.shards;
      registration.boxes = accepted->second.boxes;
      unsent_[session] = std::move(registration);
      resend_at_ = absl::InfinitePast();
    }
    ResendRegistrations();
  });
}

void Job::OnPlanEvent(v1::WatchPlansResponse event) {
  if (const uint64_t over = GenerationThatIsOver(event); over != 0) {
    wire::MutexLock lock(mu_);
    // A meeting of its nodes would go on until its deadline.
    if (to_cancel_ != nullptr && held_.has_value() && held_->plan().generation() == over) to_cancel_->Cancel();
  } else {
    InterruptFor(event);
  }
  Post([this, event = std::move(event)] {
    if (event.has_call()) {
      Meet(event.call());
    } else if (event.has_successor()) {
      OnSuccessor(event);
    } else if (ended_) {
      OnEventAfterTheEnd(event);
    } else if (next_ != nullptr && event.plan().generation() == next_->plan.generation()) {
      pipeline_->ConfirmHandover();
      GoOver();
    } else if (core_.generation() != 0) {
      if (!OnNodes(event)) OnLossElsewhere(event);  // another plan is for a former job of this id
    } else if (!event.has_end()) {
      OnPlan(event);
    }
  });
}

// Who waits for the others may have to meet them somewhere else: under another plan, whose connections are others, or, where
// nothing else is done, in another attempt.
void Job::InterruptFor(const v1::WatchPlansResponse& event) {
  wire::MutexLock lock(mu_);
  if (to_cancel_ == nullptr || !held_.has_value()) return;
  const uint64_t generation = held_->plan().generation();
  const bool newer = event.plan().generation() > generation || (awaits_ && event.call().generation() > generation);
  if (newer) return to_cancel_->Interrupt(std::numeric_limits<uint64_t>::max());
  if (awaits_ && event.call().generation() == generation) to_cancel_->Interrupt(event.call().attempt());
}

// The job is over although its workers are here: another node has lost its state, or could not adopt the plan.
void Job::OnLossElsewhere(const v1::WatchPlansResponse& event) {
  if (GenerationThatIsOver(event) != plan_->generation()) return;  // else it is about a former job of this id
  if (follows_ && event.has_end()) {
    LogInfo("job ", job_id_, ": ended at step ", core_.last_step());
    ended_ = true;
    return Forget();
  }
  const std::string why = event.has_refusal() ? event.refusal().message()
                                              : absl::StrCat("job '", job_id_, "' has ended on another node, and its state is lost");
  LogError("job ", job_id_, ": ", why);
  CarryOut(core_.Lost(MonotonicNow(), wire::Error(absl::StatusCode::kDataLoss, v1::ERROR_REASON_STATE_LOST, why)));
}

// Another node waits for this one, perhaps for the end of a step that is over here. Whose workers
// have arrived meets it in their step.
void Job::Meet(const v1::Meeting& call) {
  if (peers_ == nullptr || (!core_.initialized() && !follows_)) return;
  if (next_ != nullptr && call.generation() == next_->plan.generation()) pipeline_->ConfirmHandover();
  GoOver();
  if (call.generation() != plan_->generation() || !peers_->Leave(call.attempt()) || follows_) return;
  const absl::Status status = HelpOthers(peer_timeout_);
  LogInfo("job ", job_id_, ": another node called to attempt ", call.attempt(), ", step ",
          pipeline_->reached_step(), " is on all nodes: ", status.ok() ? "yes" : status.message());
}

// A meeting that no worker of this node has asked for.
absl::Status Job::HelpOthers(absl::Duration timeout) {
  const absl::Time begin = MonotonicNow();
  if (pipeline_->IsAheadOf(core_.last_step())) {
    RunStep(core_.last_step() + 1, begin + timeout);
    return absl::OkStatus();
  }
  const absl::Status status = pipeline_->Help(begin + timeout);
  EndMeeting();
  NoteRecovery(MonotonicNow() - begin);
  TakeLoss(status);
  CountTraffic();
  return status;
}

void Job::OnPlan(const v1::WatchPlansResponse& event) {
  const std::vector<uint32_t> answered = AnsweredRanks(event.last_sequence());
  if (event.has_refusal()) {
    const v1::Refusal& refusal = event.refusal();
    LogWarning("job ", job_id_, ": refused: ", refusal.message());
    Refuse(answered, wire::Error(static_cast<absl::StatusCode>(refusal.code()),
                                 wire::ReasonFromName(refusal.reason()), refusal.message()));
    return;
  }
  // Made for a former job of this id, or before a rank registered anew: ours is on its way.
  const std::vector<uint32_t> ranks = RanksHere(event.plan());
  const bool follows = event.has_job() && ranks.empty() && PlaceIn(event.plan()).has_value();
  if (follows) {
    spec_ = event.job();
  } else if (ranks.empty() || !std::includes(answered.begin(), answered.end(), ranks.begin(), ranks.end())) {
    LogInfo("job ", job_id_, ": generation ", event.plan().generation(),
            " is older than the registrations here");
    return;
  }
  if (absl::Status status = Adopt(event.plan(), event.routes()); !status.ok()) {
    LogWarning("job ", job_id_, ": plan not adopted: ", status.message());
    if (IsForgotten(status)) {
      DropPlan();
      return RegisterAnew();  // the coordinator started again, and not all nodes had heard of the plan
    }
    Release(event.plan().generation(), /*in_order=*/false);
    DropPlan();
    Refuse(answered, status);
    if (follows) End(/*in_order=*/false);
    return;
  }
  unsent_.clear();
  follows_ = follows;
  met_at_ = MonotonicNow();
  CarryOut(core_.PlanArrived(MonotonicNow(), plan_->generation(), ranks, CanComeBack(*plan_, *PlaceIn(*plan_))));
}

// Whether a plan was not adopted because it is over: nothing was begun under it.
bool Job::IsForgotten(const absl::Status& status) const {
  wire::MutexLock lock(mu_);
  return wire::ReasonOf(status) == v1::ERROR_REASON_UNKNOWN_JOB ||
         (wire::ReasonOf(status) == v1::ERROR_REASON_DRAINING && !stopping_);
}

// What a plan that could not be adopted has taken already.
void Job::DropPlan() {
  SetPeers(nullptr);
  {
    wire::MutexLock lock(mu_);
    held_.reset();
  }
  state_share_ = MemoryBudget::Share();
  plan_ = std::make_shared<v1::Plan>();
}

std::vector<uint32_t> Job::AnsweredRanks(uint64_t last_sequence) const {
  std::vector<uint32_t> ranks;
  for (const auto& [rank, shards] : accepted_) {
    if (shards.sequence <= last_sequence) ranks.push_back(rank);
  }
  return ranks;
}

void Job::Refuse(const std::vector<uint32_t>& ranks, const absl::Status& why) {
  for (const uint32_t rank : ranks) accepted_.erase(rank);
  CarryOut(core_.PlanRefused(MonotonicNow(), ranks, why));
}

// Ascending.
std::vector<uint32_t> Job::RanksHere(const v1::Plan& plan) const {
  std::vector<uint32_t> ranks;
  for (int rank = 0; rank < plan.rank_nodes_size(); ++rank) {
    const auto node = static_cast<int>(plan.rank_nodes(rank));
    if (node < plan.nodes_size() && plan.nodes(node) == environment_.node.node_id()) {
      ranks.push_back(static_cast<uint32_t>(rank));
    }
  }
  return ranks;
}

std::optional<uint32_t> Job::PlaceIn(const v1::Plan& plan) const {
  const auto found = std::find(plan.nodes().begin(), plan.nodes().end(), environment_.node.node_id());
  if (found == plan.nodes().end()) return std::nullopt;
  return static_cast<uint32_t>(found - plan.nodes().begin());
}

absl::Status Job::Adopt(const v1::Plan& plan, const v1::Routes& routes) {
  DMUON_RETURN_IF_ERROR(plan::ValidatePlan(spec_, plan, routes));
  const std::vector<uint32_t> ranks = RanksHere(plan);
  const uint32_t self = *PlaceIn(plan);
  DMUON_ASSIGN_OR_RETURN(
      state_share_,
      environment_.budget->Take(StepPipeline::BytesFor(spec_, plan, routes, self),
                                absl::StrCat("the optimizer state of job '", job_id_, "'")));
  plan_ = std::make_shared<v1::Plan>(plan);
  // A coordinator that starts again meanwhile must not take this process for one that has lost it.
  HoldPlan();
  if (plan.nodes_size() > 1) {
    SetPeers(std::make_shared<Peers>(*plan_, self, environment_.link, environment_.connect_peers));
    // Now, so that a peer that cannot be reached is found before training begins. Where the other nodes may have gone on
    // without this process, the job must not end because they are late.
    const absl::Status connected = peers_->Connect(MonotonicNow() + environment_.connect_timeout);
    if (!connected.ok() && (!CanComeBack(plan, self) || IsForgotten(connected))) return connected;
  }
  workers_ = std::make_unique<WorkerBoxes>(&spec_, world_size_);
  for (const uint32_t rank : ranks) workers_->SetShards(rank, accepted_.at(rank).boxes);
  kernels::Backend* backend = environment_.backend;
  const int threads = environment_.threads_per_slot;
  slots_ = std::make_unique<SlotThreads>(environment_.slots,
                                         [backend, threads] { backend->BindThread(threads); });
  pipeline_ = std::make_unique<StepPipeline>(spec_, *plan_, routes, self, workers_.get(), backend,
                                             slots_.get(), peers_.get(), environment_.overlap);
  JobCheckpoints::Environment checkpoints;
  checkpoints.node_id = environment_.node.node_id();
  checkpoints.store = environment_.checkpoints;
  checkpoints.link = environment_.link;
  checkpoints.budget = environment_.budget;
  checkpoints.metrics = environment_.metrics;
  checkpoints.peer_timeout = peer_timeout_;
  checkpoints.post = [this](std::function<void()> input) { Post(std::move(input)); };
  checkpoints_ = std::make_unique<JobCheckpoints>(std::move(checkpoints), spec_, *plan_, pipeline_.get());
  LogInfo("job ", job_id_, ": generation ", plan_->generation(), ", ", pipeline_->matrix_units(),
          " matrices and ", pipeline_->elementwise_units(), " element-wise units on ",
          environment_.slots, " slots, ", plan.nodes_size(), " nodes (", plan_->reason(), ")");
  PublishPlan("join");
  return absl::OkStatus();
}

// Where the workers have left in order, another node may still miss the end of the last step.
void Job::End(bool in_order) {
  ended_ = true;
  if (checkpoints_ != nullptr) checkpoints_->Finish();  // the coordinator forgets the job with its release
  const bool keep = in_order && peers_ != nullptr;
  LogInfo("job ", job_id_, ": ended at step ", core_.last_step(),
          keep ? ", kept until the other nodes have ended" : "");
  Release(plan_->generation(), keep);
  if (!keep) return Forget();
  kept_until_ = MonotonicNow() + orphan_timeout_;
}

void Job::OnEventAfterTheEnd(const v1::WatchPlansResponse& event) {
  // Forgotten, and perhaps not ended in order: what is said of it now would be taken for that.
  if (kept_until_ == absl::InfiniteFuture()) return;
  if (event.has_plan()) {  // the coordinator does not know, or has forgotten, that it was released
    if (event.plan().generation() == plan_->generation()) Release(plan_->generation(), /*in_order=*/true);
  } else if (event.has_refusal() || event.end().generation() == plan_->generation()) {
    Forget();
  }
}

void Job::Release(uint64_t generation, bool in_order) {
  v1::ReleaseJobRequest request;
  request.set_job_id(job_id_);
  request.set_generation(generation);
  request.set_in_order(in_order);
  if (absl::Status status = environment_.link->ReleaseJob(std::move(request)); !status.ok()) {
    LogWarning("job ", job_id_, ": cannot tell the coordinator that it ended: ", status.message());
  }
}

// Once: by the time of a second one its id may be another job's.
void Job::Forget() {
  kept_until_ = absl::InfiniteFuture();
  if (std::exchange(forgotten_, true)) return;
  environment_.on_end(job_id_);
}

}  // namespace dmuon::node
