// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The coordinator as a live thing: the pure core behind one lock, with a clock, a generation store,
// metrics, a log, and the watches of nodes. gRPC service and local link are two ways into it.
//
// Thread-safe. Calls are short but for the RegisterWorker that completes a job: it proves coverage
// and plans under the lock (about a second for 100 000 tensors on 8 ranks), and the others wait.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/base/clock.h"
#include "daemon/base/metrics.h"
#include "daemon/coordinator/coordinator.h"
#include "daemon/coordinator/generation_store.h"
#include "daemon/coordinator/plan_queue.h"
#include "dmuon/v1/coordinator.pb.h"
#include "wire/mutex.h"

namespace dmuon::coordinator {

struct HostOptions {
  absl::Duration lease = absl::Seconds(15);
  // Tests own the time.
  std::function<absl::Time()> now = MonotonicNow;
};

class Host {
 public:
  // Goes on above `store.highest()`. `metrics` outlives the host.
  Host(HostOptions options, GenerationStore store, Metrics* metrics);
  // Ends all watches.
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  // Each as its namesake in dmuon.v1.CoordinatorService.
  absl::StatusOr<v1::JoinResponse> Join(const v1::JoinRequest& request);
  absl::Status Beat(const v1::BeatRequest& request);
  absl::Status Leave(const v1::LeaveRequest& request);
  // UNAVAILABLE, and nothing changed, when the next generation cannot be stored.
  absl::Status RegisterWorker(const v1::RegisterWorkerRequest& request);
  absl::Status ReleaseJob(const v1::ReleaseJobRequest& request);
  absl::StatusOr<uint64_t> NextAttempt(const v1::Meeting& meeting);
  absl::Status SetKey(const v1::SetKeyRequest& request);
  absl::StatusOr<std::optional<std::string>> GetKey(const v1::GetKeyRequest& request);
  absl::StatusOr<v1::ReportPartResponse> ReportPart(const v1::ReportPartRequest& request);
  // UNAVAILABLE when a generation cannot be stored: plans come later, by Tick.
  absl::Status DrainNode(const v1::DrainNodeRequest& request);
  v1::GetClusterStatusResponse GetClusterStatus();
  absl::StatusOr<v1::GetPlanResponse> GetPlan(const v1::GetPlanRequest& request);

  // Fills `queue` with the node's current events, then with every new one, until the node is no
  // member any more in this incarnation (ABORTED), watches again (ABORTED), or EndWatches is
  // called. The queue is woken before this returns. NOT_FOUND/UNKNOWN_NODE.
  absl::Status Watch(const v1::NodeIdentity& node, std::shared_ptr<PlanQueue> queue);
  // UNAVAILABLE/DRAINING to all watches, now and from now on.
  void EndWatches();

  // Drops members whose lease has run out, and plans anew what has to be. Call a few times a lease.
  void Tick();
  [[nodiscard]] absl::Duration lease() const { return options_.lease; }

 private:
  struct Watcher {
    v1::NodeIdentity node;
    std::shared_ptr<PlanQueue> queue;
  };
  using Touched = std::vector<std::shared_ptr<PlanQueue>>;

  // Queues what came out, ends watches of nodes that are gone, counts and logs.
  absl::Status Settle(Outcome outcome, Touched& touched) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Successors for all jobs that need one.
  absl::Status Replan();
  // Runs one input of the core that may plan, with a generation for it on disk.
  absl::Status RunPlanning(const std::function<Outcome(Coordinator&, absl::Time)>& input);
  // Runs one input of the core under the lock and wakes whom it concerns after it.
  absl::Status Run(const std::function<Outcome(Coordinator&, absl::Time)>& input);

  const HostOptions options_;
  Metrics* const metrics_;
  wire::Mutex mu_;  // only PlanQueue's lock is taken while it is held
  GenerationStore store_ ABSL_GUARDED_BY(mu_);
  Coordinator core_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, Watcher> watchers_ ABSL_GUARDED_BY(mu_);  // by node id
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace dmuon::coordinator
