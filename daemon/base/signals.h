// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Shutdown on SIGTERM and SIGINT without a signal handler: handlers may call next to nothing, so the
// signals are blocked in every thread and one thread reads them.
//
//   int main() {
//     BlockShutdownSignals();          // first: threads inherit the mask of their parent
//     ...
//     ShutdownWatch watch;
//     watch.Wait();                    // the first signal
//     ... drain ...
//   }
//
// The first signal asks for a drain; the second ends the process at once with status 128 + signal
// number.
#pragma once

#include <memory>

namespace dmuon {

// Blocks SIGTERM and SIGINT in the calling thread and all threads that it starts from now on, and
// ignores SIGPIPE. Call it before any other thread exists.
void BlockShutdownSignals();

class ShutdownWatch {
 public:
  // Starts the thread that reads the signals.
  ShutdownWatch();
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
