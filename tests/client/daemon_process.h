// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The real dmuond, started in a temporary directory of its own and ended by pid.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace dmuon::client {

class DaemonProcess {
 public:
  // Starts `program` --standalone with `flags`; dmuon_open waits for it. The directory and so the
  // address outlive restarts.
  explicit DaemonProcess(std::string program, std::vector<std::string> flags = {});
  // Kills it if it still runs and removes the directory.
  ~DaemonProcess();
  DaemonProcess(const DaemonProcess&) = delete;
  DaemonProcess& operator=(const DaemonProcess&) = delete;

  [[nodiscard]] std::string address() const { return "unix:" + directory_ + "/d.sock"; }
  [[nodiscard]] pid_t pid() const { return pid_; }
  void Start();
  // SIGKILL, and waits for the end.
  void Kill();
  // SIGTERM, and waits; the exit code, or -1 when a signal ended it.
  int Stop();

 private:
  const std::string program_;
  const std::vector<std::string> flags_;
  std::string directory_;
  pid_t pid_ = -1;
};

}  // namespace dmuon::client
