// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A thread for calls that may wait for a disk, and what waits for it: one piece of work after the other.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>

#include "wire/mutex.h"

namespace dmuon::node {

// Thread-safe, but for its destructor.
class WorkLane {
 public:
  // `most` pieces at a time, the one that runs included.
  explicit WorkLane(size_t most);
  // Stops.
  ~WorkLane();

  // False when there are `most` already, or it has stopped; `work` is dropped then.
  [[nodiscard]] bool Add(std::function<void()> work);
  // Drops what waits, waits for what runs. Idempotent.
  void Stop();
  [[nodiscard]] size_t most() const { return most_; }

 private:
  void Run();

  const size_t most_;
  wire::Mutex mu_;  // leaf lock; neither held while work runs nor while it is dropped
  wire::CondVar changed_;
  std::deque<std::function<void()>> waiting_ ABSL_GUARDED_BY(mu_);
  bool running_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last: starts when the rest exists
};

}  // namespace dmuon::node
