// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "tests/sim/node_process.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "wire/error.h"
#include "wire/grpc_status.h"

namespace dmuon::sim {
namespace {

absl::Status UnknownSession() {
  return wire::Error(absl::StatusCode::kNotFound, v1::ERROR_REASON_UNKNOWN_SESSION, "no such session");
}

}  // namespace

NodeProcess::NodeProcess(Cluster* cluster, std::string name) : cluster_(cluster) { process.name = std::move(name); }

void NodeProcess::Start() {
  if (process.up) return;
  process.up = true;
  process.silent = false;
  ++process.life;
  identity_.set_node_id(process.name);
  identity_.set_incarnation(absl::StrFormat("%03d", process.life));
  link_ = std::make_unique<NodeLink>(cluster_, &process, identity_);
  cluster_->world.Trace(process.name, "starts, life ", process.life);
  Event event;
  event.what = What::kStarted;
  event.who = process.name;
  event.life = process.life;
  cluster_->Record(std::move(event));
  link_->Start([this](const v1::WatchPlansResponse& change) { OnPlanEvent(change); }, [this] { return JoinReport(); });
  JanitorLater();
}

void NodeProcess::Crash(bool silent) {
  if (!process.up) return;
  process.up = false;
  process.silent = silent;
  process.frozen_until = absl::InfinitePast();
  cluster_->world.Trace(process.name, silent ? "LOSES POWER" : "CRASHES");
  Event event;
  event.what = What::kCrashed;
  event.who = process.name;
  event.life = process.life;
  cluster_->Record(std::move(event));
  sessions_.clear();
  jobs_.clear();
  link_.reset();
  registrations_ = highest_generation_ = 0;
  cluster_->network.Crashed(process);
}

std::shared_ptr<NodeJob> NodeProcess::JobFor(const v1::OpenRequest& request) {
  std::shared_ptr<NodeJob>& job = jobs_[request.job_id()];
  if (job != nullptr) return job;
  node::JobCoreOptions core;
  core.job_id = request.job_id();
  core.world_size = request.world_size();
  core.peer_timeout = cluster_->timeouts.step;
  core.orphan_timeout = cluster_->timeouts.orphan;
  NodeJob::Environment environment;
  environment.node = identity_;
  environment.process = &process;
  environment.link = link_.get();
  environment.registrations = &registrations_;
  environment.on_end = [this](const std::string& job_id) { OnJobEnd(job_id); };
  environment.on_session_dropped = [this](node::SessionId session) { OnSessionDropped(session); };
  job = std::make_shared<NodeJob>(cluster_, std::move(core), std::move(environment));
  return job;
}

std::shared_ptr<NodeJob> NodeProcess::JobOf(node::SessionId session) const {
  const auto it = sessions_.find(session);
  return it == sessions_.end() ? nullptr : it->second.job;
}

void NodeProcess::Open(const v1::OpenRequest& request, const Reply<node::SessionId>& reply) {
  auto session = std::make_shared<Session>();
  session->id = ++cluster_->last_session;
  session->rank = request.rank();
  session->incarnation = request.incarnation();
  session->opened = cluster_->world.now();
  const std::shared_ptr<NodeJob> job = JobFor(request);
  sessions_[session->id] = {session, job};
  job->Open(session, [this, id = session->id, reply](absl::StatusOr<node::SessionId> opened) {
    if (!opened.ok()) OnSessionDropped(id);
    reply(opened);
  });
}

void NodeProcess::Register(node::SessionId session, absl::Duration budget, const v1::RegisterWorkerRequest& request,
                           const Reply<Registered>& reply) {
  const auto job = JobOf(session);
  if (job == nullptr) return reply(UnknownSession());
  job->Register(session, cluster_->AnswerBy(budget), request, reply);
}

void NodeProcess::Begin(absl::Duration budget, const v1::BeginRequest& request, const Reply<v1::BeginResponse>& reply) {
  const auto job = JobOf(request.session_id());
  if (job == nullptr) return reply(UnknownSession());
  job->Begin(cluster_->AnswerBy(budget), request, reply);
}

void NodeProcess::Step(absl::Duration budget, const v1::StepRequest& request, const Reply<v1::StepResponse>& reply) {
  const auto job = JobOf(request.session_id());
  if (job == nullptr) return reply(UnknownSession());
  job->Step(cluster_->AnswerBy(budget), request, reply);
}

void NodeProcess::Close(node::SessionId session, const Reply<Nothing>& reply) {
  const auto job = JobOf(session);
  if (job == nullptr) return reply(UnknownSession());
  job->Close(session, reply);
}

void NodeProcess::Hello(node::SessionId session) {
  const auto it = sessions_.find(session);
  if (it != sessions_.end()) it->second.session->connected = true;
}

void NodeProcess::ChannelGone(node::SessionId session) {
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return;
  it->second.session->connected = false;
  it->second.job->Gone(session);
}

v1::JoinRequest NodeProcess::JoinReport() {
  v1::JoinRequest join;
  *join.mutable_node() = identity_;
  join.set_slots(2);
  join.set_backend("cpu");
  join.set_protocol_version(wire::kProtocolVersion);
  join.set_highest_generation(highest_generation_);
  for (const auto& [id, job] : jobs_) {
    if (const v1::HeldJob* held = job->Held(); held != nullptr) {
      *join.add_held() = *held;
    } else {
      job->RegisterAnew();
    }
  }
  return join;
}

void NodeProcess::OnPlanEvent(const v1::WatchPlansResponse& event) {
  const std::string& job_id = event.has_plan()      ? event.plan().job_id()
                              : event.has_refusal() ? event.refusal().job_id()
                              : event.has_call()    ? event.call().job_id()
                              : event.has_successor() ? event.successor().job_id()
                                                      : event.end().job_id();
  highest_generation_ = std::max({highest_generation_, event.plan().generation(), event.successor().generation()});
  const auto it = jobs_.find(job_id);
  if (it != jobs_.end()) it->second->OnPlanEvent(event);
}

// Not on the job's own thread.
void NodeProcess::ReleaseLater(std::shared_ptr<NodeJob> job) {
  cluster_->world.After(absl::ZeroDuration(), &process, [job = std::move(job)] {});
}

void NodeProcess::OnJobEnd(const std::string& job_id) {
  auto ended = jobs_.extract(job_id);
  if (!ended.empty()) ReleaseLater(std::move(ended.mapped()));
}

void NodeProcess::OnSessionDropped(node::SessionId session) {
  if (cluster_->Planted(Plant::kLeakedSession) && cluster_->world.random.Chance(0.5)) return;
  auto dropped = sessions_.extract(session);
  if (!dropped.empty()) ReleaseLater(std::move(dropped.mapped().job));
}

void NodeProcess::JanitorLater() {
  cluster_->world.After(cluster_->timeouts.attach / 2, &process, [this] {
    const absl::Time oldest = cluster_->world.now() - cluster_->timeouts.attach;
    for (const auto& [id, entry] : sessions_) {
      if (entry.session->opened < oldest && !entry.session->connected) entry.job->Gone(id);
    }
    JanitorLater();
  });
}

void NodeProcess::BreakConnections() {
  for (const auto& [id, job] : jobs_) job->BreakConnections();
}

std::string NodeProcess::Leftovers() const {
  if (sessions_.empty() && jobs_.empty()) return {};
  return absl::StrCat(process.name, ": ", sessions_.size(), " sessions, ", jobs_.size(), " jobs; ");
}

std::string NodeProcess::Describe() const {
  std::string text = process.up ? "" : "down; ";
  for (const auto& [id, job] : jobs_) absl::StrAppend(&text, id, ": ", job->Describe(), "; ");
  return text;
}

}  // namespace dmuon::sim
