// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The metric table: names, types, labels and help texts. Names follow Prometheus: one prefix, base
// units, the unit last, `_total` on counters only. Labels are small fixed sets; never a tensor name,
// a step number, an address or an error text.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace dmuon {

enum class MetricType : uint8_t { kCounter, kGauge, kHistogram };

// One a row of kMetricTable, in its order.
enum class MetricId : uint8_t {
  kBuildInfo,
  kJobInfo,
  kSteps,
  kStepDuration,
  kStageSeconds,
  kSlotSeconds,
  kSlotPlannedSeconds,
  kStepBarrierWait,
  kCurrentStep,
  kLastCommitTimestamp,
  kGeneration,
  kGenerationChanges,
  kMembers,
  kOwnedMatrices,
  kOwnedCostRatio,
  kPlans,
  kPlanCompute,
  kNewtonSchulzCalls,
  kNewtonSchulzIterations,
  kNewtonSchulzRuns,
  kNewtonSchulzRecomputed,
  kNonfinite,
  kFlops,
  kExchangeBytes,
  kExchangeMessages,
  kExchangeFailures,
  kExchangeBucket,
  kGradientBuckets,
  kWorkerWait,
  kSharedMemoryBytes,
  kStateBytes,
  kReplicaLag,
  kRecovery,
  kStepsLost,
  kCheckpointDuration,
  kCheckpointCopy,
  kCheckpointBytes,
  kCheckpointLastSuccess,
  kAttachedWorkers,
  kAttach,
  kWorkerDeaths,
  kRejectedRequests,
  kRpcServerDuration,
  kRpcInflight,
  kLogMessages,
  kCount,
};

struct MetricInfo {
  MetricId id;
  std::string_view name;
  MetricType type;
  std::string_view labels;  // comma-separated names; empty: none
  std::string_view help;
};

