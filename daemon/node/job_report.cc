// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What a job tells about itself: answers, counters, snapshots.
#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/base/log.h"
#include "daemon/node/job.h"

namespace dmuon::node {
namespace {

constexpr size_t kRecentSteps = 100;

double Median(const std::deque<double>& values) {
  if (values.empty()) return 0.0;
  std::vector<double> sorted(values.begin(), values.end());
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

// Largest slot cost over the mean slot cost.
double CostRatio(const v1::Plan& plan) {
  double total = 0.0;
  for (const v1::Unit& unit : plan.units()) total += unit.cost_seconds();
  double slots = 0.0;
  for (const uint32_t count : plan.slots()) slots += count;
  return total > 0.0 ? plan.makespan_seconds() * slots / total : 1.0;
}

}  // namespace

v1::RegisterResponse Job::RegisteredResponse(SessionId session) const {
  v1::RegisterResponse response;
  response.set_generation(core_.generation());
  response.set_arena_bytes(sessions_.at(session)->arena.bytes());
  response.set_plan_digest(plan_->digest());
  response.set_matrix_units(pipeline_->matrix_units());
  response.set_elementwise_units(pipeline_->elementwise_units());
  response.set_nodes(static_cast<uint32_t>(plan_->nodes_size()));
  response.set_first_rank(RanksHere(*plan_).front());
  return response;
}

v1::StepResponse Job::SteppedResponse(uint64_t step, bool replayed) const {
  const Verdict& verdict = last_report_.verdict;
  v1::StepResponse response;
  response.set_step(step);
  response.set_skipped(verdict.skip);
  response.set_skip_reason(verdict.skip_reason);
  response.set_replayed(replayed);
  response.set_grad_norm(verdict.grad_norm);
  response.set_clip(verdict.clip);
  response.set_newton_schulz_calls(newton_schulz_calls_);
  response.set_service_seconds(last_seconds_);
  return response;
}

wire::StepAnswer Job::Answer() const {
  const Verdict& verdict = last_report_.verdict;
  return {verdict.grad_norm, verdict.clip, newton_schulz_calls_, last_seconds_};
}

void Job::CountNewtonSchulz(const NewtonSchulzWork& work) {
  Metrics& metrics = *environment_.metrics;
  metrics.Increment(MetricId::kNewtonSchulzCalls, {job_id_}, static_cast<double>(work.calls));
  metrics.Increment(MetricId::kNewtonSchulzIterations, {job_id_}, static_cast<double>(work.iterations));
  metrics.Increment(MetricId::kNewtonSchulzRecomputed, {job_id_}, static_cast<double>(work.recomputed));
  metrics.Increment(MetricId::kFlops, {job_id_}, work.flops);
  for (int i = 0; i < kernels::kMethods; ++i) {
    const kernels::Method method = kernels::MethodAt(i);
    metrics.Increment(MetricId::kNewtonSchulzRuns,
                      {job_id_, std::string(kernels::Name(method.form)), std::string(kernels::Name(method.precision))},
                      static_cast<double>(work.by_method[static_cast<size_t>(i)]));
  }
}

void Job::CountStep(const absl::Status& status, const StepReport& report, double seconds) {
  Metrics& metrics = *environment_.metrics;
  const bool skipped = status.ok() && report.verdict.skip;
  const char* result = !status.ok() ? "failed" : skipped ? "skipped" : "committed";
  metrics.Increment(MetricId::kSteps, {job_id_, result});
  // A step that broke after its update has done this work, and will not do it again.
  newton_schulz_calls_ += report.newton_schulz.calls;
  CountNewtonSchulz(report.newton_schulz);
  if (!status.ok()) {
    LogWarning("job ", job_id_, ": step ", report.step, " failed: ", status.message());
    return;
  }
  metrics.Observe(MetricId::kStepDuration, {job_id_}, seconds);
  for (size_t stage = 0; stage < kStageNames.size(); ++stage) {
    metrics.Increment(MetricId::kStageSeconds, {job_id_, kStageNames[stage]},
                      report.stage_seconds[stage]);
  }
  for (size_t slot = 0; slot < report.slot_seconds.size(); ++slot) {
    metrics.Increment(MetricId::kSlotSeconds, {job_id_, absl::StrCat(slot)}, report.slot_seconds[slot]);
  }
  metrics.Increment(MetricId::kGradientBuckets, {job_id_, "backward"},
                    static_cast<double>(report.buckets_ahead));
  metrics.Increment(MetricId::kGradientBuckets, {job_id_, "in_vain"},
                    static_cast<double>(report.buckets_again));
  metrics.Increment(MetricId::kGradientBuckets, {job_id_, "step"},
                    static_cast<double>(report.buckets - report.buckets_ahead));
  metrics.Set(MetricId::kCurrentStep, {job_id_}, static_cast<double>(report.step));
  metrics.Set(MetricId::kLastCommitTimestamp, {job_id_},
              absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()));
  if (skipped) {
    ++skipped_steps_;
    metrics.Increment(MetricId::kNonfinite, {job_id_, "gradient"});
    LogWarning("job ", job_id_, ": step ", report.step, " skipped: ", report.verdict.skip_reason);
  }
  recent_seconds_.push_back(seconds);
  if (recent_seconds_.size() > kRecentSteps) recent_seconds_.pop_front();
}

// What recoveries since the last call cost: `took` is of the meeting.
void Job::NoteRecovery(absl::Duration took) {
  if (pipeline_->recoveries() == recoveries_) return;
  recoveries_ = pipeline_->recoveries();
  environment_.metrics->Observe(MetricId::kRecovery, {job_id_}, absl::ToDoubleSeconds(took));
}

void Job::CountTraffic() {
  if (peers_ == nullptr) return;
  const Peers::Traffic traffic = peers_->TakeTraffic();
  Metrics& metrics = *environment_.metrics;
  for (uint32_t peer = 0; peer < traffic.peers.size(); ++peer) {
    for (const auto& [direction, flow] : {std::pair("sent", traffic.peers[peer].sent),
                                          std::pair("received", traffic.peers[peer].received)}) {
      if (flow.messages == 0) continue;
      const Metrics::Labels labels = {job_id_, peers_->name(peer), direction, traffic.transport};
      metrics.Increment(MetricId::kExchangeBytes, labels, static_cast<double>(flow.bytes));
      metrics.Increment(MetricId::kExchangeMessages, labels, static_cast<double>(flow.messages));
    }
  }
  for (const MailExchange::Arrival& arrival : traffic.arrivals) {
    metrics.Observe(MetricId::kExchangeBucket,
                    {job_id_, CargoName(arrival.cargo)}, arrival.seconds);
  }
  if (traffic.broken > 0) {
    metrics.Increment(MetricId::kExchangeFailures, {job_id_}, static_cast<double>(traffic.broken));
  }
}

void Job::CountWait(SessionId session, double seconds) {
  const auto it = sessions_.find(session);
  if (it == sessions_.end() || !std::isfinite(seconds) || seconds <= 0.0) return;
  environment_.metrics->Increment(MetricId::kWorkerWait,
                                  {job_id_, absl::StrCat(it->second->rank())}, seconds);
}

void Job::PublishSnapshot() {
  v1::NodeJobStatus status;
  status.set_job_id(job_id_);
  status.set_world_size(world_size_);
  for (const uint32_t rank : core_.attached_ranks()) status.add_attached_ranks(rank);
  status.set_generation(plan_->generation());
  status.set_last_step(core_.last_step());
  status.set_state(ended_ ? "ended, kept for the other nodes" : core_.Describe());
  status.set_state_bytes(pipeline_ ? pipeline_->state_bytes() : 0);
  uint64_t arena_bytes = 0;
  for (const auto& [id, session] : sessions_) arena_bytes += session->arena.bytes();
  status.set_arena_bytes(arena_bytes);
  status.set_newton_schulz_calls(newton_schulz_calls_);
  status.set_skipped_steps(skipped_steps_);
  status.set_step_seconds_p50(Median(recent_seconds_));
  if (checkpoints_ != nullptr) *status.mutable_checkpoint() = checkpoints_->Status();
  if (pipeline_ != nullptr && pipeline_->replicas().on()) DescribeReplicas(*status.mutable_replication());
  Metrics& metrics = *environment_.metrics;
  metrics.Set(MetricId::kAttachedWorkers, {job_id_}, static_cast<double>(sessions_.size()));
  metrics.Set(MetricId::kSharedMemoryBytes, {job_id_, "memfd"}, static_cast<double>(arena_bytes));
  wire::MutexLock lock(mu_);
  snapshot_ = std::move(status);
  has_state_ = core_.initialized();
}

void Job::DescribeReplicas(v1::ReplicationStatus& status) {
  const Replicas& replicas = pipeline_->replicas();
  if (!replicas.ward().has_value()) return;
  const auto buddy = static_cast<int>(plan_->buddies(static_cast<int>(replicas.self())));
  status.set_buddy(plan_->nodes(buddy));
  status.set_ward(plan_->nodes(static_cast<int>(*replicas.ward())));
  status.set_copy_bytes(replicas.bytes());
  status.set_recoveries(pipeline_->recoveries());
  const std::optional<uint64_t> newest = replicas.newest();
  if (!newest.has_value()) return;
  status.set_copied_step(*newest);
  const uint64_t reached = core_.initialized() ? pipeline_->reached_step() : *newest;
  environment_.metrics->Set(MetricId::kReplicaLag, {job_id_}, static_cast<double>(reached - std::min(reached, *newest)));
}

void Job::PublishPlan(std::string_view why) {
  Metrics& metrics = *environment_.metrics;
  metrics.Set(MetricId::kJobInfo, {job_id_, absl::StrCat(world_size_)}, 1.0);
  metrics.Set(MetricId::kGeneration, {job_id_}, static_cast<double>(plan_->generation()));
  metrics.Increment(MetricId::kGenerationChanges, {job_id_, why});
  metrics.Set(MetricId::kOwnedMatrices, {job_id_}, static_cast<double>(pipeline_->matrix_units()));
  metrics.Set(MetricId::kOwnedCostRatio, {job_id_}, CostRatio(*plan_));
  std::vector<double> planned(environment_.slots);
  for (const v1::Unit& unit : plan_->units()) {
    const v1::Slot& owner = unit.owners(0);
    const bool here = plan_->nodes(static_cast<int>(owner.node())) == environment_.node.node_id();
    if (here && owner.slot() < planned.size()) planned[owner.slot()] += unit.cost_seconds();
  }
  for (size_t slot = 0; slot < planned.size(); ++slot) {
    metrics.Set(MetricId::kSlotPlannedSeconds, {job_id_, absl::StrCat(slot)}, planned[slot]);
  }
  metrics.Set(MetricId::kStateBytes, {job_id_}, static_cast<double>(pipeline_->state_bytes()));
  HoldPlan();
}

void Job::HoldPlan() {
  wire::MutexLock lock(mu_);
  held_.emplace();
  *held_->mutable_plan() = *plan_;
  *held_->mutable_job() = spec_;
  for (const uint32_t rank : RanksHere(*plan_)) {
    v1::HeldShards& shards = *held_->add_ranks();
    shards.set_rank(rank);
    *shards.mutable_shards() = accepted_.at(rank).shards;
  }
}

v1::NodeJobStatus Job::Status() const {
  wire::MutexLock lock(mu_);
  return snapshot_;
}

std::optional<v1::HeldJob> Job::Held() const {
  wire::MutexLock lock(mu_);
  if (!held_.has_value()) return std::nullopt;
  v1::HeldJob held = *held_;
  held.set_last_step(snapshot_.last_step());
  held.set_has_state(has_state_);
  return held;
}

}  // namespace dmuon::node
