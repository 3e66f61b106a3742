// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// dmuonctl's calls. The only file of this folder that speaks gRPC is connection.cc.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "dmuon/v1/checkpoint.pb.h"
#include "dmuon/v1/coordinator.pb.h"
#include "dmuon/v1/node.pb.h"

namespace dmuon::ctl {

class Connection {
 public:
  // Connects with the first call. Each call ends after `timeout`.
  Connection(std::string address, absl::Duration timeout);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Nothing when the process at the address is not a node (not a coordinator), as its own kind of
  // server says. UNAVAILABLE naming the address when nobody answers.
  absl::StatusOr<std::optional<v1::GetNodeStatusResponse>> NodeStatus();
  absl::StatusOr<std::optional<v1::GetClusterStatusResponse>> ClusterStatus();
  // FAILED_PRECONDITION when there is no node at the address.
  absl::StatusOr<v1::GetKernelsResponse> Kernels();
  // NOT_FOUND when the coordinator does not know the job.
  absl::StatusOr<v1::GetPlanResponse> Plan(const std::string& job_id);
  // As its namesake in dmuon.v1.CoordinatorService; FAILED_PRECONDITION when there is no coordinator at the address.
  absl::StatusOr<v1::DrainNodeResponse> DrainNode(const std::string& node_id, bool undo);
  // As their namesakes in dmuon.v1.CheckpointService; FAILED_PRECONDITION when there is no node at the address. An
  // empty job: of all.
  absl::StatusOr<v1::ListCheckpointsResponse> Checkpoints(const std::string& job_id);
  absl::StatusOr<v1::GetCheckpointResponse> Checkpoint(const std::string& job_id, const std::string& name);
  absl::StatusOr<v1::VerifyCheckpointResponse> VerifyCheckpoint(const std::string& job_id, const std::string& name);
  absl::StatusOr<v1::SaveJobResponse> SaveJob(const std::string& job_id, const std::string& name);
  absl::StatusOr<v1::DeleteCheckpointResponse> DeleteCheckpoint(const std::string& job_id, const std::string& name);

 private:
  struct Stubs;

  const std::unique_ptr<Stubs> stubs_;
};

}  // namespace dmuon::ctl
