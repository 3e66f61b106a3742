// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/engine.h"
#include "daemon/plan/optimizers.h"

#include <sys/random.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "wire/error.h"
#include "wire/grpc_status.h"
#include "wire/validate.h"

namespace dmuon::node {
namespace {

constexpr absl::Duration kJanitorPeriod = absl::Seconds(1);

void FillRandom(void* data, size_t bytes) {
  // At most 256 bytes are asked for: getrandom then neither fails nor returns short once seeded.
  while (::getrandom(data, bytes, 0) != static_cast<ssize_t>(bytes)) {
  }
}

uint64_t RandomId() {
  uint64_t id = 0;
  while (id == 0) FillRandom(&id, sizeof(id));
  return id;
}

bool EqualInConstantTime(const wire::Token& a, const wire::Token& b) {
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

// INVALID_ARGUMENT naming what cannot be, such as the group whose optimizer `backend` has no kernels for.
absl::Status CheckJob(const v1::JobSpec& job, const kernels::Backend& backend) {
  DMUON_RETURN_IF_ERROR(wire::ValidateJobSpec(job));
  DMUON_RETURN_IF_ERROR(plan::ValidateOptimizers(job));
  for (const v1::Group& group : job.groups()) {
    const absl::Status supported = backend.Supports(plan::ToOptimizer(group));
    if (!supported.ok()) return wire::InvalidField(absl::StrCat("group '", group.name(), "': ", supported.message()));
  }
  return absl::OkStatus();
}

absl::Status Limit(const std::string& message) {
  return wire::Error(absl::StatusCode::kResourceExhausted, v1::ERROR_REASON_LIMIT, message);
}

}  // namespace

absl::Status EngineOptions::Validate() const {
  DMUON_RETURN_IF_ERROR(wire::ValidateId(node_id, "--node-id"));
  if (slots < 1 || slots > 1024) {
    return wire::InvalidField(absl::StrCat("--slots is ", slots, ", allowed are 1..1024"));
  }
  if (threads_per_slot < 1 || threads_per_slot > 1024) {
    return wire::InvalidField(
        absl::StrCat("--threads-per-slot is ", threads_per_slot, ", allowed are 1..1024"));
  }
  // The ladder: a local death is seen at once, an attach in attach_timeout, a lost peer in
  // step_timeout, and clients wait longer than that.
  if (attach_timeout <= absl::ZeroDuration() || attach_timeout >= step_timeout) {
    return wire::InvalidField(absl::StrCat(
        "--attach-timeout is ", absl::FormatDuration(attach_timeout),
        ", must be above 0 and below --step-timeout ", absl::FormatDuration(step_timeout)));
  }
  if (autotune_budget < absl::ZeroDuration() || autotune_budget >= step_timeout) {
    return wire::InvalidField(absl::StrCat(
        "--autotune-budget is ", absl::FormatDuration(autotune_budget), ", must be at least 0 and below --step-timeout ",
        absl::FormatDuration(step_timeout), ", because the other nodes' workers wait meanwhile"));
  }
  if (orphan_timeout < step_timeout) {
    return wire::InvalidField(absl::StrCat(
        "--orphan-timeout is ", absl::FormatDuration(orphan_timeout),
        ", must be at least --step-timeout ", absl::FormatDuration(step_timeout)));
  }
  return absl::OkStatus();
}

Engine::Engine(EngineOptions options, kernels::Backend* backend, CoordinatorLink* link,
               Metrics* metrics, ConnectPeers connect_peers)
    : options_(std::move(options)),
      link_(link),
      connect_peers_(std::move(connect_peers)),
      metrics_(metrics),
      backend_(backend),
      budget_(options_.memory_limit_bytes),
      autotuner_({options_.cache_directory, options_.autotune_budget, options_.slots, options_.threads_per_slot},
                 backend, &budget_) {
  node_.set_node_id(options_.node_id);
  // As text, larger than those of the node's processes before it.
  node_.set_incarnation(absl::StrFormat("%016x-%016x", absl::ToUnixMicros(absl::Now()), RandomId()));
  janitor_ = std::thread([this] { Janitor(); });
}

Engine::~Engine() {
  Drain();
  {
    wire::MutexLock lock(mu_);
    stopped_ = true;
  }
  changed_.NotifyAll();
  janitor_.join();
}

void Engine::Start() {
  link_->Start([this](const v1::WatchPlansResponse& event) { OnPlanEvent(event); },
               [this] { return JoinReport(); });
}

void Engine::Drain() {
  std::map<std::string, std::shared_ptr<Job>> jobs;
  {
    wire::MutexLock lock(mu_);
    if (draining_) return;
    draining_ = true;
    jobs.swap(jobs_);
    sessions_.clear();
  }
  jobs.clear();  // each ends its running step, then answers what waits
  link_->Stop();
}

absl::StatusOr<std::shared_ptr<Job>> Engine::JobFor(const v1::OpenRequest& request) {
  if (draining_) return wire::Draining("the daemon");
  if (sessions_.size() >= options_.max_sessions) {
    return Limit(absl::StrCat(sessions_.size(), " sessions, allowed are ", options_.max_sessions));
  }
  const auto it = jobs_.find(request.job_id());
  if (it != jobs_.end()) {
    if (it->second->world_size() != request.world_size()) {
      return wire::Error(
          absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_SPEC_MISMATCH,
          absl::StrCat("job '", request.job_id(), "' has world size ", it->second->world_size(),
                       ", rank ", request.rank(), " says ", request.world_size(),
                       "; use another job id, or close the job first"));
    }
    return it->second;
  }
  return NewJob(request.job_id(), request.world_size());
}

absl::StatusOr<std::shared_ptr<Job>> Engine::NewJob(const std::string& job_id, uint32_t world_size) {
  if (jobs_.size() >= options_.max_jobs) {
    return Limit(absl::StrCat(jobs_.size(), " jobs, allowed are ", options_.max_jobs));
  }
  JobCoreOptions core;
  core.job_id = job_id;
  core.world_size = world_size;
  core.peer_timeout = options_.step_timeout;
  core.orphan_timeout = options_.orphan_timeout;
  JobEnvironment environment;
  environment.node = node_;
  environment.slots = options_.slots;
  environment.threads_per_slot = options_.threads_per_slot;
  environment.overlap = options_.overlap;
  environment.backend = backend_;
  environment.link = link_;
  environment.metrics = metrics_;
  environment.budget = &budget_;
  environment.autotuner = &autotuner_;
  environment.checkpoints = options_.checkpoints;
  environment.registrations = &registrations_;
  environment.connect_peers = connect_peers_;
  environment.connect_timeout = options_.step_timeout;
  environment.on_end = [this](const std::string& ended) { OnJobEnd(ended); };
  environment.on_session_dropped = [this](SessionId session) { OnSessionDropped(session); };
  auto job = std::make_shared<Job>(std::move(core), std::move(environment));
  jobs_[job_id] = job;
  return job;
}

void Engine::Open(const v1::OpenRequest& request, Reply<v1::OpenResponse> reply) {
  absl::Status status = wire::ValidateId(request.job_id(), "job_id");
  if (status.ok()) status = wire::ValidateId(request.incarnation(), "incarnation");
  if (status.ok() && (request.world_size() < 1 || request.world_size() > wire::kMaxWorldSize ||
                      request.rank() >= request.world_size())) {
    status = wire::InvalidField(absl::StrCat("rank ", request.rank(), " of world size ",
                                             request.world_size(), ", allowed are ranks below it",
                                             " and sizes 1..", wire::kMaxWorldSize));
  }
  if (status.ok() && request.protocol_version() != wire::kProtocolVersion) {
    metrics_->Increment(MetricId::kAttach, {"version"});
    status = wire::Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_PROTOCOL_VERSION,
                         absl::StrCat("client speaks protocol ", request.protocol_version(),
                                      ", this daemon ", wire::kProtocolVersion));
  }
  if (!status.ok()) return reply(status);
  wire::Token token{};
  FillRandom(token.data(), token.size());
  auto session = std::make_shared<WorkerSession>(RandomId(), token, request.job_id(),
                                                 request.rank(), request.incarnation());
  std::shared_ptr<Job> job;
  {
    wire::MutexLock lock(mu_);
    absl::StatusOr<std::shared_ptr<Job>> found = JobFor(request);
    if (found.ok()) {
      job = *found;
      sessions_[session->id()] = {session, job, MonotonicNow()};
    } else {
      status = found.status();
    }
  }
  if (!status.ok()) return reply(status);
  job->Open(session, [this, id = session->id(), reply = std::move(reply)](
                         absl::StatusOr<v1::OpenResponse> response) {
    if (!response.ok()) OnSessionDropped(id);
    reply(std::move(response));
  });
}

absl::StatusOr<std::shared_ptr<Job>> Engine::JobOf(SessionId session) const {
  wire::MutexLock lock(mu_);
  if (draining_) return wire::Draining("the daemon");
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) {
    return wire::Error(absl::StatusCode::kNotFound, v1::ERROR_REASON_UNKNOWN_SESSION,
                       "no such session; the daemon restarted, or the session was closed");
  }
  return it->second.job;
}

