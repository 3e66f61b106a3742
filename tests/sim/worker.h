// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A training worker: the client library's way with a daemon (client/src/attachment.cc: retry, recover, resubmit the
// same) in the hands of a trainer that computes, steps, and repeats what failed or ends.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "dmuon/v1/coordinator.pb.h"
#include "dmuon/v1/node.pb.h"
#include "tests/sim/cluster.h"
#include "tests/sim/node_process.h"
#include "tests/sim/task.h"
#include "tests/sim/training.h"

namespace dmuon::sim {

// How its process ended.
enum class WorkerEnd : uint8_t { kRuns, kDone, kLost, kGaveUp, kCrashed };

class WorkerProcess {
 public:
  struct Options {
    v1::RegisterWorkerRequest registration;  // without node and sequence
    uint64_t goal = 6;                       // last step
    uint64_t start = 0;                      // which start of the job: its initial parameters
    absl::Duration backward = absl::Milliseconds(100);
    double mistakes = 0.0;  // chance a step that it forgets a gradient, or has other hyper-parameters, at first
  };
  WorkerProcess(Cluster* cluster, NodeProcess* node, uint32_t rank);

  void Start(const Options& options);
  void Crash();
  [[nodiscard]] WorkerEnd end() const { return end_; }
  [[nodiscard]] bool has_begun() const { return ever_begun_; }
  [[nodiscard]] std::string Describe() const;

  Process process;

 private:
  Task<void> Main();
  Task<absl::Status> BeginTraining(uint64_t* last_step);
  Task<absl::Status> TrainStep(uint64_t* last_step);
  Task<absl::Status> GoBack(absl::Status why, uint64_t* last_step);
  // The client.
  Task<absl::Status> Connect(absl::Time until, absl::Time taken_until);
  Task<absl::Status> Attach(absl::Time until);
  Task<absl::StatusOr<v1::BeginResponse>> Begin(bool must_resume, absl::Time until);
  Task<absl::Status> Resume(uint64_t step, absl::Time until);
  Task<absl::Status> StepCall(uint64_t step, double lr);
  Task<void> Close();
  void DropSession();
  Task<bool> Pause(absl::Time until);
  template <typename R>
  using AskFor = std::function<void(NodeProcess*, absl::Duration budget, const Reply<R>&)>;
  template <typename R>
  Task<absl::StatusOr<R>> Ask(absl::Time until, AskFor<R> call);

  void Finish(WorkerEnd end);
  [[nodiscard]] Event EventOf(What what) const;
  [[nodiscard]] absl::Time CallDeadline() const { return cluster_->world.now() + cluster_->timeouts.client_call; }

  Cluster* const cluster_;
  NodeProcess* const node_;
  const uint32_t rank_;
  uint64_t batch_ = 0;  // how often the trainer has gone back; its data is on a disk
  // State of the process.
  Options options_;
  WorkerEnd end_ = WorkerEnd::kRuns;
  bool ever_begun_ = false;
  bool closing_ = false;
  std::string doing_;
  uint64_t opened_ = 0;
  node::SessionId session_ = 0;
  uint64_t node_life_ = 0;  // of the daemon that the session is at
  bool attached_ = false;
  bool begun_ = false;
  uint64_t generation_ = 0;
  std::shared_ptr<Arena> arena_;
  absl::Duration pause_;
  Signal clock_;
  Task<void> main_;
};

}  // namespace dmuon::sim
