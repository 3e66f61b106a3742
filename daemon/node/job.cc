// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/job.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/base/sha256.h"
#include "daemon/plan/plan.h"
#include "wire/error.h"

namespace dmuon::node {
namespace {

// A coordinator that does not answer holds nobody up for longer.
constexpr absl::Duration kTellState = absl::Seconds(1);
constexpr size_t kMaxQueuedInputs = 100'000;  // a bound for a flood; a job queues a few a worker

// What must be the same on all workers: equal settings, equal bytes.
std::string Serialized(const v1::StepRequest& request) {
  v1::StepRequest settings_only;
  *settings_only.mutable_hypers() = request.hypers();
  *settings_only.mutable_row_factors() = request.row_factors();
  return settings_only.SerializeAsString();
}

absl::Status ValidateSettings(const v1::JobSpec& job, const v1::StepRequest& request) {
  std::vector<const v1::Hyper*> hypers;
  for (const v1::Hyper& hyper : request.hypers()) hypers.push_back(&hyper);
  DMUON_RETURN_IF_ERROR(wire::ValidateHypers(job, hypers));
  for (const v1::RowFactors& rows : request.row_factors()) {
    DMUON_RETURN_IF_ERROR(wire::ValidateRowFactors(job, rows));
  }
  return absl::OkStatus();
}

// Stands for the content of a registration: job and shards, not the session.
std::string Digest(const v1::RegisterRequest& request) {
  v1::RegisterRequest shards_only;
  *shards_only.mutable_shards() = request.shards();
  const std::array parts = {request.job().SerializeAsString(), shards_only.SerializeAsString()};
  return Sha256Hex(parts);
}

template <typename... Fns>
struct Overloaded : Fns... {
  using Fns::operator()...;
};
template <typename... Fns>
Overloaded(Fns...) -> Overloaded<Fns...>;

}  // namespace

Job::Job(JobCoreOptions options, JobEnvironment environment)
    : job_id_(options.job_id),
      world_size_(options.world_size),
      peer_timeout_(options.peer_timeout),
      orphan_timeout_(options.orphan_timeout),
      environment_(std::move(environment)),
      core_(std::move(options)) {
  PublishSnapshot();
  thread_ = std::thread([this] { Loop(); });
}

Job::~Job() {
  {
    wire::MutexLock lock(mu_);
    stopping_ = true;
    if (to_cancel_ != nullptr) to_cancel_->Cancel();
  }
  posted_.NotifyAll();
  thread_.join();
  checkpoints_.reset();  // ends what is being written, which posts to this job
  environment_.metrics->RemoveJob(job_id_);
}

void Job::Post(std::function<void()> input) {
  {
    wire::MutexLock lock(mu_);
    // Dropping answers the caller: the input's reply object answers UNAVAILABLE when it dies.
    if (stopping_ || inputs_.size() >= kMaxQueuedInputs) return;
    inputs_.push_back(std::move(input));
  }
  posted_.NotifyOne();
}

void Job::Loop() {
  while (true) {
    std::function<void()> input;
    {
      wire::MutexLock lock(mu_);
      while (inputs_.empty() && !stopping_ && NextFollow() > MonotonicNow()) {
        const absl::Time next = NextLook();
        const absl::Time now = MonotonicNow();
        if (next <= now) break;
        if (next == absl::InfiniteFuture()) {
          posted_.Wait(mu_);
        } else {
          posted_.WaitUntil(mu_, std::chrono::steady_clock::now() +
                                     absl::ToChronoNanoseconds(next - now));
        }
      }
      if (stopping_) break;
      if (!inputs_.empty()) {
        input = std::move(inputs_.front());
        inputs_.pop_front();
      }
    }
    if (input) {
      input();
    } else if (NextFollow() <= MonotonicNow()) {
      Follow();
    }
    LookForGradients();
    MeetForSuccessor();
    ResendRegistrations();
    CarryOut(core_.Tick(MonotonicNow()));
    if (checkpoints_ != nullptr) checkpoints_->Tick(MonotonicNow());
    if (MonotonicNow() >= kept_until_) Forget();
    PublishSnapshot();
  }
  for (auto& [ticket, reply] : replies_) reply(wire::Draining(absl::StrCat("job '", job_id_, "'")));
  replies_.clear();
}

absl::Time Job::NextLook() const {
  const absl::Time checkpoints = checkpoints_ == nullptr ? absl::InfiniteFuture() : checkpoints_->next_deadline();
  return std::min({core_.next_deadline(), resend_at_, kept_until_, look_at_, meet_at_, checkpoints, NextFollow()});
}

// Between the inputs, so that none waits for more than a bucket.
void Job::LookForGradients() {
  const absl::Time now = MonotonicNow();
  if (now >= look_at_) look_at_ = now + pipeline_->Ahead();
}

Ticket Job::Await(ReplyAny reply) {
  const Ticket ticket = next_ticket_++;
  replies_.emplace(ticket, std::move(reply));
  return ticket;
}

void Job::Open(std::shared_ptr<WorkerSession> session, Reply<v1::OpenResponse> reply) {
  Post([this, session = std::move(session), reply = std::move(reply)] {
    if (ended_) return reply(wire::Draining(absl::StrCat("job '", job_id_, "'")));
    ReplaceDeadSession(*session);
    const absl::Status status = core_.Open(MonotonicNow(), session->rank(), session->id());
    environment_.metrics->Increment(MetricId::kAttach, {status.ok() ? "ok" : "error"});
    if (!status.ok()) return reply(status);
    sessions_[session->id()] = session;
    v1::OpenResponse response;
    response.set_session_id(session->id());
    response.set_token(session->token().data(), session->token().size());
    reply(std::move(response));
  });
}

// A worker that restarts fast may come before the end of its old channel was seen, and one that lost
// the answer to its Open comes again as the same incarnation.
void Job::ReplaceDeadSession(const WorkerSession& successor) {
  for (const auto& [id, session] : sessions_) {
    if (session->rank() != successor.rank()) continue;
    if (session->Alive() && session->incarnation() != successor.incarnation()) return;
    LogInfo("job ", job_id_, ": rank ", successor.rank(), " is replaced by ",
            successor.incarnation());
    Actions actions = core_.Gone(MonotonicNow(), id);
    // The last worker of a job that has not begun: it does not end with it, for here is the next one.
    std::erase_if(actions, [](const Action& action) { return std::holds_alternative<action::EndJob>(action); });
    CarryOut(std::move(actions));
    return;
  }
}

void Job::Register(SessionId session, absl::Time deadline, v1::RegisterRequest request,
                   std::vector<wire::ShardBoxes> boxes, Reply<v1::RegisterResponse> reply) {
  auto digest = Digest(request);  // on the caller's thread: it may be large
  Post([this, session, deadline, request = std::move(request), boxes = std::move(boxes),
        digest = std::move(digest), reply = std::move(reply)]() mutable {
    const auto it = sessions_.find(session);
    const Ticket ticket = Await([this, session, reply](const absl::Status& status) {
      if (!status.ok()) return reply(status);
      reply(RegisteredResponse(session));
    });
    if (it != sessions_.end() && core_.generation() == 0) {
      unsent_[session] = {std::move(request), std::move(boxes)};
    }
    CarryOut(core_.Register(MonotonicNow(), session, ticket, deadline, digest));
  });
}

void Job::Begin(absl::Time deadline, const v1::BeginRequest& request,
                Reply<v1::BeginResponse> reply) {
  Post([this, deadline, request, reply = std::move(reply)] {
    if (absl::Status status = ConcludeStep(); !status.ok()) return reply(status);
    const bool resumed = core_.initialized();
    const Ticket ticket = Await([this, resumed, reply](const absl::Status& status) {
      if (!status.ok()) return reply(status);
      v1::BeginResponse response;
      response.set_last_step(core_.last_step());
      response.set_resumed(resumed || pipeline_->recoveries() > 0 || pipeline_->readmitted() || pipeline_->reached_step() > 0);
      reply(std::move(response));
    });
    CarryOut(core_.Begin(MonotonicNow(), request.session_id(), ticket, deadline,
                         request.generation(), request.must_resume()));
  });
}

void Job::Step(SessionId session, absl::Time deadline, v1::StepRequest request,
               Reply<v1::StepResponse> reply) {
  Post([this, session, deadline, request = std::move(request), reply = std::move(reply)]() mutable {
    const auto referral = referrals_.extract(session);
    if (!referral.empty() && referral.mapped().step == request.step()) {
      return reply(std::move(referral.mapped().result));
    }
    ArriveAtStep(session, deadline, std::move(request), std::move(reply));
  });
}

void Job::Ring(SessionId session, absl::Time deadline, v1::StepRequest request) {
  Post([this, session, deadline, request = std::move(request)]() mutable {
    referrals_.erase(session);
    const uint64_t step = request.step();
    ArriveAtStep(session, deadline, std::move(request),
                 [this, session, step](absl::StatusOr<v1::StepResponse> result) {
                   Refer(session, step, std::move(result));
                 });
  });
}

// Applied: the arena has the answer. Cancelled: nobody wants it.
void Job::Refer(SessionId session, uint64_t step, absl::StatusOr<v1::StepResponse> result) {
  const auto it = sessions_.find(session);
  if (it == sessions_.end() || workers_ == nullptr || absl::IsCancelled(result.status())) return;
  if (result.ok() && !result->skipped() && !result->replayed()) return;
  referrals_.insert_or_assign(session, Referral{step, std::move(result)});
  workers_->Refer(it->second->rank(), step);
}

void Job::ArriveAtStep(SessionId session, absl::Time deadline, v1::StepRequest request,
                       Reply<v1::StepResponse> reply) {
  const uint64_t step = request.step();
  if (core_.steps_arrived() == 0) first_arrival_ = MonotonicNow();
  CountWait(session, request.waited_seconds());
  const bool replayed = step == core_.last_step();
  if (absl::Status status = replayed ? ConcludeRecovery() : absl::OkStatus(); !status.ok()) return reply(status);
  const Ticket ticket =
      Await([this, step, replayed, reply = std::move(reply)](const absl::Status& status) {
        if (!status.ok()) return reply(status);
        reply(SteppedResponse(step, replayed));
      });
  const std::string hypers = Serialized(request);
  if (absl::Status status = ValidateSettings(spec_, request);
      !status.ok() && core_.generation() != 0) {
    CarryOut({action::ReplyTo{ticket, status}});
    return;
  }
  const uint64_t generation = request.generation();
  step_request_ = std::move(request);
  CarryOut(core_.Step(MonotonicNow(), session, ticket, deadline, generation, step, hypers));
  if (replayed) environment_.metrics->Increment(MetricId::kSteps, {job_id_, "replayed"});
}

void Job::ExpectGradients(uint64_t generation, uint64_t step) {
  Post([this, generation, step] {
    if (!core_.initialized() || generation != core_.generation() || step != core_.last_step() + 1) return;
    look_at_ = MonotonicNow();
  });
}

void Job::Close(SessionId session, Reply<v1::CloseResponse> reply) {
  Post([this, session, reply = std::move(reply)] {
    const Ticket ticket = Await([reply](const absl::Status& status) {
      if (!status.ok()) return reply(status);
      reply(v1::CloseResponse());
    });
    TellSaves();
    CarryOut(core_.Close(MonotonicNow(), session, ticket));
  });
}

void Job::Gone(SessionId session) {
  Post([this, session] {
    const auto it = sessions_.find(session);
    if (it == sessions_.end()) return;  // closed in order
    LogWarning("job ", job_id_, ": the worker of rank ", it->second->rank(), " is gone (",
               it->second->incarnation(), ")");
    environment_.metrics->Increment(MetricId::kWorkerDeaths, {job_id_});
    CarryOut(core_.Gone(MonotonicNow(), session));
  });
}

void Job::CarryOut(Actions actions) {
  for (Action& action : actions) {
    std::visit(
        Overloaded{
            [&](action::ReplyTo& reply) {
              auto node = replies_.extract(reply.ticket);
              if (!node.empty()) node.mapped()(reply.status);
            },
            [&](action::SendRegistration& send) { SendRegistration(send.session); },
            [&](action::GiveArena& give) {
              CarryOut(core_.ArenaGiven(MonotonicNow(), give.session, GiveArena(give.session)));
            },
            [&](action::Initialize& initialize) {
              Initialize(initialize.resume, initialize.deadline);
            },
            [&](action::Deliver& deliver) {
              pipeline_->Deliver(core_.last_step(), sessions_.at(deliver.session)->rank());
            },
            [&](action::RunStep& run) { RunStep(run.step, run.deadline); },
            [&](action::Restore& restore) { RunRestore(restore.name, restore.deadline); },
            [&](action::DropSession& drop) { DropSession(drop.session); },
            [&](action::EndJob& end) { End(end.in_order); },
        },
        action);
  }
}

absl::Status Job::GiveArena(SessionId session) {
  WorkerSession& worker = *sessions_.at(session);
  const uint32_t rank = worker.rank();
  workers_->SetArena(rank, nullptr);
  worker.arena = wire::Arena();
  worker.arena_share = MemoryBudget::Share();
  const uint64_t limit = environment_.budget->limit_bytes();
  DMUON_ASSIGN_OR_RETURN(const wire::ArenaLayout layout,
                         wire::LayOut(spec_, workers_->shards(rank), limit));
  DMUON_ASSIGN_OR_RETURN(worker.arena_share,
                         environment_.budget->Take(layout.total_bytes,
                                                   absl::StrCat("the arena of rank ", rank)));
  DMUON_ASSIGN_OR_RETURN(worker.arena, wire::Arena::Create(layout, core_.generation()));
  workers_->SetArena(rank, &worker.arena);
  wire::ChannelFrame frame;
  frame.type = wire::FrameType::kArena;
  frame.session_id = session;
  frame.generation = core_.generation();
  frame.bytes = layout.total_bytes;
  return worker.Send(frame, worker.arena.fd());
}

void Job::RunStep(uint64_t step, absl::Time deadline) {
  StepSettings settings;
  for (const v1::Hyper& hyper : step_request_.hypers()) settings.hypers.push_back(ToHyper(hyper));
  settings.row_factors.assign(step_request_.row_factors().begin(), step_request_.row_factors().end());
  look_at_ = absl::InfiniteFuture();
  StepReport report;
  const absl::Time begin = MonotonicNow();
  const absl::Status status =
      Together([&] { return pipeline_->Run(step, settings, deadline, report, checkpoints_->WishFor(step)); });
  const double seconds = absl::ToDoubleSeconds(MonotonicNow() - begin);
  environment_.metrics->Observe(MetricId::kStepBarrierWait, {job_id_},
                                absl::ToDoubleSeconds(begin - first_arrival_));
  CountStep(status, report, seconds);
  CountTraffic();
  if (status.ok()) {
    last_report_ = report;
    last_seconds_ = seconds;
    // Before the answers to the RPCs, which take far longer.
    if (!report.verdict.skip) workers_->Answer(step, Answer());
    checkpoints_->StepDone(step, report.save);
  }
  if (!TakeLoss(status)) CarryOut(core_.StepDone(MonotonicNow(), status));
}

void Job::Initialize(bool resume, absl::Time deadline) {
  const absl::Time begin = MonotonicNow();
  const absl::Status status = pipeline_->Initialize(deadline, resume);
  EndMeeting();
  const bool recovered = pipeline_->recoveries() > 0 || (status.ok() && pipeline_->reached_step() > 0);
  if (status.ok() && recovered) NoteRecovery(MonotonicNow() - begin);
  if (status.ok() && pipeline_->replicas().on()) TellState(recovered);
  if (status.ok() && recovered && pipeline_->replicas().on()) last_report_.verdict = pipeline_->verdict();
  if (!TakeLoss(status)) {
    CarryOut(core_.Initialized(MonotonicNow(), status, status.ok() ? pipeline_->reached_step() : 0));
  }
}

// The coordinator may take this process for one that has yet to get its state back, and, should its buddy be lost, the state
// for lost. Before anybody goes on from it, where it is back.
void Job::TellState(bool recovered) {
  {
    wire::MutexLock lock(mu_);
    has_state_ = true;
  }
  environment_.link->Rejoin();
  if (!recovered || environment_.link->AwaitRejoin(kTellState)) return;
  LogWarning("job ", job_id_, ": the coordinator has not heard within ", absl::FormatDuration(kTellState), " that this node has its state back");
}

// After a meeting of the nodes: whether it ended with less than there was, so that it has been dealt with here.
bool Job::TakeLoss(const absl::Status& status) {
  if (absl::IsDataLoss(status) && wire::ReasonOf(status) == v1::ERROR_REASON_STATE_LOST) {
    LogError("job ", job_id_, ": ", status.message());
    CarryOut(core_.Lost(MonotonicNow(), status));
    return true;
  }
  const uint64_t reached = pipeline_->reached_step();
  if (!pipeline_->TakeWentBack() || !core_.initialized() || reached >= core_.last_step()) return false;
  if (ended_) {  // nobody is here any more who could do it again
    const std::string why = absl::StrCat("job '", job_id_, "': step ", core_.last_step(), " is undone, because a node was lost, "
                                         "and the workers of node ", environment_.node.node_id(), " have left");
    return TakeLoss(wire::Error(absl::StatusCode::kDataLoss, v1::ERROR_REASON_STATE_LOST, why));
  }
  checkpoints_->WentBack();
  environment_.metrics->Increment(MetricId::kStepsLost, {job_id_}, static_cast<double>(core_.last_step() - reached));
  const absl::Status why =
      wire::ReasonOf(status) == v1::ERROR_REASON_ROLLED_BACK
          ? status
          : wire::Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_ROLLED_BACK,
                        absl::StrCat("job '", job_id_, "' has gone back from step ", core_.last_step(), " to step ", reached,
                                     ", because a node was lost; begin again"));
  CarryOut(core_.WentBack(MonotonicNow(), reached, why));
  return true;
}

