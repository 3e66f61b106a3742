// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "tests/sim/worker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "wire/error.h"

namespace dmuon::sim {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(20);
constexpr absl::Duration kLongestPause = absl::Seconds(1);
constexpr absl::Duration kRankGrace = absl::Seconds(1);
constexpr int kPatience = 4;  // how often the trainer calls again before it ends

bool IsConnectionLost(const absl::Status& status) {
  return wire::ReasonOf(status) == v1::ERROR_REASON_UNKNOWN_SESSION || absl::IsUnavailable(status);
}
bool IsPeerLost(const absl::Status& status) { return wire::ReasonOf(status) == v1::ERROR_REASON_PEER_LOST; }
// That the state is lost, or that nobody knows the job any more, which is what workers of the other nodes hear today.
bool IsTheEnd(const absl::Status& status) {
  const v1::ErrorReason reason = wire::ReasonOf(status);
  return reason == v1::ERROR_REASON_STATE_LOST || reason == v1::ERROR_REASON_UNKNOWN_JOB;
}
bool IsRolledBack(const absl::Status& status) { return wire::ReasonOf(status) == v1::ERROR_REASON_ROLLED_BACK; }
bool IsBareTimeout(const absl::Status& status) {
  return absl::IsDeadlineExceeded(status) && wire::ReasonOf(status) == v1::ERROR_REASON_UNSPECIFIED;
}

}  // namespace

WorkerProcess::WorkerProcess(Cluster* cluster, NodeProcess* node, uint32_t rank)
    : cluster_(cluster), node_(node), rank_(rank), clock_(&cluster->world, &process) {
  process.name = absl::StrCat("rank-", rank);
}

Event WorkerProcess::EventOf(What what) const {
  Event event;
  event.what = what;
  event.who = process.name;
  event.job = options_.registration.job().job_id();
  event.life = process.life;
  event.generation = generation_;
  return event;
}

void WorkerProcess::Start(const Options& options) {
  main_ = Task<void>();
  options_ = options;
  process.up = true;
  ++process.life;
  end_ = WorkerEnd::kRuns;
  ever_begun_ = attached_ = begun_ = closing_ = false;
  opened_ = session_ = generation_ = 0;
  arena_ = nullptr;
  pause_ = absl::ZeroDuration();
  cluster_->Record(EventOf(What::kStarted));
  cluster_->world.Trace(process.name, "starts, life ", process.life, ", ", options_.registration.job().job_id());
  main_ = Main();
  main_.Start();
}

void WorkerProcess::Crash() {
  if (!process.up || end_ != WorkerEnd::kRuns) return;
  cluster_->world.Trace(process.name, "CRASHES");
  cluster_->Record(EventOf(What::kCrashed));
  Finish(closing_ ? WorkerEnd::kDone : WorkerEnd::kCrashed);  // its training was over
  process.up = false;
  process.frozen_until = absl::InfinitePast();
  main_ = Task<void>();
}

// The process is over: the daemon sees its channel end.
void WorkerProcess::Finish(WorkerEnd end) {
  end_ = end;
  Event event = EventOf(What::kLeft);
  event.flag = end == WorkerEnd::kDone;
  event.number = static_cast<uint64_t>(end);
  cluster_->Record(std::move(event));
  cluster_->world.Trace(process.name, "ends", end == WorkerEnd::kDone ? " in order" : "");
  DropSession();
}

std::string WorkerProcess::Describe() const {
  return end_ == WorkerEnd::kRuns ? absl::StrCat(process.name, ": ", doing_, "; ") : "";
}