void Engine::Register(v1::RegisterRequest request, absl::Time deadline,
                      Reply<v1::RegisterResponse> reply) {
  absl::StatusOr<std::shared_ptr<Job>> job = JobOf(request.session_id());
  if (!job.ok()) return reply(job.status());
  if (absl::Status status = CheckJob(request.job(), *backend_); !status.ok()) return reply(status);
  std::vector<const v1::Shard*> shards;
  for (const v1::Shard& shard : request.shards()) shards.push_back(&shard);
  uint32_t rank = 0;
  {
    wire::MutexLock lock(mu_);
    const auto it = sessions_.find(request.session_id());
    if (it != sessions_.end()) rank = it->second.session->rank();
  }
  if (request.job().job_id() != (*job)->job_id() ||
      request.job().world_size() != (*job)->world_size()) {
    return reply(wire::InvalidField(
        absl::StrCat("the session belongs to job '", (*job)->job_id(), "' of world size ",
                     (*job)->world_size(), ", the registration says '", request.job().job_id(),
                     "' and ", request.job().world_size())));
  }
  absl::StatusOr<std::vector<wire::ShardBoxes>> boxes =
      wire::ParseShards(request.job(), shards, rank);
  if (!boxes.ok()) return reply(boxes.status());
  const SessionId session = request.session_id();
  (*job)->Register(session, deadline, std::move(request), *std::move(boxes), std::move(reply));
}