inline constexpr std::array<MetricInfo, static_cast<size_t>(MetricId::kCount)> kMetricTable = {{
    {MetricId::kBuildInfo, "dmuon_build_info", MetricType::kGauge, "version,commit,backend",
     "Always 1; what is running."},
    {MetricId::kJobInfo, "dmuon_job_info", MetricType::kGauge, "job_id,world_size",
     "Always 1; a job known to this node."},
    {MetricId::kSteps, "dmuon_steps_total", MetricType::kCounter, "job_id,result",
     "Steps ended, by result: committed, skipped (a gradient was not finite), replayed, failed."},
    {MetricId::kStepDuration, "dmuon_step_duration_seconds", MetricType::kHistogram, "job_id",
     "From the last worker's arrival at a step to the answer to all."},
    {MetricId::kStageSeconds, "dmuon_stage_seconds_total", MetricType::kCounter, "job_id,stage",
     "Time of steps by stage: submit, collect, reduce, orthogonalize, apply, publish, deliver."},
    {MetricId::kSlotSeconds, "dmuon_slot_seconds_total", MetricType::kCounter, "job_id,slot",
     "Time that a slot has spent on its units, from collected gradients to new weights."},
    {MetricId::kSlotPlannedSeconds, "dmuon_slot_planned_seconds", MetricType::kGauge, "job_id,slot",
     "What the plan expects of it in a step; as measured when the job measures, otherwise only ratios mean something."},
    {MetricId::kStepBarrierWait, "dmuon_step_barrier_wait_seconds", MetricType::kHistogram, "job_id",
     "From the first worker's arrival at a step to the last one's."},
    {MetricId::kCurrentStep, "dmuon_current_step", MetricType::kGauge, "job_id",
     "Last applied step."},
    {MetricId::kLastCommitTimestamp, "dmuon_last_commit_timestamp_seconds", MetricType::kGauge,
     "job_id", "Unix time of the last applied step."},
    {MetricId::kGeneration, "dmuon_generation", MetricType::kGauge, "job_id",
     "Generation of the current plan."},
    {MetricId::kGenerationChanges, "dmuon_generation_changes_total", MetricType::kCounter,
     "job_id,reason", "Plans adopted, by reason."},
    {MetricId::kMembers, "dmuon_members", MetricType::kGauge, "state",
     "Nodes known to the coordinator, by state."},
    {MetricId::kOwnedMatrices, "dmuon_owned_matrices", MetricType::kGauge, "job_id",
     "Matrices of matrix optimizers owned by this node."},
    {MetricId::kOwnedCostRatio, "dmuon_owned_cost_ratio", MetricType::kGauge, "job_id",
     "Largest slot cost of the plan over the mean slot cost; 1 is balanced."},
    {MetricId::kPlans, "dmuon_plan_generations_total", MetricType::kCounter, "result",
     "Plans computed by the coordinator, by result: ok, refused."},
    {MetricId::kPlanCompute, "dmuon_plan_compute_seconds", MetricType::kHistogram, "",
     "Time to prove coverage and compute a plan."},
    {MetricId::kNewtonSchulzCalls, "dmuon_newton_schulz_calls_total", MetricType::kCounter, "job_id",
     "Matrices orthogonalised."},
    {MetricId::kNewtonSchulzIterations, "dmuon_newton_schulz_iterations_total",
     MetricType::kCounter, "job_id", "Newton-Schulz iterations run."},
    {MetricId::kNewtonSchulzRuns, "dmuon_newton_schulz_runs_total", MetricType::kCounter,
     "job_id,form,precision", "Newton-Schulz as it was computed, by form (standard, gram) and precision (fp32, bf16)."},
    {MetricId::kNewtonSchulzRecomputed, "dmuon_newton_schulz_recomputed_total", MetricType::kCounter, "job_id",
     "Matrices whose Gram form diverged and which were computed again in the standard form."},
    {MetricId::kNonfinite, "dmuon_nonfinite_total", MetricType::kCounter, "job_id,where",
     "NaN or infinity seen, by place: gradient, update."},
    {MetricId::kFlops, "dmuon_flops_total", MetricType::kCounter, "job_id",
     "Floating-point operations of Newton-Schulz and top-k, by formula."},
    {MetricId::kExchangeBytes, "dmuon_exchange_bytes_total", MetricType::kCounter,
     "job_id,peer,direction,transport",
     "Payload bytes between this node and a peer, by direction: sent, received."},
    {MetricId::kExchangeMessages, "dmuon_exchange_messages_total", MetricType::kCounter,
     "job_id,peer,direction,transport", "Messages between this node and a peer."},
    {MetricId::kExchangeFailures, "dmuon_exchange_failures_total", MetricType::kCounter, "job_id",
     "Times that the connections between a job's nodes broke and were made anew."},
    {MetricId::kExchangeBucket, "dmuon_exchange_bucket_seconds", MetricType::kHistogram, "job_id,cargo",
     "From when a bucket was waited for until it was there and taken up, by cargo: gradient, parameter, state."},
    {MetricId::kGradientBuckets, "dmuon_gradient_buckets_total", MetricType::kCounter, "job_id,when",
     "Buckets of gradients that this node sums or sends, by when: backward (before the step was "
     "called for), step, in_vain (in backward; then gradients were submitted again)."},
    {MetricId::kWorkerWait, "dmuon_worker_wait_seconds_total", MetricType::kCounter, "job_id,rank",
     "Seconds that a worker has stood still for new parameters: exposed communication."},
    {MetricId::kSharedMemoryBytes, "dmuon_shared_memory_bytes", MetricType::kGauge, "job_id,kind",
     "Bytes of the arenas shared with workers."},
    {MetricId::kStateBytes, "dmuon_state_bytes", MetricType::kGauge, "job_id",
     "Bytes of master weights and optimizer state owned by this node."},
    {MetricId::kReplicaLag, "dmuon_replica_lag_steps", MetricType::kGauge, "job_id",
     "Steps by which the copy of this node's state on another node is behind."},
    {MetricId::kRecovery, "dmuon_recovery_duration_seconds", MetricType::kHistogram, "job_id",
     "The meeting in which a lost node's state came back from its copies, with the wait for that node."},
    {MetricId::kStepsLost, "dmuon_steps_lost_total", MetricType::kCounter, "job_id",
     "Steps undone because a node was lost and no copy was newer."},
    {MetricId::kCheckpointDuration, "dmuon_checkpoint_duration_seconds", MetricType::kHistogram, "job_id,op,result",
     "From the call for a checkpoint until it exists, or until a job is restored from it. op: save, restore; result: ok, error."},
    {MetricId::kCheckpointCopy, "dmuon_checkpoint_copy_seconds", MetricType::kHistogram, "job_id",
     "The part of saving that steps wait for: copying this node's state."},
    {MetricId::kCheckpointBytes, "dmuon_checkpoint_bytes_total", MetricType::kCounter, "job_id,op",
     "Bytes of checkpoints that this node has written (op: save), replaced its state by (restore), and of these got from other nodes "
     "(fetch)."},
    {MetricId::kCheckpointLastSuccess, "dmuon_checkpoint_last_success_timestamp_seconds", MetricType::kGauge, "job_id",
     "When the last checkpoint of the job was completed, seconds since 1970."},
    {MetricId::kAttachedWorkers, "dmuon_attached_workers", MetricType::kGauge, "job_id",
     "Workers with a live session."},
    {MetricId::kAttach, "dmuon_attach_total", MetricType::kCounter, "result",
     "Sessions asked for, by result: ok, denied, version, error."},
    {MetricId::kWorkerDeaths, "dmuon_worker_deaths_total", MetricType::kCounter, "job_id",
     "Workers whose arena channel ended without a Close."},
    {MetricId::kRejectedRequests, "dmuon_rejected_requests_total", MetricType::kCounter, "reason",
     "Requests refused, by reason of dmuon.v1.ErrorReason."},
    {MetricId::kRpcServerDuration, "dmuon_rpc_server_duration_seconds", MetricType::kHistogram,
     "method,code", "Time from a call's arrival to its answer."},
    {MetricId::kRpcInflight, "dmuon_rpc_inflight", MetricType::kGauge, "method",
     "Calls that have arrived and are not answered."},
    {MetricId::kLogMessages, "dmuon_log_messages_total", MetricType::kCounter, "level",
     "Lines logged, by level."},
}};