Task<void> WorkerProcess::Main() {
  uint64_t step = 0;
  absl::Status status = co_await BeginTraining(&step);
  while (status.ok() && step < options_.goal) status = co_await TrainStep(&step);
  if (status.ok()) {
    doing_ = "closes";
    closing_ = true;
    co_await Close();
    Finish(WorkerEnd::kDone);
  } else {
    // A job that ends before it has begun is registered anew.
    const bool over = IsTheEnd(status) && (ever_begun_ || wire::ReasonOf(status) == v1::ERROR_REASON_STATE_LOST);
    Event event = EventOf(What::kTold);
    event.flag = over;
    event.step = ever_begun_ ? step + 1 : 0;
    event.status = status;
    cluster_->Record(std::move(event));
    Finish(over ? WorkerEnd::kLost : WorkerEnd::kGaveUp);
  }
}

Task<absl::Status> WorkerProcess::BeginTraining(uint64_t* last_step) {
  absl::Status status;
  for (int i = 0; i < kPatience; ++i) {
    doing_ = "begins";
    status = absl::OkStatus();
    if (session_ == 0) {
      const absl::Time now = cluster_->world.now();
      status = co_await Connect(CallDeadline(), now + kRankGrace);
    }
    if (status.ok() && !attached_) status = co_await Attach(CallDeadline());
    if (!status.ok()) continue;
    if (!ever_begun_) arena_->params = InitialValues(arena_->params.size(), options_.start);
    const auto begin = co_await Begin(*last_step > 0, CallDeadline());
    status = begin.status();
    cluster_->world.Trace(process.name, "begins: ", status.ToString());
    if (IsTheEnd(status)) co_return status;
    if (!begin.ok()) continue;
    *last_step = begin->last_step();
    ever_begun_ = true;
    Event event = EventOf(What::kBegun);
    event.step = begin->last_step();
    event.flag = begin->resumed();
    event.digest = DigestOf(arena_->params);
    event.skipped = arena_->delivered != event.step + 1;
    cluster_->Record(std::move(event));
    co_return absl::OkStatus();
  }
  co_return status;
}

// What the trainer does when it is told ROLLED_BACK, as client/python/dmuon_client/optimizer.py: it takes the parameters
// of the step that there is, and goes on with other data.
Task<absl::Status> WorkerProcess::GoBack(absl::Status why, uint64_t* last_step) {
  Event event = EventOf(What::kTold);
  event.step = *last_step + 1;
  event.status = why;
  if (!cluster_->Planted(Plant::kSilentRollback)) cluster_->Record(std::move(event));
  ++batch_;
  co_return co_await BeginTraining(last_step);
}

Task<absl::Status> WorkerProcess::TrainStep(uint64_t* last_step) {
  const uint64_t step = *last_step + 1;
  doing_ = absl::StrCat("computes for step ", step);
  const absl::Time ready = cluster_->world.now() + options_.backward;
  while (cluster_->world.now() < ready) co_await clock_.Until(ready);
  // The trainer's own copies: what the daemon does to the arena meanwhile must not matter.
  const Gradients gradients = Backward(arena_->params, rank_, step, batch_);
  Random& random = cluster_->world.random;
  bool forgets = random.Chance(options_.mistakes / 2);
  double lr = random.Chance(options_.mistakes / 2) ? 0.5 : 1.0;
  absl::Status status;
  for (int i = 0; i < kPatience; ++i) {
    doing_ = absl::StrCat("waits for step ", step);
    arena_->grads = gradients;
    arena_->submitted = step;
    arena_->incomplete = forgets;
    Event called = EventOf(What::kCalled);
    called.step = step;
    cluster_->Record(std::move(called));
    status = co_await StepCall(step, lr);
    cluster_->world.Trace(process.name, "step ", step, ": ", status.ToString());
    if (status.ok()) {
      Event event = EventOf(What::kAcked);
      event.step = step;
      event.digest = DigestOf(arena_->params);
      event.skipped = arena_->delivered != step + 1;
      cluster_->Record(std::move(event));
      *last_step = step;
      co_return status;
    }
    if (IsTheEnd(status)) co_return status;
    if (IsRolledBack(status)) co_return co_await GoBack(status, last_step);
    forgets = false;
    lr = 1.0;
  }
  co_return status;
}

