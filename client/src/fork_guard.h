// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Keeps the arena channel out of forked children. The end of the channel is how the daemon notices
// a worker's death, so a child (a data loader, say) that kept it open would keep a dead worker
// alive. Children that exec lose it anyway: it is close-on-exec.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "wire/scoped_fd.h"

namespace dmuon::client {

// A socket that fork() closes in the child. Movable. Thread-safe against forks of any thread.
class ChannelSocket {
 public:
  // Connects to the arena channel at `path`. UNAVAILABLE when nobody listens.
  static absl::StatusOr<ChannelSocket> Connect(const std::string& path);

  ChannelSocket() = default;
  ChannelSocket(ChannelSocket&&) = default;
  ChannelSocket& operator=(ChannelSocket&&) = delete;
  ~ChannelSocket();

  [[nodiscard]] int get() const { return fd_.get(); }

 private:
  explicit ChannelSocket(wire::ScopedFd fd) : fd_(std::move(fd)) {}

  wire::ScopedFd fd_;
};

}  // namespace dmuon::client