// Of a recovery that broke off, no worker is given the parameters.
absl::Status Job::ConcludeRecovery() {
  if (!core_.initialized() || !pipeline_->recovering()) return absl::OkStatus();
  HelpOthers(peer_timeout_).IgnoreError();  // whatever it ends with, the question is whether all have
  if (!pipeline_->recovering()) return absl::OkStatus();
  return wire::Error(absl::StatusCode::kAborted, v1::ERROR_REASON_PEER_LOST,
                     absl::StrCat("job '", job_id_, "': not all nodes are known to have gone to step ",
                                  pipeline_->reached_step(), " after one was lost"));
}

// A step that this node has applied, while another node is not known to have: before a worker is told
// of the state, it is made sure of.
absl::Status Job::ConcludeStep() {
  DMUON_RETURN_IF_ERROR(ConcludeRecovery());
  if (!core_.initialized() || !pipeline_->IsAheadOf(core_.last_step())) return absl::OkStatus();
  RunStep(core_.last_step() + 1, MonotonicNow() + peer_timeout_);
  if (!pipeline_->IsAheadOf(core_.last_step())) return absl::OkStatus();
  return wire::Error(absl::StatusCode::kAborted, v1::ERROR_REASON_PEER_LOST,
                     absl::StrCat("step ", core_.last_step() + 1, " of job '", job_id_,
                                  "' is applied here and not yet known to be on every node"));
}

void Job::DropSession(SessionId session) {
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return;
  if (workers_) workers_->SetArena(it->second->rank(), nullptr);
  it->second->arena = wire::Arena();
  it->second->arena_share = MemoryBudget::Share();
  it->second->given.reset();
  unsent_.erase(session);
  referrals_.erase(session);
  sessions_.erase(it);
  environment_.on_session_dropped(session);
}

}  // namespace dmuon::node