template <typename R>
Task<absl::StatusOr<R>> WorkerProcess::Ask(absl::Time until, AskFor<R> call) {
  NodeProcess* const node = node_;
  const absl::Duration budget = until - cluster_->world.now();
  std::function<void(Reply<R>)> handler = [node, budget, call](const Reply<R>& reply) { call(node, budget, reply); };
  // gRPC doubles nothing; whoever sends again does so in another session.
  const Task<absl::StatusOr<R>> asked =
      Call<R>(&cluster_->network, &process, &node->process, until, handler, /*may_double=*/false);
  co_return co_await asked;
}

Task<absl::Status> WorkerProcess::Connect(absl::Time until, absl::Time taken_until) {
  while (true) {
    v1::OpenRequest request;
    request.set_job_id(options_.registration.job().job_id());
    request.set_rank(rank_);
    request.set_world_size(options_.registration.job().world_size());
    request.set_incarnation(absl::StrCat(process.life, "-", ++opened_));
    const absl::Time now = cluster_->world.now();
    const absl::Time attempt =
        std::min(std::max(until, now + absl::Milliseconds(100)), now + cluster_->timeouts.client_attempt);
    const AskFor<node::SessionId> ask = [request](NodeProcess* node, absl::Duration,
                                                  const Reply<node::SessionId>& reply) { node->Open(request, reply); };
    const auto opened = co_await Ask(attempt, ask);
    if (opened.ok()) {
      session_ = *opened;
      node_life_ = node_->process.life;
      pause_ = absl::ZeroDuration();
      // The arena channel: a socket on the same host, whose end is never lost.
      cluster_->world.After(absl::Microseconds(100), &node_->process,
                            [node = node_, session = session_] { node->Hello(session); });
      co_return absl::OkStatus();
    }
    const bool taken = wire::ReasonOf(opened.status()) == v1::ERROR_REASON_RANK_TAKEN;
    const bool again = taken || IsConnectionLost(opened.status()) || IsBareTimeout(opened.status());
    if (!again) co_return opened.status();
    const bool goes_on = co_await Pause(taken ? taken_until : until);
    if (!goes_on) co_return opened.status();
  }
}

Task<absl::Status> WorkerProcess::Attach(absl::Time until) {
  attached_ = begun_ = false;
  while (true) {
    if (session_ == 0) {
      const absl::Status connected = co_await Connect(until, until);
      if (!connected.ok()) co_return connected;
    }
    const AskFor<Registered> ask = [session = session_, registration = options_.registration](
                                       NodeProcess* node, absl::Duration budget, const Reply<Registered>& reply) {
      node->Register(session, budget, registration, reply);
    };
    const auto response = co_await Ask(until, ask);
    if (response.ok()) {
      const std::shared_ptr<Arena> before = std::exchange(arena_, response->arena);
      if (before != nullptr && before != arena_) *arena_ = *before;  // CarryOver
      generation_ = response->generation;
      attached_ = true;
      co_return absl::OkStatus();
    }
    const bool lost = IsConnectionLost(response.status());
    if (lost || IsBareTimeout(response.status())) DropSession();
    if (!lost) co_return response.status();
    const bool goes_on = co_await Pause(until);
    if (!goes_on) co_return response.status();
  }
}

Task<absl::StatusOr<v1::BeginResponse>> WorkerProcess::Begin(bool must_resume, absl::Time until) {
  while (true) {
    if (!attached_) {
      const absl::Status attached = co_await Attach(until);
      if (!attached.ok()) co_return attached;
    }
    v1::BeginRequest request;
    request.set_session_id(session_);
    request.set_generation(generation_);
    request.set_must_resume(must_resume);
    const AskFor<v1::BeginResponse> ask = [request](NodeProcess* node, absl::Duration budget,
                                                    const Reply<v1::BeginResponse>& reply) {
      node->Begin(budget, request, reply);
    };
    auto response = co_await Ask(until, ask);
    if (response.ok()) {
      begun_ = true;
      co_return response;
    }
    if (IsConnectionLost(response.status())) {
      DropSession();
    } else if (!IsPeerLost(response.status())) {
      co_return response;
    }
    const bool goes_on = co_await Pause(until);
    if (!goes_on) co_return response;
  }
}