namespace metric_check {

constexpr bool StartsWith(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

constexpr bool EndsWith(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

// Words of [a-z0-9] joined by single underscores.
constexpr bool IsSnakeCase(std::string_view text) {
  char before = '_';
  for (const char c : text) {
    const bool word = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    if (!word && (c != '_' || before == '_')) return false;
    before = c;
  }
  return before != '_';
}

constexpr bool IsWellNamed(const MetricInfo& row) {
  return StartsWith(row.name, "dmuon_") && IsSnakeCase(row.name) && !row.help.empty() &&
         (row.type == MetricType::kCounter) == EndsWith(row.name, "_total") &&
         (row.type != MetricType::kHistogram || EndsWith(row.name, "_seconds"));
}

constexpr bool RowsFollowTheEnum() {
  for (size_t i = 0; i < kMetricTable.size(); ++i) {
    if (static_cast<size_t>(kMetricTable[i].id) != i) return false;
  }
  return true;
}

constexpr bool AllWellNamed() {
  for (const MetricInfo& row : kMetricTable) {
    if (!IsWellNamed(row)) return false;
  }
  return true;
}

static_assert(RowsFollowTheEnum(), "kMetricTable is not in the order of MetricId");
static_assert(AllWellNamed(), "a metric's name breaks the rules at the top of this file");

}  // namespace metric_check

// Number of labels of a row.
constexpr size_t LabelCount(const MetricInfo& row) {
  if (row.labels.empty()) return 0;
  size_t count = 1;
  for (const char c : row.labels) count += c == ',' ? 1 : 0;
  return count;
}

}  // namespace dmuon
