// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A node's way to the coordinator: a model of daemon/node/grpc_link.cc. Joins, watches and beats until one of it fails,
// then starts over.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "dmuon/v1/coordinator.pb.h"
#include "tests/sim/cluster.h"
#include "tests/sim/coordinator_process.h"
#include "tests/sim/task.h"

namespace dmuon::sim {

class NodeLink {
 public:
  NodeLink(Cluster* cluster, Process* process, v1::NodeIdentity node);

  void Start(std::function<void(const v1::WatchPlansResponse&)> sink, std::function<v1::JoinRequest()> join);

  void Rejoin();
  // Each as its namesake in daemon/base/coordinator_link.h.
  Task<absl::Status> RegisterWorker(v1::RegisterWorkerRequest request);
  Task<absl::Status> ReleaseJob(v1::ReleaseJobRequest request);
  Task<absl::StatusOr<uint64_t>> NextAttempt(v1::Meeting meeting);
  Task<absl::Status> SetKey(v1::Meeting meeting, std::string key, std::string value);
  Task<absl::StatusOr<std::optional<std::string>>> GetKey(v1::Meeting meeting, std::string key);
  Task<absl::StatusOr<v1::ReportPartResponse>> ReportPart(v1::ReportPartRequest request);

  Task<void> Sleep(absl::Duration duration);

 private:
  template <typename R, typename Request>
  Task<absl::StatusOr<R>> Ask(void (CoordinatorProcess::*method)(const Request&, const Reply<R>&), Request request);
  Task<void> Loop();
  Task<void> ServeMembership(absl::Duration* backoff);

  Cluster* const cluster_;
  Process* const process_;
  const v1::NodeIdentity node_;
  std::function<void(const v1::WatchPlansResponse&)> sink_;
  std::function<v1::JoinRequest()> join_;
  Signal clock_;
  bool rejoin_ = false;
  std::shared_ptr<WatchStream> stream_;
  Task<void> loop_;
};

}  // namespace dmuon::sim
