// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// One owner a unix socket. gRPC silently takes over the path of a living server, so the right to the
// path is decided before it is touched, by a lock file beside it.
#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "wire/scoped_fd.h"

namespace dmuon {

class SocketLock {
 public:
  // Makes the directory when needed, takes `path`.lock, writes the pid into it, and removes what a
  // dead server left at `path`. FAILED_PRECONDITION when another process (or another lock of this
  // one) holds it, naming the holder's pid, and when something other than a socket lies at `path`.
  static absl::StatusOr<SocketLock> Acquire(const std::string& path);

  // Gives the path free. The lock file stays: removing it could take it away under a new owner.
  ~SocketLock() = default;
  SocketLock(SocketLock&&) = default;
  SocketLock& operator=(SocketLock&&) = default;

 private:
  explicit SocketLock(wire::ScopedFd fd) : fd_(std::move(fd)) {}

  wire::ScopedFd fd_;
};

}  // namespace dmuon
