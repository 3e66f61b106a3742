// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// With the coordinator: registrations, plans, calls to meet, parts of checkpoints, the end. See job_plan.cc.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/plan/plan.h"
#include "tests/sim/node_job.h"
#include "wire/error.h"

namespace dmuon::sim {
namespace {

constexpr absl::Duration kResendPeriod = absl::Milliseconds(50);
constexpr absl::Duration kAskPeriod = absl::Milliseconds(100);  // for the other nodes' parts

bool CanComeBack(const v1::Plan& plan, uint32_t self) {
  return !plan.buddies().empty() || plan::OwnsNothing(plan, self);
}

// 0: none.
uint64_t GenerationThatIsOver(const v1::WatchPlansResponse& event) {
  return event.has_end() ? event.end().generation() : event.refusal().generation();
}

}  // namespace

Task<void> NodeJob::SendRegistration(node::SessionId session) {
  const auto it = unsent_.find(session);
  if (it == unsent_.end()) co_return;
  const uint32_t rank = sessions_.at(session)->rank;
  const uint64_t sequence = ++*environment_.registrations;
  v1::RegisterWorkerRequest request = it->second;
  *request.mutable_node() = environment_.node;
  request.set_rank(rank);
  request.set_sequence(sequence);
  const absl::Status status = co_await environment_.link->RegisterWorker(std::move(request));
  if (absl::IsUnavailable(status) || absl::IsNotFound(status)) {
    resend_at_ = world_.now() + kResendPeriod;
    co_return;
  }
  if (status.ok()) {
    spec_ = unsent_.at(session).job();
    accepted_[rank] = {sequence, unsent_.at(session).shards()};
  }
  unsent_.erase(session);
  node::Actions actions = core_.RegistrationAnswered(world_.now(), session, status);
  co_await CarryOut(std::move(actions));
}

Task<void> NodeJob::ResendRegistrations() {
  if (world_.now() < resend_at_) co_return;
  resend_at_ = absl::InfiniteFuture();
  std::vector<node::SessionId> sessions;
  for (const auto& [session, registration] : unsent_) sessions.push_back(session);
  for (size_t i = 0; i < sessions.size(); ++i) co_await SendRegistration(sessions[i]);
}

void NodeJob::RegisterAnew() {
  Post([this] { return DoRegisterAnew(); }, nullptr);
}

Task<void> NodeJob::DoRegisterAnew() {
  if (ended_ || core_.generation() != 0) co_return;
  for (const auto& [session, worker] : sessions_) {
    const auto accepted = accepted_.find(worker->rank);
    if (accepted == accepted_.end() || unsent_.contains(session)) continue;
    v1::RegisterWorkerRequest registration;
    *registration.mutable_job() = spec_;
    *registration.mutable_shards() = accepted->second.shards;
    unsent_[session] = std::move(registration);
    resend_at_ = absl::InfinitePast();
  }
  co_await ResendRegistrations();
}

void NodeJob::OnPlanEvent(v1::WatchPlansResponse event) {
  const uint64_t over = GenerationThatIsOver(event);
  if (over != 0 && peers_ != nullptr && held_.has_plan() && held_.plan().generation() == over) peers_->Cancel();
  Post([this, event = std::move(event)] { return DoPlanEvent(event); }, nullptr);
}

Task<void> NodeJob::DoPlanEvent(v1::WatchPlansResponse event) {
  if (event.has_call()) {
    co_await Meet(event.call());
  } else if (event.has_successor()) {
    co_await OnSuccessor(std::move(event));
  } else if (ended_) {
    co_await OnEventAfterTheEnd(std::move(event));
  } else if (next_ != nullptr && event.plan().generation() == next_->plan.generation()) {
    pipeline_->ConfirmHandover();
    GoOver();
  } else if (core_.generation() != 0) {
    co_await OnLossElsewhere(std::move(event));
  } else if (!event.has_end()) {
    co_await OnPlan(std::move(event));
  }
}

Task<void> NodeJob::OnLossElsewhere(v1::WatchPlansResponse event) {
  if (GenerationThatIsOver(event) != plan_.generation()) co_return;
  world_.Trace(environment_.process->name, job_id_, " is over: ", event.refusal().message());
  const absl::Status why =
      wire::Error(absl::StatusCode::kDataLoss, v1::ERROR_REASON_STATE_LOST, "the state is lost on another node");
  node::Actions actions = core_.Lost(world_.now(), why);
  co_await CarryOut(std::move(actions));
}

Task<void> NodeJob::Meet(v1::Meeting call) {
  if (peers_ == nullptr || !core_.initialized()) co_return;
  if (next_ != nullptr && call.generation() == next_->plan.generation()) pipeline_->ConfirmHandover();
  GoOver();
  if (call.generation() != plan_.generation() || !peers_->Leave(call.attempt())) co_return;
  const absl::Status helped = co_await HelpOthers(peer_timeout_);
  helped.IgnoreError();
}

Task<void> NodeJob::OnPlan(v1::WatchPlansResponse event) {
  const std::vector<uint32_t> answered = AnsweredRanks(event.last_sequence());
  if (event.has_refusal()) {
    const v1::Refusal& refusal = event.refusal();
    const absl::Status why = wire::Error(static_cast<absl::StatusCode>(refusal.code()),
                                         wire::ReasonFromName(refusal.reason()), refusal.message());
    co_await Refuse(answered, why);
    co_return;
  }
  const std::vector<uint32_t> ranks = RanksHere(event.plan());
  if (ranks.empty() || !std::includes(answered.begin(), answered.end(), ranks.begin(), ranks.end())) {
    world_.Trace(environment_.process->name, "generation ", event.plan().generation(), " is older than the registrations here");
    co_return;
  }
  const absl::Status adopted = co_await Adopt(event.plan(), event.routes());
  if (!adopted.ok()) {
    world_.Trace(environment_.process->name, "does not adopt the plan: ", adopted.ToString());
    if (IsForgotten(adopted)) {
      DropPlan();
      RegisterAnew();
      co_return;
    }
    co_await Release(event.plan().generation(), /*in_order=*/false);
    DropPlan();
    co_await Refuse(answered, adopted);
    co_return;
  }
  unsent_.clear();
  const uint32_t self = plan_.rank_nodes(static_cast<int>(ranks.front()));
  node::Actions actions = core_.PlanArrived(world_.now(), plan_.generation(), ranks, CanComeBack(plan_, self));
  co_await CarryOut(std::move(actions));
}

bool NodeJob::IsForgotten(const absl::Status& status) {
  return wire::ReasonOf(status) == v1::ERROR_REASON_UNKNOWN_JOB || wire::ReasonOf(status) == v1::ERROR_REASON_DRAINING;
}

void NodeJob::DropPlan() {
  held_.Clear();
  next_ = nullptr;
  pipeline_ = nullptr;
  peers_ = nullptr;
  plan_.Clear();
}

void NodeJob::HoldPlan() {
  held_.Clear();
  *held_.mutable_plan() = plan_;
  *held_.mutable_job() = spec_;
  for (const uint32_t rank : RanksHere(plan_)) {
    v1::HeldShards& shards = *held_.add_ranks();
    shards.set_rank(rank);
    *shards.mutable_shards() = accepted_.at(rank).shards;
  }
}

std::vector<uint32_t> NodeJob::AnsweredRanks(uint64_t last_sequence) const {
  std::vector<uint32_t> ranks;
  for (const auto& [rank, shards] : accepted_) {
    if (shards.sequence <= last_sequence) ranks.push_back(rank);
  }
  return ranks;
}

Task<void> NodeJob::Refuse(std::vector<uint32_t> ranks, absl::Status why) {
  for (const uint32_t rank : ranks) accepted_.erase(rank);
  node::Actions actions = core_.PlanRefused(world_.now(), ranks, why);
  co_await CarryOut(std::move(actions));
}

std::vector<uint32_t> NodeJob::RanksHere(const v1::Plan& plan) const {
  std::vector<uint32_t> ranks;
  for (int rank = 0; rank < plan.rank_nodes_size(); ++rank) {
    const auto node = static_cast<int>(plan.rank_nodes(rank));
    if (node < plan.nodes_size() && plan.nodes(node) == environment_.node.node_id()) {
      ranks.push_back(static_cast<uint32_t>(rank));
    }
  }
  return ranks;
}

Task<absl::Status> NodeJob::Adopt(v1::Plan plan, v1::Routes routes) {
  const absl::Status valid = plan::ValidatePlan(spec_, plan, routes);
  if (!valid.ok()) co_return valid;
  const std::vector<uint32_t> ranks = RanksHere(plan);
  const uint32_t self = plan.rank_nodes(static_cast<int>(ranks.front()));
  plan_ = std::move(plan);
  HoldPlan();
  if (plan_.nodes_size() > 1) {
    peers_ = std::make_unique<Peers>(cluster_, environment_.process, environment_.link, &plan_, self);
    const absl::Status connected = co_await peers_->Connect(world_.now() + peer_timeout_);
    if (!connected.ok() && (!CanComeBack(plan_, self) || IsForgotten(connected))) co_return connected;
  }
  pipeline_ = std::make_unique<Pipeline>(cluster_, environment_.process, &spec_, &plan_, self, peers_.get());
  RecordAdopted();
  world_.Trace(environment_.process->name, "adopts generation ", plan_.generation(), " of ", job_id_);
  co_return absl::OkStatus();
}

void NodeJob::RecordAdopted() {
  Event event;
  event.what = What::kAdopted;
  event.who = environment_.process->name;
  event.job = job_id_;
  event.life = environment_.process->life;
  event.generation = plan_.generation();
  for (const v1::Unit& unit : plan_.units()) event.digests.push_back(unit.owners(0).node() + 1);
  cluster_->Record(std::move(event));
}

const v1::HeldJob* NodeJob::Held() {
  if (!held_.has_plan()) return nullptr;
  held_.set_last_step(core_.last_step());
  held_.set_has_state(core_.initialized());
  return &held_;
}

Task<void> NodeJob::End(bool in_order) {
  ended_ = true;
  saver_ = Task<void>();
  saving_ = false;
  const bool keep = in_order && peers_ != nullptr;
  world_.Trace(environment_.process->name, job_id_, " has ended", keep ? ", and is kept" : "");
  co_await Release(plan_.generation(), keep);
  if (keep) {
    kept_until_ = world_.now() + orphan_timeout_;
  } else {
    Forget();
  }
}

Task<void> NodeJob::OnEventAfterTheEnd(v1::WatchPlansResponse event) {
  if (kept_until_ == absl::InfiniteFuture()) co_return;  // forgotten
  if (event.has_plan()) {
    if (event.plan().generation() == plan_.generation()) co_await Release(plan_.generation(), /*in_order=*/true);
  } else if (event.has_refusal() || event.end().generation() == plan_.generation()) {
    Forget();
  }
}

Task<void> NodeJob::Release(uint64_t generation, bool in_order) {
  v1::ReleaseJobRequest request;
  request.set_job_id(job_id_);
  request.set_generation(generation);
  request.set_in_order(in_order);
  const absl::Status status = co_await environment_.link->ReleaseJob(std::move(request));
  if (!status.ok()) world_.Trace(environment_.process->name, "cannot release ", job_id_, ": ", status.ToString());
}

void NodeJob::Forget() {
  kept_until_ = absl::InfiniteFuture();
  environment_.on_end(job_id_);
}

Task<void> NodeJob::Save(uint64_t step, Digest part) {
  v1::ReportPartRequest request;
  request.set_job_id(job_id_);
  request.set_generation(plan_.generation());
  request.set_name(absl::StrCat("step-", step));
  request.set_step(step);
  request.mutable_part()->set_node_id(environment_.node.node_id());
  request.mutable_part()->set_file(absl::StrCat("part-", environment_.node.node_id()));
  request.mutable_part()->set_bytes(part);
  request.mutable_part()->set_header_sha256(absl::StrFormat("%064x", part));
  const absl::Time until = world_.now() + peer_timeout_;
  saving_ = true;
  co_await environment_.link->Sleep(world_.random.Spread(absl::Milliseconds(1), absl::Milliseconds(100)));
  while (world_.now() < until) {
    const auto answer = co_await environment_.link->ReportPart(request);
    const bool half = cluster_->Planted(Plant::kHalfCheckpoint) && answer.ok() && answer->parts().empty();
    if (answer.ok() && (answer->parts_size() > 0 || half)) {
      Event event;
      event.what = What::kSaved;
      event.who = environment_.process->name;
      event.job = job_id_;
      event.generation = plan_.generation();
      event.step = step;
      event.digest = part;
      for (const v1::CheckpointPart& of : answer->parts()) event.digests.push_back(of.bytes());
      event.number = static_cast<uint64_t>(plan_.nodes_size());
      cluster_->Record(std::move(event));
      break;
    }
    if (answer.ok() && !answer->failure().empty()) break;
    co_await environment_.link->Sleep(kAskPeriod);
  }
  saving_ = false;
}

}  // namespace dmuon::sim
