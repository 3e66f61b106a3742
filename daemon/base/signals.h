// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Shutdown on SIGTERM and SIGINT without a signal handler: handlers may call next to nothing, so the
// signals are blocked in every thread and one thread reads them.
//
//   int main() {
//     BlockShutdownSignals();          // first: threads inherit the mask of their parent
//     ...
//     ShutdownWatch watch([&](int nth) { if (nth == 2) server->Shutdown(absl::ZeroDuration()); });
//     watch.Wait();                    // the first signal
//     ... drain ...
//   }
//
// The first signal asks for a drain, the second for a short one, the third ends the process at once
// with status 128 + signal number.
#pragma once

#include <functional>
#include <memory>

namespace dmuon {

// Blocks SIGTERM and SIGINT in the calling thread and all threads that it starts from now on, and
// ignores SIGPIPE. Call it before any other thread exists.
void BlockShutdownSignals();

class ShutdownWatch {
 public:
  // Starts the thread that reads the signals. It calls `on_signal` with 1 and 2; `on_signal` must be
  // quick, must be thread-safe against the rest of the process, and may be empty.
  explicit ShutdownWatch(std::function<void(int nth)> on_signal);
  // Stops the thread. Signals that come later stay blocked.
  ~ShutdownWatch();
  ShutdownWatch(const ShutdownWatch&) = delete;
  ShutdownWatch& operator=(const ShutdownWatch&) = delete;

  // Returns after the first signal or `Trigger`, at once when that is past. Any thread.
  void Wait();
  // Ends every Wait as a signal would, from inside the process; does not count as a signal.
  void Trigger();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dmuon
