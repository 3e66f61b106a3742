// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Gloo's waits, cut short every tick. When a connection breaks, Gloo tells the buffers that wait
// for it, but not those of which some bytes are through already; and its only timeout is one that
// closes all connections. So a waiter has to look up from time to time, and only another thread can
// make it.
#pragma once

#include <chrono>
#include <set>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "gloo/transport/unbound_buffer.h"
#include "wire/mutex.h"

namespace dmuon::transport {

// Any thread; outlives the waits.
class Pulse {
 public:
  // Gloo's own timeouts are never reached.
  static constexpr std::chrono::milliseconds kForever = std::chrono::hours(24);
  static constexpr std::chrono::milliseconds kTick{10};

  Pulse() : thread_([this] { Run(); }) {}
  ~Pulse();

  // Waits for the buffer's receive, or its send: false when a tick came first. Throws what Gloo
  // throws.
  bool Wait(gloo::transport::UnboundBuffer& buffer, bool incoming);

 private:
  class Waiter;
  void Run();

  wire::Mutex mu_;  // held while a buffer's own lock is taken
  wire::CondVar wake_;
  std::set<const Waiter*> waiters_ ABSL_GUARDED_BY(mu_);
  bool idle_ ABSL_GUARDED_BY(mu_) = false;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace dmuon::transport
