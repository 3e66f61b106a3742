// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// One session with a daemon: the gRPC connection, the session id and the arena channel. It lives
// and dies as a whole; after a lost connection a new one is opened. No policy here: no retries, no
// state of the job.
//
// One thread at a time makes calls; Cancel may come from another.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dmuon/v1/node.pb.h"
#include "wire/arena.h"
#include "wire/scoped_fd.h"

namespace dmuon::client {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

// True for errors that end the session but not the job: no daemon, a daemon shutting down, or one
// that restarted and does not know the session.
bool IsConnectionLost(const absl::Status& status);

// True for errors about another node of the job: nothing is half done, and trying again is safe.
bool IsPeerLost(const absl::Status& status);

class Session {
 public:
  // One attempt: Open, arena channel, hello, welcome. UNAVAILABLE names the address and the cause.
  // INVALID_ARGUMENT for an address that is no unix socket: worker and daemon share memory.
  static absl::StatusOr<std::shared_ptr<Session>> Open(const std::string& address,
                                                       const v1::OpenRequest& request,
                                                       Deadline deadline);
  virtual ~Session() = default;

  // The calls of dmuon.v1.NodeService; `session_id` of the request is filled in. A deadline that
  // passes without the daemon's answer is DEADLINE_EXCEEDED without a reason.
  virtual absl::StatusOr<v1::RegisterResponse> Register(v1::RegisterRequest& request,
                                                        Deadline deadline) = 0;
  virtual absl::StatusOr<v1::BeginResponse> Begin(v1::BeginRequest request, Deadline deadline) = 0;
  virtual absl::StatusOr<v1::StepResponse> Step(v1::StepRequest& request, Deadline deadline) = 0;
  virtual absl::StatusOr<v1::SaveResponse> Save(v1::SaveRequest& request, Deadline deadline) = 0;
  virtual absl::StatusOr<v1::RestoreResponse> Restore(v1::RestoreRequest& request, Deadline deadline) = 0;
  virtual absl::StatusOr<v1::ExportResponse> Export(v1::ExportRequest& request, Deadline deadline) = 0;
  virtual absl::StatusOr<v1::ImportResponse> Import(v1::ImportRequest& request, Deadline deadline) = 0;
  virtual absl::Status Close(Deadline deadline) = 0;

  // The memfd of `bytes` bytes that comes with an answered Export. UNAVAILABLE when it does not.
  virtual absl::StatusOr<wire::ScopedFd> ReceiveState(uint64_t generation, uint64_t bytes, Deadline deadline) = 0;
  // Gives a memfd to the daemon, before Import. UNAVAILABLE unless it says that it has it.
  virtual absl::Status Offer(int state, Deadline deadline) = 0;
  // What Export gave is not needed any more.
  virtual void Release() = 0;

  // The arena that follows an answered Register, checked against the layout.
  virtual absl::StatusOr<wire::Arena> ReceiveArena(const wire::ArenaLayout& layout,
                                                   uint64_t generation, Deadline deadline) = 0;

  // Starts a step by ringing on the arena channel; the answer comes in the arena. False when that cannot
  // be done, and Step must do.
  virtual bool Ring(v1::StepRequest& request, Deadline deadline) = 0;
  // Announces gradients of `step` on the arena channel.
  virtual void ExpectGradients(uint64_t generation, uint64_t step) = 0;
  // False once the daemon has closed the arena channel, or died.
  virtual bool Alive() = 0;

  // Ends the calls in progress, and every later one but Close, with CANCELLED.
  virtual void Cancel() = 0;
};

}  // namespace dmuon::client