Task<absl::Status> WorkerProcess::Resume(uint64_t step, absl::Time until) {
  const auto begin = co_await Begin(true, until);
  if (!begin.ok()) co_return begin.status();
  Event event = EventOf(What::kBegun);
  event.must = true;
  event.flag = begin->resumed();
  event.step = begin->last_step();
  event.digest = DigestOf(arena_->params);
  event.skipped = arena_->delivered != event.step + 1;
  cluster_->Record(std::move(event));
  const bool planted = cluster_->Planted(Plant::kSilentRestart);
  if (planted || (begin->resumed() && begin->last_step() + 1 >= step && begin->last_step() <= step)) {
    co_return absl::OkStatus();
  }
  begun_ = false;
  const bool may_go_back = options_.registration.job().replication() == v1::REPLICATION_ASYNC;
  if (begin->resumed() && begin->last_step() + 1 < step && may_go_back) {
    co_return wire::Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_ROLLED_BACK,
                          absl::StrCat("the job has gone back to step ", begin->last_step()));
  }
  co_return wire::Error(absl::StatusCode::kDataLoss, v1::ERROR_REASON_STATE_LOST,
                        absl::StrCat("the daemon came back at step ", begin->last_step()));
}

// Persist.
Task<absl::Status> WorkerProcess::StepCall(uint64_t step, double lr) {
  absl::Time until = CallDeadline();
  while (true) {
    const bool recovering = !begun_;
    if (recovering) {
      const absl::Status resumed = co_await Resume(step, until);
      if (!resumed.ok()) co_return resumed;
    }
    v1::StepRequest request;
    request.set_session_id(session_);
    request.set_generation(generation_);
    request.set_step(step);
    request.add_hypers()->set_lr(lr);
    const AskFor<v1::StepResponse> ask = [request](NodeProcess* node, absl::Duration budget,
                                                   const Reply<v1::StepResponse>& reply) {
      node->Step(budget, request, reply);
    };
    const auto response = co_await Ask(CallDeadline(), ask);
    const bool lost = IsConnectionLost(response.status());
    if (lost) DropSession();
    if (!lost && !IsPeerLost(response.status())) co_return response.status();
    if (lost && !recovering) until = CallDeadline();
    const bool goes_on = co_await Pause(until);
    if (!goes_on) co_return response.status();
  }
}

Task<void> WorkerProcess::Close() {
  if (session_ == 0) co_return;
  const absl::Time until = cluster_->world.now() + absl::Seconds(1);
  const AskFor<Nothing> ask = [session = session_](NodeProcess* node, absl::Duration, const Reply<Nothing>& reply) {
    node->Close(session, reply);
  };
  const auto closed = co_await Ask(until, ask);
  cluster_->world.Trace(process.name, "closes: ", closed.status().ToString());
}

void WorkerProcess::DropSession() {
  attached_ = begun_ = false;
  if (session_ == 0) return;
  const node::SessionId session = std::exchange(session_, 0);
  // A daemon of another life does not know it.
  if (node_->process.up && node_->process.life == node_life_) {
    cluster_->world.After(absl::Microseconds(200), &node_->process,
                          [node = node_, session] { node->ChannelGone(session); });
  }
}

Task<bool> WorkerProcess::Pause(absl::Time until) {
  pause_ = std::clamp(pause_ * 8 / 5, kFirstPause, kLongestPause);
  const absl::Duration jitter = pause_ * (static_cast<double>(cluster_->world.random.Below(1000)) / 1000.0);
  const absl::Time wake = cluster_->world.now() + pause_ / 2 + jitter;
  if (wake > until) co_return false;
  while (cluster_->world.now() < wake) co_await clock_.Until(wake);
  co_return true;
}

}  // namespace dmuon::sim
