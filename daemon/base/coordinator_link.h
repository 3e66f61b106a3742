// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A node's way to its coordinator: in the same process (standalone) or over gRPC.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "dmuon/v1/coordinator.pb.h"

namespace dmuon {

class CoordinatorLink {
 public:
  // Called for every event that concerns this node, from a thread of the link, never from
  // inside one of the calls below. Must not block.
  using PlanSink = std::function<void(const v1::WatchPlansResponse& event)>;

  virtual ~CoordinatorLink() = default;

  // Joins and keeps the membership alive until `Stop`. Asynchronous: a coordinator that cannot be
  // reached is retried with backoff, and every Join reports what `held` returns then.
  virtual void Start(PlanSink sink, std::function<v1::JoinRequest()> join) = 0;
  // What the node holds has changed: Joins again, soon.
  virtual void Rejoin() = 0;
  // Waits until the coordinator has heard of all such changes, at most for `patience`; whether it has.
  virtual bool AwaitRejoin(absl::Duration patience) = 0;
  // Leaves in order and stops all threads; the sink is not called afterwards.
  virtual void Stop() = 0;

  // Thread-safe. UNAVAILABLE while there is no coordinator: the caller tells its worker to retry.
  virtual absl::Status RegisterWorker(v1::RegisterWorkerRequest request) = 0;
  // As dmuon.v1.ReleaseJobRequest says; `request.node` is filled in.
  virtual absl::Status ReleaseJob(v1::ReleaseJobRequest request) = 0;

  // The meeting of a job's nodes, as dmuon.v1.Meeting says; `meeting.node` is filled in.
  virtual absl::StatusOr<uint64_t> NextAttempt(v1::Meeting meeting) = 0;
  virtual absl::Status SetKey(v1::Meeting meeting, const std::string& key,
                              const std::string& value) = 0;
  // nullopt: nobody has set it yet.
  virtual absl::StatusOr<std::optional<std::string>> GetKey(v1::Meeting meeting,
                                                            const std::string& key) = 0;

  // As dmuon.v1.CoordinatorService.ReportPart says; `request.node` is filled in. Does not wait for other nodes.
  virtual absl::StatusOr<v1::ReportPartResponse> ReportPart(v1::ReportPartRequest request) = 0;

  // "standalone" or the coordinator's address.
  [[nodiscard]] virtual std::string address() const = 0;
};

}  // namespace dmuon
