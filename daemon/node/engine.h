// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The node: all jobs and sessions of one daemon. A library without process-wide state; `dmuond` is
// its shell, and tests may run several in one process.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/base/coordinator_link.h"
#include "daemon/base/metrics.h"
#include "daemon/checkpoint/store.h"
#include "daemon/node/autotuner.h"
#include "daemon/node/channel_server.h"
#include "daemon/node/job.h"
#include "daemon/node/memory_budget.h"
#include "daemon/node/worker_session.h"
#include "dmuon/v1/checkpoint.pb.h"
#include "dmuon/v1/node.pb.h"
#include "kernels/backend.h"
#include "wire/arena_channel.h"
#include "wire/mutex.h"

namespace dmuon::node {

struct EngineOptions {
  // Behaviour.
  std::string node_id = "node-0";
  absl::Duration step_timeout = absl::Seconds(60);    // how long workers wait for each other
  absl::Duration orphan_timeout = absl::Hours(1);     // how long state outlives its last worker
  absl::Duration attach_timeout = absl::Seconds(10);  // from Open to the hello on the arena channel
  // Limits.
  uint64_t memory_limit_bytes = uint64_t{8} << 30;
  size_t max_jobs = 64;
  size_t max_sessions = 4096;
  // Performance.
  uint32_t slots = 1;
  int threads_per_slot = 1;
  bool overlap = true;  // exchange while later matrices are being worked on
  bool owns_all = false;  // units of jobs without workers here, too
  std::string cache_directory;  // of measured times; empty: they end with the engine
  absl::Duration autotune_budget = absl::Seconds(30);  // of one job's measurements
  // Checkpoints; outlives the engine. Null: none are kept.
  checkpoint::Store* checkpoints = nullptr;

  // INVALID_ARGUMENT naming the option, its value and its bound.
  [[nodiscard]] absl::Status Validate() const;
};

// When to answer who waits for `budget`: a little before that, so that an error that names the culprit
// arrives instead of a bare "deadline exceeded".
absl::Time AnswerBy(absl::Duration budget);

class Engine : public ChannelOwner {
 public:
  // All pointers outlive the engine. `options` are valid. `connect_peers` makes the connections of
  // jobs that are spread over several nodes.
  Engine(EngineOptions options, kernels::Backend* backend, CoordinatorLink* link, Metrics* metrics,
         ConnectPeers connect_peers);
  ~Engine() override;

  // Joins the coordinator.
  void Start();
  // Refuses new sessions, lets running steps end, answers UNAVAILABLE/DRAINING to all that waits,
  // leaves the coordinator. State is gone afterwards. Idempotent.
  void Drain();

  // The calls of NodeService; requests are checked here. Thread-safe; they return at once.
  void Open(const v1::OpenRequest& request, Reply<v1::OpenResponse> reply);
  void Register(v1::RegisterRequest request, absl::Time deadline,
                Reply<v1::RegisterResponse> reply);
  void Begin(const v1::BeginRequest& request, absl::Time deadline, Reply<v1::BeginResponse> reply);
  void Step(v1::StepRequest request, absl::Time deadline, Reply<v1::StepResponse> reply);
  void Save(const v1::SaveRequest& request, absl::Time deadline, Reply<v1::SaveResponse> reply);
  void Restore(const v1::RestoreRequest& request, absl::Time deadline, Reply<v1::RestoreResponse> reply);
  void Export(const v1::ExportRequest& request, absl::Time deadline, Reply<v1::ExportResponse> reply);
  void Import(const v1::ImportRequest& request, absl::Time deadline, Reply<v1::ImportResponse> reply);
  void Close(const v1::CloseRequest& request, Reply<v1::CloseResponse> reply);
  // Of CheckpointService, which has validated the name.
  void SaveJob(const std::string& job_id, const std::string& name, absl::Time deadline, Reply<v1::SaveJobResponse> reply);
  // Jobs by id; the rest of the message is the shell's.
  [[nodiscard]] std::vector<v1::NodeJobStatus> JobStatuses() const;
  // Also while something is measured.
  [[nodiscard]] v1::GetKernelsResponse Kernels() const { return autotuner_.Describe(); }

  // ChannelOwner.
  absl::Status Hello(const wire::ChannelFrame& frame, int channel, int pidfd) override;
  absl::Status Ring(uint64_t session_id, const wire::ReceivedFrame& step) override;
  absl::Status ExpectGradients(uint64_t session_id, const wire::ChannelFrame& frame) override;
  absl::Status Offer(uint64_t session_id, wire::ScopedFd state) override;
  absl::Status Release(uint64_t session_id) override;
  void ChannelGone(uint64_t session_id) override;

  [[nodiscard]] const EngineOptions& options() const { return options_; }
  [[nodiscard]] const std::string& incarnation() const { return node_.incarnation(); }

 private:
  struct Entry {
    std::shared_ptr<WorkerSession> session;
    std::shared_ptr<Job> job;
    absl::Time opened;
  };

  absl::StatusOr<std::shared_ptr<Job>> JobFor(const v1::OpenRequest& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<std::shared_ptr<Job>> NewJob(const std::string& job_id, uint32_t world_size)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // NOT_FOUND/UNKNOWN_SESSION.
  absl::StatusOr<std::shared_ptr<Job>> JobOf(SessionId session) const;
  v1::JoinRequest JoinReport() const;
  void OnPlanEvent(const v1::WatchPlansResponse& event);
  void OnJobEnd(const std::string& job_id);
  void OnSessionDropped(SessionId session);
  void Janitor();

  const EngineOptions options_;
  v1::NodeIdentity node_;
  CoordinatorLink* const link_;
  const ConnectPeers connect_peers_;
  Metrics* const metrics_;
  kernels::Backend* const backend_;
  MemoryBudget budget_;
  Autotuner autotuner_;
  std::atomic<uint64_t> registrations_{0};  // sent to the coordinator

  // A job's lock may be taken while this one is held, never the other way round.
  mutable wire::Mutex mu_;
  wire::CondVar changed_;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t highest_generation_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<std::string, std::shared_ptr<Job>> jobs_ ABSL_GUARDED_BY(mu_);
  std::map<SessionId, Entry> sessions_ ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<Job>> released_ ABSL_GUARDED_BY(mu_);  // for the janitor to drop
  std::thread janitor_;
};

}  // namespace dmuon::node