void Engine::Begin(const v1::BeginRequest& request, absl::Time deadline,
                   Reply<v1::BeginResponse> reply) {
  absl::StatusOr<std::shared_ptr<Job>> job = JobOf(request.session_id());
  if (!job.ok()) return reply(job.status());
  (*job)->Begin(deadline, request, std::move(reply));
}

void Engine::Step(v1::StepRequest request, absl::Time deadline, Reply<v1::StepResponse> reply) {
  absl::StatusOr<std::shared_ptr<Job>> job = JobOf(request.session_id());
  if (!job.ok()) return reply(job.status());
  const SessionId session = request.session_id();
  (*job)->Step(session, deadline, std::move(request), std::move(reply));
}

void Engine::Save(const v1::SaveRequest& request, absl::Time deadline, Reply<v1::SaveResponse> reply) {
  absl::StatusOr<std::shared_ptr<Job>> job = JobOf(request.session_id());
  if (!job.ok()) return reply(job.status());
  if (absl::Status status = checkpoint::ValidateName(request.name()); !status.ok()) return reply(status);
  (*job)->Save(deadline, request, std::move(reply));
}

void Engine::Restore(const v1::RestoreRequest& request, absl::Time deadline, Reply<v1::RestoreResponse> reply) {
  absl::StatusOr<std::shared_ptr<Job>> job = JobOf(request.session_id());
  if (!job.ok()) return reply(job.status());
  if (absl::Status status = checkpoint::ValidateName(request.name()); !status.ok()) return reply(status);
  (*job)->Restore(deadline, request, std::move(reply));
}

