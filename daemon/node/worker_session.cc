// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/worker_session.h"

#include <poll.h>

#include <array>

#include "absl/strings/str_cat.h"
#include "wire/error.h"

namespace dmuon::node {

bool WorkerSession::Alive() const {
  wire::MutexLock lock(mu_);
  if (channel_ < 0) return false;
  // poll ignores a negative descriptor.
  std::array<pollfd, 2> watched = {{{channel_, POLLRDHUP, 0}, {pidfd_, POLLIN, 0}}};
  return ::poll(watched.data(), watched.size(), 0) == 0;
}

absl::Status WorkerSession::Send(const wire::ChannelFrame& frame, int fd) {
  wire::MutexLock lock(mu_);
  if (channel_ < 0) {
    return wire::Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_NOT_READY,
                       absl::StrCat("rank ", rank_, " registers before it has said hello on the "
                                    "arena channel"));
  }
  return wire::SendFrame(channel_, frame, fd);
}

}  // namespace dmuon::node
