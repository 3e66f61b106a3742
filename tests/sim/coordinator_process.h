// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// `dmuon-coordinator`: the real core in a model of its shell (daemon/coordinator/host.cc): one lock, watches, and the
// next generation on disk before the core may hand it out.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/coordinator/coordinator.h"
#include "dmuon/v1/coordinator.pb.h"
#include "tests/sim/cluster.h"
#include "tests/sim/task.h"

namespace dmuon::sim {

template <typename R>
using Reply = std::function<void(absl::StatusOr<R>)>;
struct Nothing {};

// generation_store.h without a file. What was not synced is lost in a crash, and in the middle of a write either number
// may be found.
class DurableNumber {
 public:
  [[nodiscard]] uint64_t AfterCrash(Random& random) {
    if (written_ != synced_ && random.Chance(0.5)) synced_ = written_;
    written_ = synced_;
    return synced_;
  }
  void Write(uint64_t number) { written_ = number; }
  void Sync() { synced_ = written_; }
  void Lose() { written_ = synced_; }  // planted: as if it had never been written

 private:
  uint64_t written_ = 0;
  uint64_t synced_ = 0;
};

// The events for one node, on their way to it.
struct WatchStream {
  WatchStream(World* world, Process* listener) : process(listener), ended(world, listener) {}
  v1::NodeIdentity node;
  Process* const process;
  std::function<void(const v1::WatchPlansResponse&)> sink;  // in the node's process
  absl::Time last = absl::InfinitePast();
  bool over = false;
  Signal ended;
};

class CoordinatorProcess {
 public:
  explicit CoordinatorProcess(Cluster* cluster);

  void Start();
  void Crash();
  // How long a write takes from now on.
  void SetDisk(absl::Duration write) { disk_ = write; }

  // In this process.
  void Join(const v1::JoinRequest& request, const Reply<v1::JoinResponse>& reply);
  void Beat(const v1::BeatRequest& request, const Reply<Nothing>& reply);
  void Register(const v1::RegisterWorkerRequest& request, const Reply<Nothing>& reply);
  void Release(const v1::ReleaseJobRequest& request, const Reply<Nothing>& reply);
  void NextAttempt(const v1::Meeting& meeting, const Reply<uint64_t>& reply);
  void SetKey(const v1::SetKeyRequest& request, const Reply<Nothing>& reply);
  void GetKey(const v1::GetKeyRequest& request, const Reply<std::optional<std::string>>& reply);
  void ReportPart(const v1::ReportPartRequest& request, const Reply<v1::ReportPartResponse>& reply);
  void Watch(const std::shared_ptr<WatchStream>& stream, const Reply<Nothing>& reply);

  // An operator's.
  void Drain(const v1::DrainNodeRequest& request);

  [[nodiscard]] v1::GetClusterStatusResponse Status() const;

  Process process;

 private:
  // Under the lock, which a slow disk holds.
  void Locked(std::function<void()> input);
  void Unlock();
  absl::Status Settle(coordinator::Outcome outcome);
  void RunPlanning(std::function<void()> input);
  void Replan();
  void RunRegister(const v1::RegisterWorkerRequest& request, const Reply<Nothing>& reply);
  void Accepted(absl::string_view call, const v1::NodeIdentity& node, const absl::Status& status);
  void RecordPlan(const v1::Plan& plan);
  void RecordLeftOut(const coordinator::Outcome& outcome);
  void TickLater();
  void Push(const std::shared_ptr<WatchStream>& stream, const v1::WatchPlansResponse& event);
  void EndStream(const std::shared_ptr<WatchStream>& stream);
  // Planted: a former process of a node passes for its present one.
  template <typename Request>
  [[nodiscard]] Request Known(Request request) const;

  Cluster* const cluster_;
  DurableNumber disk_number_;
  absl::Duration disk_ = absl::Microseconds(200);
  // State of the process.
  std::optional<coordinator::Coordinator> core_;
  uint64_t stored_ = 0;
  std::map<std::string, std::shared_ptr<WatchStream>> watches_;  // by node id
  std::map<std::string, std::string> members_;                   // incarnation that joined last, by node id
  bool locked_ = false;
  std::deque<std::function<void()>> waiting_;
};

}  // namespace dmuon::sim
