// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// dmuon.v1.CheckpointService: operators' questions about the checkpoints of this node, answered by threads that may
// wait for the disk, and saves of its jobs.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/base/metrics.h"
#include "daemon/checkpoint/store.h"
#include "daemon/node/job.h"
#include "dmuon/v1/checkpoint.pb.h"

namespace grpc {
class Service;
}

namespace dmuon::node {

// Full name, for its health.
inline constexpr absl::string_view kCheckpointServiceName = "dmuon.v1.CheckpointService";

class CheckpointService {
 public:
  // Saves a job under a valid name and answers by `deadline` (a reading of MonotonicNow). Must not block.
  using SaveJobCallback = std::function<void(const std::string& job_id, const std::string& name, absl::Time deadline,
                                             Reply<v1::SaveJobResponse> reply)>;

  // `store` may be null, then every call is FAILED_PRECONDITION/CHECKPOINT; `directory` is where its files lie, for
  // people. One checkpoint is verified at a time, meanwhile one other call is at work; a few more of each may wait, the
  // rest are RESOURCE_EXHAUSTED/LIMIT. Pointers outlive the service.
  static std::unique_ptr<CheckpointService> Create(checkpoint::Store* store, std::string directory,
                                                   SaveJobCallback save_job, Metrics* metrics);
  virtual ~CheckpointService() = default;

  // For RpcServer::Start, which the service outlives.
  [[nodiscard]] virtual grpc::Service* grpc_service() = 0;
  // UNAVAILABLE/DRAINING to all that waits for a disk, now and from now on; waits for what is just being read. Call it
  // before RpcServer::Shutdown. Idempotent.
  virtual void Drain() = 0;
};

}  // namespace dmuon::node
