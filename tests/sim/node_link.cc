// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "tests/sim/node_link.h"

#include <algorithm>
#include <utility>

namespace dmuon::sim {
namespace {

constexpr absl::Duration kFirstBackoff = absl::Milliseconds(200);
constexpr absl::Duration kLongestBackoff = absl::Seconds(1);

}  // namespace

NodeLink::NodeLink(Cluster* cluster, Process* process, v1::NodeIdentity node)
    : cluster_(cluster), process_(process), node_(std::move(node)), clock_(&cluster->world, process) {}

void NodeLink::Start(std::function<void(const v1::WatchPlansResponse&)> sink, std::function<v1::JoinRequest()> join) {
  sink_ = std::move(sink);
  join_ = std::move(join);
  loop_ = Loop();
  loop_.Start();
}

Task<void> NodeLink::Sleep(absl::Duration duration) {
  const absl::Time until = cluster_->world.now() + duration;
  while (cluster_->world.now() < until) co_await clock_.Until(until);
}

void NodeLink::Rejoin() {
  rejoin_ = true;
  if (stream_ != nullptr) stream_->ended.Notify();
}

template <typename R, typename Request>
Task<absl::StatusOr<R>> NodeLink::Ask(void (CoordinatorProcess::*method)(const Request&, const Reply<R>&),
                                      Request request) {
  CoordinatorProcess* const coordinator = cluster_->coordinator;
  const absl::Time until = cluster_->world.now() + cluster_->timeouts.coordinator_call;
  const std::function<void(Reply<R>)> handler = [coordinator, method, request](const Reply<R>& reply) {
    (coordinator->*method)(request, reply);
  };
  const Task<absl::StatusOr<R>> asked = Call<R>(&cluster_->network, process_, &coordinator->process, until, handler);
  co_return co_await asked;
}

Task<absl::Status> NodeLink::RegisterWorker(v1::RegisterWorkerRequest request) {
  const auto answer = co_await Ask<Nothing>(&CoordinatorProcess::Register, std::move(request));
  co_return answer.status();
}

Task<absl::Status> NodeLink::ReleaseJob(v1::ReleaseJobRequest request) {
  *request.mutable_node() = node_;
  const auto answer = co_await Ask<Nothing>(&CoordinatorProcess::Release, std::move(request));
  co_return answer.status();
}

Task<absl::StatusOr<uint64_t>> NodeLink::NextAttempt(v1::Meeting meeting) {
  *meeting.mutable_node() = node_;
  co_return co_await Ask<uint64_t>(&CoordinatorProcess::NextAttempt, std::move(meeting));
}

Task<absl::Status> NodeLink::SetKey(v1::Meeting meeting, std::string key, std::string value) {
  v1::SetKeyRequest request;
  *meeting.mutable_node() = node_;
  *request.mutable_meeting() = std::move(meeting);
  request.set_key(std::move(key));
  request.set_value(std::move(value));
  const auto answer = co_await Ask<Nothing>(&CoordinatorProcess::SetKey, std::move(request));
  co_return answer.status();
}

Task<absl::StatusOr<std::optional<std::string>>> NodeLink::GetKey(v1::Meeting meeting, std::string key) {
  v1::GetKeyRequest request;
  *meeting.mutable_node() = node_;
  *request.mutable_meeting() = std::move(meeting);
  request.set_key(std::move(key));
  co_return co_await Ask<std::optional<std::string>>(&CoordinatorProcess::GetKey, std::move(request));
}

Task<absl::StatusOr<v1::ReportPartResponse>> NodeLink::ReportPart(v1::ReportPartRequest request) {
  *request.mutable_node() = node_;
  co_return co_await Ask<v1::ReportPartResponse>(&CoordinatorProcess::ReportPart, std::move(request));
}

Task<void> NodeLink::Loop() {
  absl::Duration backoff = kFirstBackoff;
  while (true) {
    co_await ServeMembership(&backoff);
    co_await Sleep(backoff);
    backoff = std::min(backoff * 2, kLongestBackoff);
  }
}

Task<void> NodeLink::ServeMembership(absl::Duration* backoff) {
  rejoin_ = false;  // this is one
  v1::JoinRequest join = join_();
  const auto joined = co_await Ask<v1::JoinResponse>(&CoordinatorProcess::Join, std::move(join));
  if (!joined.ok()) co_return;
  *backoff = kFirstBackoff;
  cluster_->world.Trace(process_->name, "has joined");
  const auto stream = std::make_shared<WatchStream>(&cluster_->world, process_);
  stream->node = node_;
  stream->sink = sink_;
  stream_ = stream;
  const auto watching = co_await Ask<Nothing>(&CoordinatorProcess::Watch, stream);
  v1::BeatRequest beat;
  *beat.mutable_node() = node_;
  while (watching.ok() && !stream->over) {
    if (!rejoin_) co_await stream->ended.For(absl::Seconds(joined->lease_seconds()) / 3);
    if (stream->over) break;
    if (std::exchange(rejoin_, false)) {
      v1::JoinRequest again = join_();
      const auto rejoined = co_await Ask<v1::JoinResponse>(&CoordinatorProcess::Join, std::move(again));
      if (!rejoined.ok()) break;
      continue;
    }
    const auto beaten = co_await Ask<Nothing>(&CoordinatorProcess::Beat, beat);
    if (!beaten.ok()) break;
  }
  stream->over = true;
}

}  // namespace dmuon::sim
