// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What workers ask of a job, and its thread. The other half is node_job_plan.cc.

#include "tests/sim/node_job.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "wire/error.h"

namespace dmuon::sim {
namespace {

namespace action = node::action;

template <typename R>
std::function<void(const absl::Status&)> Refusal(const Reply<R>& reply) {
  return [reply](const absl::Status& status) { reply(status); };
}

}  // namespace

NodeJob::NodeJob(Cluster* cluster, node::JobCoreOptions options, Environment environment)
    : cluster_(cluster),
      world_(cluster->world),
      job_id_(options.job_id),
      peer_timeout_(options.peer_timeout),
      orphan_timeout_(options.orphan_timeout),
      environment_(std::move(environment)),
      core_(std::move(options)),
      posted_(&cluster->world, environment_.process),
      loop_(Loop()) {
  loop_.Start();
}

NodeJob::~NodeJob() {
  if (!environment_.process->up) return;  // it crashes: nobody answers
  const absl::Status gone = wire::Draining(absl::StrCat("job '", job_id_, "'"));
  for (auto& [ticket, reply] : replies_) reply(gone);
  for (Input& input : inputs_) {
    if (input.refuse) input.refuse(gone);
  }
}

void NodeJob::Post(std::function<Task<void>()> run, ReplyAny refuse) {
  inputs_.push_back({std::move(run), std::move(refuse)});
  posted_.Notify();
}

Task<void> NodeJob::Loop() {
  while (true) {
    while (inputs_.empty() && NextLook() > world_.now()) co_await posted_.Until(NextLook());
    if (!inputs_.empty()) {
      const Input input = std::move(inputs_.front());
      inputs_.pop_front();
      co_await input.run();
    }
    co_await ResendRegistrations();
    node::Actions actions = core_.Tick(world_.now());
    co_await CarryOut(std::move(actions));
    if (world_.now() >= kept_until_) Forget();
  }
}

absl::Time NodeJob::NextLook() const { return std::min({core_.next_deadline(), resend_at_, kept_until_}); }

node::Ticket NodeJob::Await(ReplyAny reply) {
  replies_.emplace(next_ticket_, std::move(reply));
  return next_ticket_++;
}

Task<void> NodeJob::CarryOut(node::Actions actions) {
  for (size_t i = 0; i < actions.size(); ++i) co_await CarryOutOne(actions[i]);
}

Task<void> NodeJob::CarryOutOne(node::Action action) {
  if (const auto* reply = std::get_if<action::ReplyTo>(&action)) {
    auto waiting = replies_.extract(reply->ticket);
    if (!waiting.empty()) waiting.mapped()(reply->status);
  } else if (const auto* send = std::get_if<action::SendRegistration>(&action)) {
    co_await SendRegistration(send->session);
  } else if (const auto* give = std::get_if<action::GiveArena>(&action)) {
    const absl::Status given = GiveArena(give->session);
    node::Actions actions = core_.ArenaGiven(world_.now(), give->session, given);
    co_await CarryOut(std::move(actions));
  } else if (const auto* initialize = std::get_if<action::Initialize>(&action)) {
    co_await Initialize(initialize->resume, initialize->deadline);
  } else if (const auto* deliver = std::get_if<action::Deliver>(&action)) {
    pipeline_->Deliver(core_.last_step(), sessions_.at(deliver->session)->rank);
  } else if (const auto* run = std::get_if<action::RunStep>(&action)) {
    co_await RunStep(run->step, run->deadline);
  } else if (const auto* drop = std::get_if<action::DropSession>(&action)) {
    DropSession(drop->session);
  } else if (const auto* end = std::get_if<action::EndJob>(&action)) {
    co_await End(end->in_order);
  }
}

void NodeJob::Open(std::shared_ptr<Session> session, Reply<node::SessionId> reply) {
  Post([this, session = std::move(session), reply] { return DoOpen(session, reply); }, Refusal(reply));
}

Task<void> NodeJob::DoOpen(std::shared_ptr<Session> session, Reply<node::SessionId> reply) {
  if (ended_) {
    reply(wire::Draining(absl::StrCat("job '", job_id_, "'")));
    co_return;
  }
  // ReplaceDeadSession.
  for (const auto& [id, other] : sessions_) {
    if (other->rank != session->rank) continue;
    if (other->connected && other->incarnation != session->incarnation) break;
    const node::SessionId replaced = id;
    node::Actions actions = core_.Gone(world_.now(), replaced);
    std::erase_if(actions, [](const node::Action& of) { return std::holds_alternative<action::EndJob>(of); });
    co_await CarryOut(std::move(actions));
    break;
  }
  const absl::Status status = core_.Open(world_.now(), session->rank, session->id);
  if (status.ok()) {
    sessions_[session->id] = session;
    reply(session->id);
  } else {
    reply(status);
  }
}

void NodeJob::Register(node::SessionId session, absl::Time until, v1::RegisterWorkerRequest request,
                       Reply<Registered> reply) {
  Post([this, session, until, request = std::move(request), reply] { return DoRegister(session, until, request, reply); },
       Refusal(reply));
}

Task<void> NodeJob::DoRegister(node::SessionId session, absl::Time until, v1::RegisterWorkerRequest request,
                               Reply<Registered> reply) {
  const bool known = sessions_.contains(session);
  const node::Ticket ticket = Await([this, session, reply](const absl::Status& status) {
    if (!status.ok()) return reply(status);
    reply(Registered{core_.generation(), sessions_.at(session)->arena});
  });
  if (known && core_.generation() == 0) unsent_[session] = std::move(request);
  node::Actions actions = core_.Register(world_.now(), session, ticket, until, "shards");
  co_await CarryOut(std::move(actions));
}

void NodeJob::Begin(absl::Time until, v1::BeginRequest request, Reply<v1::BeginResponse> reply) {
  Post([this, until, request = std::move(request), reply] { return DoBegin(until, request, reply); }, Refusal(reply));
}

Task<void> NodeJob::DoBegin(absl::Time until, v1::BeginRequest request, Reply<v1::BeginResponse> reply) {
  const absl::Status concluded = co_await ConcludeStep();
  if (!concluded.ok()) {
    reply(concluded);
    co_return;
  }
  const bool resumed = core_.initialized();
  const node::Ticket ticket = Await([this, resumed, reply](const absl::Status& status) {
    if (!status.ok()) return reply(status);
    v1::BeginResponse response;
    response.set_last_step(core_.last_step());
    response.set_resumed(resumed || pipeline_->recoveries() > 0 || pipeline_->readmitted() || pipeline_->reached_step() > 0);
    reply(std::move(response));
  });
  const bool must_resume = request.must_resume() && !cluster_->Planted(Plant::kSilentRestart);
  node::Actions actions = core_.Begin(world_.now(), request.session_id(), ticket, until, request.generation(), must_resume);
  co_await CarryOut(std::move(actions));
}

void NodeJob::Step(absl::Time until, v1::StepRequest request, Reply<v1::StepResponse> reply) {
  Post([this, until, request = std::move(request), reply] { return DoStep(until, request, reply); }, Refusal(reply));
}

Task<void> NodeJob::DoStep(absl::Time until, v1::StepRequest request, Reply<v1::StepResponse> reply) {
  const uint64_t step = request.step();
  const bool replayed = step == core_.last_step();
  if (replayed) {
    const absl::Status recovered = co_await ConcludeRecovery();
    if (!recovered.ok()) {
      reply(recovered);
      co_return;
    }
  }
  const node::Ticket ticket = Await([this, step, replayed, reply](const absl::Status& status) {
    if (!status.ok()) return reply(status);
    if (replayed && cluster_->Planted(Plant::kUnansweredStep)) return;
    v1::StepResponse response;
    response.set_step(step);
    response.set_replayed(replayed);
    reply(std::move(response));
  });
  hypers_ = absl::StrCat(request.hypers_size() > 0 ? request.hypers(0).lr() : 0.0);
  node::Actions actions = core_.Step(world_.now(), request.session_id(), ticket, until, request.generation(), step, hypers_);
  co_await CarryOut(std::move(actions));
}

void NodeJob::Close(node::SessionId session, Reply<Nothing> reply) {
  Post([this, session, reply] { return DoClose(session, reply); }, Refusal(reply));
}

Task<void> NodeJob::DoClose(node::SessionId session, Reply<Nothing> reply) {
  const node::Ticket ticket = Await([reply](const absl::Status& status) {
    if (!status.ok()) return reply(status);
    reply(Nothing());
  });
  node::Actions actions = core_.Close(world_.now(), session, ticket);
  co_await CarryOut(std::move(actions));
}

void NodeJob::Gone(node::SessionId session) {
  Post([this, session] { return DoGone(session); }, nullptr);
}

Task<void> NodeJob::DoGone(node::SessionId session) {
  if (!sessions_.contains(session)) co_return;
  world_.Trace(environment_.process->name, "the worker of rank ", sessions_.at(session)->rank, " is gone");
  node::Actions actions = core_.Gone(world_.now(), session);
  co_await CarryOut(std::move(actions));
}

absl::Status NodeJob::GiveArena(node::SessionId session) {
  Session& worker = *sessions_.at(session);
  worker.arena = std::make_shared<Arena>();
  worker.arena->params.resize(static_cast<size_t>(plan_.units_size()));
  worker.arena->grads.resize(static_cast<size_t>(plan_.units_size()));
  pipeline_->SetArena(worker.rank, worker.arena);
  return absl::OkStatus();
}

void NodeJob::DropSession(node::SessionId session) {
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return;
  if (pipeline_ != nullptr) pipeline_->SetArena(it->second->rank, nullptr);
  unsent_.erase(session);
  sessions_.erase(it);
  environment_.on_session_dropped(session);
}

Task<void> NodeJob::RunStep(uint64_t step, absl::Time until) {
  absl::Status status = co_await pipeline_->Run(step, hypers_, until);
  while (co_await EndMeeting()) status = co_await pipeline_->Run(step, hypers_, until);
  if (status.ok() && step % 2 == 0 && !ended_) {
    saver_ = Save(step, pipeline_->PartDigest());  // ends the one before
    saver_.Start();
  }
  const bool lost = co_await TakeLoss(status);
  if (lost) co_return;
  node::Actions actions = core_.StepDone(world_.now(), status);
  co_await CarryOut(std::move(actions));
}

Task<void> NodeJob::Initialize(bool resume, absl::Time until) {
  const absl::Status status = co_await pipeline_->Initialize(until, resume);
  co_await EndMeeting();
  const bool lost = co_await TakeLoss(status);
  if (!lost) {
    node::Actions actions = core_.Initialized(world_.now(), status, status.ok() ? pipeline_->reached_step() : 0);
    co_await CarryOut(std::move(actions));
  }
  if (status.ok() && !plan_.buddies().empty()) environment_.link->Rejoin();
}

Task<bool> NodeJob::TakeLoss(absl::Status status) {
  if (absl::IsDataLoss(status) && wire::ReasonOf(status) == v1::ERROR_REASON_STATE_LOST) {
    node::Actions actions = core_.Lost(world_.now(), status);
    co_await CarryOut(std::move(actions));
    co_return true;
  }
  const uint64_t reached = pipeline_->reached_step();
  if (!pipeline_->TakeWentBack() || !core_.initialized() || reached >= core_.last_step()) co_return false;
  if (ended_) {
    const absl::Status undone = wire::Error(absl::StatusCode::kDataLoss, v1::ERROR_REASON_STATE_LOST, "the workers have left");
    co_return co_await TakeLoss(undone);
  }
  world_.Trace(environment_.process->name, "has gone back from step ", core_.last_step(), " to step ", reached);
  const absl::Status why = wire::ReasonOf(status) == v1::ERROR_REASON_ROLLED_BACK
                               ? status
                               : wire::Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_ROLLED_BACK,
                                             absl::StrCat("gone back to step ", reached));
  node::Actions actions = core_.WentBack(world_.now(), reached, why);
  co_await CarryOut(std::move(actions));
  co_return true;
}

Task<absl::Status> NodeJob::ConcludeRecovery() {
  if (!core_.initialized() || !pipeline_->recovering()) co_return absl::OkStatus();
  const absl::Status helped = co_await HelpOthers(peer_timeout_);
  helped.IgnoreError();
  if (!pipeline_->recovering()) co_return absl::OkStatus();
  co_return wire::Error(absl::StatusCode::kAborted, v1::ERROR_REASON_PEER_LOST, "a recovery is not over");
}

Task<absl::Status> NodeJob::ConcludeStep() {
  const absl::Status recovered = co_await ConcludeRecovery();
  if (!recovered.ok()) co_return recovered;
  if (!core_.initialized() || !pipeline_->IsAheadOf(core_.last_step())) co_return absl::OkStatus();
  co_await RunStep(core_.last_step() + 1, world_.now() + peer_timeout_);
  if (!pipeline_->IsAheadOf(core_.last_step())) co_return absl::OkStatus();
  co_return wire::Error(absl::StatusCode::kAborted, v1::ERROR_REASON_PEER_LOST, "a step is not concluded");
}

}  // namespace dmuon::sim
