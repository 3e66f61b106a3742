// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "tests/sim/coordinator_process.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "wire/error.h"

namespace dmuon::sim {
namespace {

uint64_t NumberOf(const std::string& incarnation) {
  uint64_t number = 0;
  return absl::SimpleAtoi(incarnation, &number) ? number : 0;
}

const v1::Plan& PlanOf(const v1::WatchPlansResponse& event) { return event.has_successor() ? event.successor() : event.plan(); }

int64_t Elements(const v1::Box& box) {
  int64_t elements = 1;
  for (const int64_t length : box.length()) elements *= length;
  return elements;
}

}  // namespace

CoordinatorProcess::CoordinatorProcess(Cluster* cluster) : cluster_(cluster) { process.name = "coord"; }

void CoordinatorProcess::Start() {
  process.up = true;
  ++process.life;
  stored_ = disk_number_.AfterCrash(cluster_->world.random);
  core_.emplace(coordinator::Options{cluster_->timeouts.lease, stored_});
  cluster_->world.Trace("coord", "starts, generations above ", stored_);
  Event event;
  event.what = What::kStarted;
  event.who = process.name;
  event.life = process.life;
  cluster_->Record(std::move(event));
  TickLater();
}

void CoordinatorProcess::Crash() {
  if (!process.up) return;
  process.up = false;
  cluster_->world.Trace("coord", "CRASHES");
  Event event;
  event.what = What::kCrashed;
  event.who = process.name;
  event.life = process.life;
  cluster_->Record(std::move(event));
  for (auto& [id, stream] : watches_) EndStream(stream);
  watches_.clear();
  members_.clear();
  waiting_.clear();
  locked_ = false;
  core_.reset();
  cluster_->network.Crashed(process);
}

// The node sees the end of the connection, unless a partition keeps it from that.
void CoordinatorProcess::EndStream(const std::shared_ptr<WatchStream>& stream) {
  if (stream->over || cluster_->network.IsCut(process, *stream->process)) return;
  cluster_->network.Stream(process, *stream->process, stream->last, [stream] {
    stream->over = true;
    stream->ended.Notify();
  });
}

void CoordinatorProcess::TickLater() {
  cluster_->world.After(cluster_->timeouts.lease / 4, &process, [this] {
    Locked([this] {
      Settle(core_->Tick(cluster_->world.now())).IgnoreError();
      Replan();
    });
    TickLater();
  });
}

void CoordinatorProcess::Locked(std::function<void()> input) {
  if (locked_) {
    waiting_.push_back(std::move(input));
  } else {
    input();
  }
}

void CoordinatorProcess::Unlock() {
  locked_ = false;
  while (!locked_ && !waiting_.empty()) {
    const std::function<void()> input = std::move(waiting_.front());
    waiting_.pop_front();
    input();
  }
}

void CoordinatorProcess::Push(const std::shared_ptr<WatchStream>& stream, const v1::WatchPlansResponse& event) {
  cluster_->network.Stream(process, *stream->process, stream->last, [stream, event] {
    if (!stream->over) stream->sink(event);
  });
}

absl::Status CoordinatorProcess::Settle(coordinator::Outcome outcome) {
  if (!outcome.reason.empty()) cluster_->world.Trace("coord", outcome.reason);
  RecordLeftOut(outcome);
  if (outcome.planning == coordinator::Planning::kPlanned) RecordPlan(PlanOf(outcome.outgoing.front().event));
  for (coordinator::Outgoing& out : outcome.outgoing) {
    if (cluster_->Planted(Plant::kTwoOwners) && out.event.has_plan() && out.event.plan().nodes_size() > 1) {
      // Each node finds itself the owner of the first unit.
      const auto& nodes = out.event.plan().nodes();
      for (int n = 0; n < nodes.size(); ++n) {
        if (nodes[n] != out.node_id) continue;
        out.event.mutable_plan()->mutable_units(0)->mutable_owners(0)->set_node(static_cast<uint32_t>(n));
      }
    }
    const auto watch = watches_.find(out.node_id);
    if (watch != watches_.end()) Push(watch->second, out.event);
  }
  for (auto watch = watches_.begin(); watch != watches_.end();) {
    const auto current = watch++;
    if (core_->IsMember(current->second->node)) continue;
    EndStream(current->second);
    watches_.erase(current);
  }
  return std::move(outcome.status);
}

void CoordinatorProcess::RecordLeftOut(const coordinator::Outcome& outcome) {
  for (const coordinator::Outgoing& out : outcome.outgoing) {
    if (!out.event.has_end()) continue;
    const v1::GetClusterStatusResponse status = core_->Status(cluster_->world.now());
    const bool member = std::any_of(status.nodes().begin(), status.nodes().end(),
                                    [&](const v1::NodeStatus& node) { return node.node().node_id() == out.node_id; });
    if (member) continue;
    Event event;
    event.what = What::kLeftOut;
    event.who = out.node_id;
    event.job = out.event.end().job_id();
    event.generation = out.event.end().generation();
    cluster_->Record(std::move(event));
  }
}

void CoordinatorProcess::RecordPlan(const v1::Plan& plan) {
  Event event;
  event.what = What::kPlanned;
  event.who = process.name;
  event.job = plan.job_id();
  event.life = process.life;
  event.generation = plan.generation();
  for (const v1::Unit& unit : plan.units()) {
    event.number += static_cast<uint64_t>(Elements(unit.box()));
    event.digests.push_back(unit.owners_size() == 1 ? unit.owners(0).node() + 1 : 0);
  }
  cluster_->Record(std::move(event));
}

template <typename Request>
Request CoordinatorProcess::Known(Request request) const {
  const auto member = members_.find(request.node().node_id());
  if (cluster_->Planted(Plant::kStaleConnection) && member != members_.end()) {
    request.mutable_node()->set_incarnation(member->second);
  }
  return request;
}

void CoordinatorProcess::Accepted(absl::string_view call, const v1::NodeIdentity& node, const absl::Status& status) {
  if (!status.ok()) {
    cluster_->world.Trace("coord", call, " of ", node.node_id(), " is refused: ", status.ToString());
    return;
  }
  const auto member = members_.find(node.node_id());
  Event event;
  event.what = What::kAccepted;
  event.who = node.node_id();
  event.life = NumberOf(node.incarnation());
  event.number = member == members_.end() ? 0 : NumberOf(member->second);
  cluster_->Record(std::move(event));
}

void CoordinatorProcess::Join(const v1::JoinRequest& request, const Reply<v1::JoinResponse>& reply) {
  Locked([this, request, reply] {
    const absl::Status status = Settle(core_->Join(cluster_->world.now(), request));
    if (!status.ok()) return reply(status);
    std::string& last = members_[request.node().node_id()];
    const uint64_t life = NumberOf(request.node().incarnation());
    if (life < NumberOf(last)) {
      Event event;
      event.what = What::kOutOfTurn;
      event.who = request.node().node_id();
      event.life = life;
      cluster_->Record(std::move(event));
    }
    last = request.node().incarnation();
    for (const v1::HeldJob& held : request.held()) {
      if (!held.has_state()) continue;
      Event event;
      event.what = What::kHeard;
      event.who = request.node().node_id();
      event.job = held.job().job_id();
      event.life = life;
      event.generation = held.plan().generation();
      cluster_->Record(std::move(event));
    }
    v1::JoinResponse response;
    response.set_lease_seconds(absl::ToDoubleSeconds(cluster_->timeouts.lease));
    reply(response);
    Replan();
  });
}

void CoordinatorProcess::Beat(const v1::BeatRequest& request, const Reply<Nothing>& reply) {
  Locked([this, request, reply] {
    const absl::Status status = Settle(core_->Beat(cluster_->world.now(), request));
    status.ok() ? reply(Nothing()) : reply(status);
  });
}

void CoordinatorProcess::Register(const v1::RegisterWorkerRequest& request, const Reply<Nothing>& reply) {
  Locked([this, request, reply] { RunPlanning([this, request, reply] { RunRegister(request, reply); }); });
}

// host.cc's rule: the next generation is on disk before the core can give it out.
void CoordinatorProcess::RunPlanning(std::function<void()> input) {
  const uint64_t next = core_->highest_generation() + 1;
  if (next <= stored_) return input();
  disk_number_.Write(next);
  if (cluster_->Planted(Plant::kLostFsync)) {
    disk_number_.Lose();
    stored_ = next;
    return input();
  }
  locked_ = true;
  cluster_->world.After(disk_, &process, [this, next, input = std::move(input)] {
    disk_number_.Sync();
    stored_ = next;
    input();
    Unlock();
  });
}

void CoordinatorProcess::Drain(const v1::DrainNodeRequest& request) {
  if (!process.up) return;
  cluster_->world.After(cluster_->network.Delay(), &process, [this, request] {
    Locked([this, request] {
      const absl::Status status = Settle(core_->Drain(request));
      Event event;
      event.what = What::kDrained;
      event.who = request.node_id();
      event.flag = request.undo();
      event.status = status;
      cluster_->Record(std::move(event));
      cluster_->world.Trace("coord", request.undo() ? "undrain " : "drain ", request.node_id(), ": ", status.ToString());
      Replan();
    });
  });
}

// One job at a time; what is left comes with the next tick.
void CoordinatorProcess::Replan() {
  if (!core_->NeedsReplan()) return;
  RunPlanning([this] { Settle(core_->Replan()).IgnoreError(); });
}

void CoordinatorProcess::RunRegister(const v1::RegisterWorkerRequest& request, const Reply<Nothing>& reply) {
  const absl::Status status = Settle(core_->RegisterWorker(cluster_->world.now(), Known(request)));
  Accepted("a registration", request.node(), status);
  status.ok() ? reply(Nothing()) : reply(status);
}

void CoordinatorProcess::Release(const v1::ReleaseJobRequest& request, const Reply<Nothing>& reply) {
  Locked([this, request, reply] {
    const absl::Status status = Settle(core_->ReleaseJob(cluster_->world.now(), Known(request)));
    Accepted("a release", request.node(), status);
    status.ok() ? reply(Nothing()) : reply(status);
  });
}

void CoordinatorProcess::NextAttempt(const v1::Meeting& meeting, const Reply<uint64_t>& reply) {
  Locked([this, meeting, reply] {
    uint64_t attempt = 0;
    const absl::Status status = Settle(core_->NextAttempt(Known(meeting), attempt));
    Accepted("an attempt", meeting.node(), status);
    status.ok() ? reply(attempt) : reply(status);
  });
}

void CoordinatorProcess::SetKey(const v1::SetKeyRequest& request, const Reply<Nothing>& reply) {
  Locked([this, request, reply] {
    const absl::Status status = core_->SetKey(request);
    status.ok() ? reply(Nothing()) : reply(status);
  });
}

void CoordinatorProcess::GetKey(const v1::GetKeyRequest& request, const Reply<std::optional<std::string>>& reply) {
  Locked([this, request, reply] { reply(core_->GetKey(request)); });
}

void CoordinatorProcess::ReportPart(const v1::ReportPartRequest& request, const Reply<v1::ReportPartResponse>& reply) {
  Locked([this, request, reply] {
    v1::ReportPartResponse response;
    const absl::Status status = Settle(core_->ReportPart(request, response));
    status.ok() ? reply(response) : reply(status);
  });
}

void CoordinatorProcess::Watch(const std::shared_ptr<WatchStream>& stream, const Reply<Nothing>& reply) {
  Locked([this, stream, reply] {
    if (!core_->IsMember(stream->node)) return reply(absl::NotFoundError("no member; join first"));
    auto& watch = watches_[stream->node.node_id()];
    if (watch != nullptr && watch != stream) EndStream(watch);
    watch = stream;
    for (const v1::WatchPlansResponse& event : core_->CurrentEvents(stream->node.node_id())) Push(stream, event);
    reply(Nothing());
  });
}

v1::GetClusterStatusResponse CoordinatorProcess::Status() const { return core_->Status(cluster_->world.now()); }

}  // namespace dmuon::sim
