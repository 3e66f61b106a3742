// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A worker's session: who it is, its arena channel, its arena.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "daemon/node/job_core.h"
#include "daemon/node/memory_budget.h"
#include "wire/arena.h"
#include "wire/arena_channel.h"
#include "wire/mutex.h"
#include "wire/scoped_fd.h"

namespace dmuon::node {

struct GivenState;

class WorkerSession {
 public:
  WorkerSession(SessionId id, wire::Token token, std::string job_id, uint32_t rank,
                std::string incarnation)
      : id_(id),
        token_(token),
        job_id_(std::move(job_id)),
        rank_(rank),
        incarnation_(std::move(incarnation)) {}

  [[nodiscard]] SessionId id() const { return id_; }
  [[nodiscard]] const wire::Token& token() const { return token_; }
  [[nodiscard]] const std::string& job_id() const { return job_id_; }
  [[nodiscard]] uint32_t rank() const { return rank_; }
  [[nodiscard]] const std::string& incarnation() const { return incarnation_; }

  // The worker has said hello on `channel`. Both descriptors are the channel server's and stay open
  // until it sets -1. `pidfd` is -1 where the worker's process is not visible.
  void SetChannel(int channel, int pidfd) {
    wire::MutexLock lock(mu_);
    channel_ = channel;
    pidfd_ = pidfd;
  }
  // Asks the kernel whether the worker is still there. False before its hello: it may have died on
  // the way there, and nobody can tell.
  [[nodiscard]] bool Alive() const;
  [[nodiscard]] bool connected() const {
    wire::MutexLock lock(mu_);
    return channel_ >= 0;
  }
  // FAILED_PRECONDITION/NOT_READY before the hello. `fd` -1: none goes with it.
  absl::Status Send(const wire::ChannelFrame& frame, int fd);

  // A state that the worker has brought, in place of one that it brought before.
  void Offer(wire::ScopedFd state) {
    wire::MutexLock lock(mu_);
    offered_ = std::move(state);
  }
  [[nodiscard]] wire::ScopedFd TakeOffer() {
    wire::MutexLock lock(mu_);
    return std::move(offered_);
  }

  // The job's thread only.
  wire::Arena arena;
  MemoryBudget::Share arena_share;
  std::shared_ptr<const GivenState> given;  // that the worker reads

 private:
  const SessionId id_;
  const wire::Token token_;
  const std::string job_id_;
  const uint32_t rank_;
  const std::string incarnation_;
  mutable wire::Mutex mu_;
  int channel_ ABSL_GUARDED_BY(mu_) = -1;
  int pidfd_ ABSL_GUARDED_BY(mu_) = -1;
  wire::ScopedFd offered_ ABSL_GUARDED_BY(mu_);
};

}  // namespace dmuon::node