void Engine::Export(const v1::ExportRequest& request, absl::Time deadline, Reply<v1::ExportResponse> reply) {
  absl::StatusOr<std::shared_ptr<Job>> job = JobOf(request.session_id());
  if (!job.ok()) return reply(job.status());
  (*job)->Export(deadline, request, std::move(reply));
}

void Engine::Import(const v1::ImportRequest& request, absl::Time deadline, Reply<v1::ImportResponse> reply) {
  absl::StatusOr<std::shared_ptr<Job>> job = JobOf(request.session_id());
  if (!job.ok()) return reply(job.status());
  if (absl::Status status = wire::ValidateDigest(request.digest()); !status.ok()) return reply(status);
  (*job)->Import(deadline, request, std::move(reply));
}

void Engine::SaveJob(const std::string& job_id, const std::string& name, absl::Time deadline,
                     Reply<v1::SaveJobResponse> reply) {
  std::shared_ptr<Job> job;
  {
    wire::MutexLock lock(mu_);
    if (const auto it = jobs_.find(job_id); it != jobs_.end()) job = it->second;
  }
  if (job == nullptr) {
    return reply(wire::Error(absl::StatusCode::kNotFound, v1::ERROR_REASON_UNKNOWN_JOB,
                             absl::StrCat("no job '", job_id, "' on node '", options_.node_id, "'")));
  }
  job->SaveNext(deadline, name, std::move(reply));
}

void Engine::Close(const v1::CloseRequest& request, Reply<v1::CloseResponse> reply) {
  absl::StatusOr<std::shared_ptr<Job>> job = JobOf(request.session_id());
  if (!job.ok()) return reply(job.status());
  (*job)->Close(request.session_id(), std::move(reply));
}

std::vector<v1::NodeJobStatus> Engine::JobStatuses() const {
  std::vector<v1::NodeJobStatus> statuses;
  wire::MutexLock lock(mu_);
  for (const auto& [id, job] : jobs_) statuses.push_back(job->Status());
  return statuses;
}

absl::Time AnswerBy(absl::Duration budget) {
  constexpr absl::Duration kMargin = absl::Milliseconds(250);
  return MonotonicNow() + std::max(budget / 2, budget - kMargin);
}

absl::Status Engine::Ring(uint64_t session_id, const wire::ReceivedFrame& step) {
  v1::StepRequest request;
  if (!request.ParseFromString(step.payload) || request.session_id() != session_id) {
    return wire::InvalidField(absl::StrCat("session ", session_id, " rings with no request of its own"));
  }
  const absl::StatusOr<std::shared_ptr<Job>> job = JobOf(session_id);
  if (!job.ok()) return job.status();
  const auto budget = absl::Milliseconds(std::min<uint64_t>(step.frame.bytes, INT32_MAX));
  (*job)->Ring(session_id, AnswerBy(budget), std::move(request));
  return absl::OkStatus();
}

absl::Status Engine::ExpectGradients(uint64_t session_id, const wire::ChannelFrame& frame) {
  DMUON_ASSIGN_OR_RETURN(const std::shared_ptr<Job> job, JobOf(session_id));
  job->ExpectGradients(frame.generation, frame.bytes);
  return absl::OkStatus();
}

absl::Status Engine::Offer(uint64_t session_id, wire::ScopedFd state) {
  wire::MutexLock lock(mu_);
  const auto it = sessions_.find(session_id);
  if (it == sessions_.end()) return absl::NotFoundError(absl::StrCat("session ", session_id, " is over"));
  it->second.session->Offer(std::move(state));
  wire::ChannelFrame taken;
  taken.type = wire::FrameType::kTaken;
  taken.session_id = session_id;
  return it->second.session->Send(taken, -1);
}

absl::Status Engine::Release(uint64_t session_id) {
  if (const absl::StatusOr<std::shared_ptr<Job>> job = JobOf(session_id); job.ok()) (*job)->Release(session_id);
  return absl::OkStatus();
}

