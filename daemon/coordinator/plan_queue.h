// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Events on their way to one node. The host pushes and never waits; whoever serves the node (a gRPC
// stream, a local link) pops.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "dmuon/v1/coordinator.pb.h"
#include "wire/mutex.h"

namespace dmuon::coordinator {

class PlanQueue {
 public:
  // Events that may wait. Full: the queue ends with RESOURCE_EXHAUSTED and the node watches again,
  // which gives it all current plans and loses nothing. An event larger than the bound is let in
  // alone.
  static constexpr size_t kMaxBytes = size_t{256} << 20;

  // `wake` is called without any lock held, from the thread of Wake; it may come late or once too
  // often and must not throw.
  explicit PlanQueue(std::function<void()> wake, size_t max_bytes = kMaxBytes)
      : wake_(std::move(wake)), max_bytes_(max_bytes) {}

  // After the end these do nothing. `initial` events have no bound: the coordinator holds them all
  // anyway.
  void PushInitial(std::vector<v1::WatchPlansResponse> initial);
  void Push(v1::WatchPlansResponse event);
  // No more events after those that wait; the first status stays.
  void End(absl::Status status);
  void Wake() const { wake_(); }

  // The next event; or, when none waits, the status of the end; or neither yet.
  struct Next {
    std::optional<v1::WatchPlansResponse> event;
    std::optional<absl::Status> end;
  };
  Next Pop();

 private:
  const std::function<void()> wake_;
  const size_t max_bytes_;
  wire::Mutex mu_;  // leaf lock
  std::deque<v1::WatchPlansResponse> events_ ABSL_GUARDED_BY(mu_);
  size_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);
};

}  // namespace dmuon::coordinator
