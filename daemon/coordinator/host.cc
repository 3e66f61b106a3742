// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include "daemon/coordinator/host.h"

#include <chrono>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/failpoint.h"
#include "daemon/base/log.h"
#include "wire/error.h"

namespace dmuon::coordinator {
namespace {

// The labels of kPlans.
std::string_view ResultOf(Planning planning) {
  return planning == Planning::kPlanned ? "ok" : "refused";
}

}  // namespace

Host::Host(HostOptions options, GenerationStore store, Metrics* metrics)
    : options_(std::move(options)),
      metrics_(metrics),
      store_(std::move(store)),
      core_({options_.lease, store_.highest()}) {
  metrics_->Set(MetricId::kMembers, {"alive"}, 0);
}

Host::~Host() { EndWatches(); }

absl::Status Host::Run(const std::function<Outcome(Coordinator&, absl::Time)>& input) {
  Touched touched;
  absl::Status status;
  {
    wire::MutexLock lock(mu_);
    status = Settle(input(core_, options_.now()), touched);
  }
  for (const std::shared_ptr<PlanQueue>& queue : touched) queue->Wake();
  return status;
}

absl::Status Host::Settle(Outcome outcome, Touched& touched) {
  if (outcome.succeeded) AtFailpoint(Failpoint::kSucceeded);
  for (Outgoing& out : outcome.outgoing) {
    const auto watcher = watchers_.find(out.node_id);
    // A node without a watch hears of plans and calls when it begins one, and of a refusal or an end
    // when it asks again.
    if (watcher == watchers_.end()) continue;
    watcher->second.queue->Push(std::move(out.event));
    touched.push_back(watcher->second.queue);
  }
  for (auto watcher = watchers_.begin(); watcher != watchers_.end();) {
    if (core_.IsMember(watcher->second.node)) {
      ++watcher;
      continue;
    }
    watcher->second.queue->End(absl::AbortedError(absl::StrCat(
        "node '", watcher->first, "' in incarnation '", watcher->second.node.incarnation(),
        "' is no member any more")));
    touched.push_back(watcher->second.queue);
    watcher = watchers_.erase(watcher);
  }
  if (outcome.planning != Planning::kNone) {
    metrics_->Increment(MetricId::kPlans, {ResultOf(outcome.planning)});
  }
  metrics_->Set(MetricId::kMembers, {"alive"}, static_cast<double>(core_.member_count()));
  if (!outcome.reason.empty()) LogInfo("coordinator: ", outcome.reason);
  return std::move(outcome.status);
}

absl::StatusOr<v1::JoinResponse> Host::Join(const v1::JoinRequest& request) {
  DMUON_RETURN_IF_ERROR(
      Run([&](Coordinator& core, absl::Time now) { return core.Join(now, request); }));
  Replan().IgnoreError();  // logged; nodes that have gone over to a plan say so by joining, and the next one may be due
  v1::JoinResponse response;
  response.set_lease_seconds(absl::ToDoubleSeconds(options_.lease));
  return response;
}

absl::Status Host::Beat(const v1::BeatRequest& request) {
  return Run([&](Coordinator& core, absl::Time now) { return core.Beat(now, request); });
}

absl::Status Host::Leave(const v1::LeaveRequest& request) {
  DMUON_RETURN_IF_ERROR(Run([&](Coordinator& core, absl::Time now) { return core.Leave(now, request); }));
  Replan().IgnoreError();  // logged
  return absl::OkStatus();
}

absl::Status Host::RegisterWorker(const v1::RegisterWorkerRequest& request) {
  return RunPlanning([&](Coordinator& core, absl::Time now) { return core.RegisterWorker(now, request); });
}

absl::Status Host::DrainNode(const v1::DrainNodeRequest& request) {
  DMUON_RETURN_IF_ERROR(Run([&](Coordinator& core, absl::Time) { return core.Drain(request); }));
  return Replan();
}

absl::Status Host::Replan() {
  while (true) {
    {
      wire::MutexLock lock(mu_);
      if (!core_.NeedsReplan()) return absl::OkStatus();
    }
    DMUON_RETURN_IF_ERROR(RunPlanning([](Coordinator& core, absl::Time) { return core.Replan(); }));
  }
}

absl::Status Host::RunPlanning(const std::function<Outcome(Coordinator&, absl::Time)>& input) {
  Touched touched;
  absl::Status status;
  {
    wire::MutexLock lock(mu_);
    // On disk before it can be given out: a crash may waste a generation, never reuse one.
    if (absl::Status stored = store_.Reserve(core_.highest_generation() + 1); !stored.ok()) {
      LogError("coordinator: ", absl::string_view(stored.message()));
      return stored;
    }
    AtFailpoint(Failpoint::kGenerationStored);
    const absl::Time start = options_.now();
    Outcome outcome = input(core_, start);
    if (outcome.planning != Planning::kNone) {
      AtFailpoint(Failpoint::kPlanMade);
      metrics_->Observe(MetricId::kPlanCompute, {},
                        absl::ToDoubleSeconds(options_.now() - start));
    }
    status = Settle(std::move(outcome), touched);
  }
  for (const std::shared_ptr<PlanQueue>& queue : touched) queue->Wake();
  return status;
}

absl::Status Host::ReleaseJob(const v1::ReleaseJobRequest& request) {
  return Run([&](Coordinator& core, absl::Time now) { return core.ReleaseJob(now, request); });
}

absl::StatusOr<uint64_t> Host::NextAttempt(const v1::Meeting& meeting) {
  uint64_t attempt = 0;
  DMUON_RETURN_IF_ERROR(
      Run([&](Coordinator& core, absl::Time) { return core.NextAttempt(meeting, attempt); }));
  return attempt;
}

absl::Status Host::SetKey(const v1::SetKeyRequest& request) {
  wire::MutexLock lock(mu_);
  return core_.SetKey(request);
}

absl::StatusOr<std::optional<std::string>> Host::GetKey(const v1::GetKeyRequest& request) {
  wire::MutexLock lock(mu_);
  return core_.GetKey(request);
}

absl::StatusOr<v1::ReportPartResponse> Host::ReportPart(const v1::ReportPartRequest& request) {
  v1::ReportPartResponse response;
  DMUON_RETURN_IF_ERROR(
      Run([&](Coordinator& core, absl::Time) { return core.ReportPart(request, response); }));
  return response;
}

void Host::Tick() {
  // Ticking has no caller to answer.
  Run([](Coordinator& core, absl::Time now) { return core.Tick(now); }).IgnoreError();
  Replan().IgnoreError();  // logged
}

v1::GetClusterStatusResponse Host::GetClusterStatus() {
  wire::MutexLock lock(mu_);
  return core_.Status(options_.now());
}

absl::StatusOr<v1::GetPlanResponse> Host::GetPlan(const v1::GetPlanRequest& request) {
  wire::MutexLock lock(mu_);
  return core_.GetPlan(request.job_id());
}

absl::Status Host::Watch(const v1::NodeIdentity& node, std::shared_ptr<PlanQueue> queue) {
  Touched touched = {queue};
  {
    wire::MutexLock lock(mu_);
    if (ended_) return wire::Draining("the coordinator");
    if (!core_.IsMember(node)) {
      return wire::Error(absl::StatusCode::kNotFound, v1::ERROR_REASON_UNKNOWN_NODE,
                         absl::StrCat("node '", node.node_id(), "' is no member; join first"));
    }
    queue->PushInitial(core_.CurrentEvents(node.node_id()));
    Watcher& watcher = watchers_[node.node_id()];
    if (watcher.queue != nullptr) {
      watcher.queue->End(absl::AbortedError(
          absl::StrCat("node '", node.node_id(), "' watches anew")));
      touched.push_back(watcher.queue);
    }
    watcher = {node, std::move(queue)};
  }
  for (const std::shared_ptr<PlanQueue>& woken : touched) woken->Wake();
  return absl::OkStatus();
}

void Host::EndWatches() {
  Touched touched;
  {
    wire::MutexLock lock(mu_);
    ended_ = true;
    for (const auto& [id, watcher] : watchers_) {
      watcher.queue->End(wire::Draining("the coordinator"));
      touched.push_back(watcher.queue);
    }
    watchers_.clear();
  }
  for (const std::shared_ptr<PlanQueue>& queue : touched) queue->Wake();
}

}  // namespace dmuon::coordinator