absl::Status Engine::Hello(const wire::ChannelFrame& frame, int channel, int pidfd) {
  wire::MutexLock lock(mu_);
  const auto it = sessions_.find(frame.session_id);
  if (it == sessions_.end() || !EqualInConstantTime(frame.token, it->second.session->token())) {
    metrics_->Increment(MetricId::kAttach, {"denied"});
    return wire::Error(absl::StatusCode::kPermissionDenied, v1::ERROR_REASON_DENIED,
                       "hello on the arena channel without a session or with a wrong token");
  }
  if (it->second.session->connected()) {
    return wire::Error(absl::StatusCode::kAlreadyExists, v1::ERROR_REASON_DENIED,
                       "the session has an arena channel already");
  }
  it->second.session->SetChannel(channel, pidfd);
  return absl::OkStatus();
}

void Engine::ChannelGone(uint64_t session_id) {
  wire::MutexLock lock(mu_);
  const auto it = sessions_.find(session_id);
  if (it == sessions_.end()) return;
  it->second.session->SetChannel(-1, -1);
  it->second.job->Gone(session_id);
}

v1::JoinRequest Engine::JoinReport() const {
  v1::JoinRequest join;
  *join.mutable_node() = node_;
  join.set_slots(options_.slots);
  join.set_memory_bytes(budget_.limit_bytes());
  join.set_backend(std::string(backend_->name()));
  join.set_owns_all(options_.owns_all);
  join.set_protocol_version(wire::kProtocolVersion);
  wire::MutexLock lock(mu_);
  join.set_highest_generation(highest_generation_);
  for (const auto& [id, job] : jobs_) {
    if (std::optional<v1::HeldJob> held = job->Held(); held.has_value()) {
      *join.add_held() = *std::move(held);
    } else {
      job->RegisterAnew();
    }
  }
  return join;
}

void Engine::OnPlanEvent(const v1::WatchPlansResponse& event) {
  const std::string& job_id = event.has_plan()      ? event.plan().job_id()
                              : event.has_refusal() ? event.refusal().job_id()
                              : event.has_call()    ? event.call().job_id()
                              : event.has_successor() ? event.successor().job_id()
                                                      : event.end().job_id();
  wire::MutexLock lock(mu_);
  // 0 of an event without.
  highest_generation_ = std::max({highest_generation_, event.plan().generation(), event.successor().generation()});
  auto it = jobs_.find(job_id);
  // A job without workers here begins with its plan.
  if (it == jobs_.end() && event.has_plan() && event.has_job() && !draining_) {
    absl::Status status = CheckJob(event.job(), *backend_);
    if (status.ok()) status = NewJob(job_id, event.job().world_size()).status();
    if (!status.ok()) LogError("job ", job_id, ": no part in generation ", event.plan().generation(), ": ", status.message());
    it = jobs_.find(job_id);
  }
  if (it != jobs_.end()) it->second->OnPlanEvent(event);
}

void Engine::OnJobEnd(const std::string& job_id) {
  {
    wire::MutexLock lock(mu_);
    auto node = jobs_.extract(job_id);
    if (node.empty()) return;
    released_.push_back(std::move(node.mapped()));
  }
  changed_.NotifyAll();
}

void Engine::OnSessionDropped(SessionId session) {
  wire::MutexLock lock(mu_);
  auto node = sessions_.extract(session);
  // Called on the job's thread, which must not drop what may be the last reference to the job.
  if (!node.empty()) released_.push_back(std::move(node.mapped().job));
}

// Joins ended jobs, and drops sessions that never said hello.
void Engine::Janitor() {
  while (true) {
    std::vector<std::shared_ptr<Job>> released;
    {
      wire::MutexLock lock(mu_);
      if (stopped_) return;
      if (released_.empty()) {
        changed_.WaitUntil(mu_, std::chrono::steady_clock::now() +
                                    absl::ToChronoNanoseconds(kJanitorPeriod));
      }
      released.swap(released_);
      const absl::Time oldest = MonotonicNow() - options_.attach_timeout;
      for (auto& [id, entry] : sessions_) {
        if (entry.opened < oldest && !entry.session->connected()) entry.job->Gone(id);
      }
    }
    released.clear();
  }
}

}  // namespace dmuon::node
