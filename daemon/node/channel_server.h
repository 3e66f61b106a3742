// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The daemon's end of the arena channels: accepts workers, checks who they are, and notices at once
// when one is gone (the socket ends, or its process dies while a forked child keeps the socket).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "wire/arena_channel.h"
#include "wire/scoped_fd.h"

namespace dmuon::node {

// Called from the server's thread.
class ChannelOwner {
 public:
  virtual ~ChannelOwner() = default;
  // A peer of an allowed user has said hello. OK: the channel belongs to the session from now on, and
  // `channel` and `pidfd` (-1 when the kernel has none) stay open until ChannelGone has returned.
  virtual absl::Status Hello(const wire::ChannelFrame& frame, int channel, int pidfd) = 0;
  // The worker of the session has sent a kStep. An error ends the channel.
  virtual absl::Status Ring(uint64_t session_id, const wire::ReceivedFrame& step) = 0;
  // A kGradients frame.
  virtual absl::Status ExpectGradients(uint64_t session_id, const wire::ChannelFrame& frame) = 0;
  // A kOffer frame with its descriptor; answered on the channel.
  virtual absl::Status Offer(uint64_t session_id, wire::ScopedFd state) = 0;
  // A kRelease frame.
  virtual absl::Status Release(uint64_t session_id) = 0;
  virtual void ChannelGone(uint64_t session_id) = 0;
};

class ChannelServer {
 public:
  // Listens at `path`; the caller holds the daemon's lock on it. Peers must run as this user or root.
  static absl::StatusOr<std::unique_ptr<ChannelServer>> Start(const std::string& path,
                                                              ChannelOwner* owner);
  // Closes all channels without calling the owner, and removes the socket.
  ~ChannelServer();
  ChannelServer(const ChannelServer&) = delete;
  ChannelServer& operator=(const ChannelServer&) = delete;

 private:
  struct Channel {
    wire::ScopedFd socket;
    wire::ScopedFd pidfd;
    uint64_t session_id = 0;  // 0: no hello yet
    absl::Time accepted;
  };

  ChannelServer(std::string path, ChannelOwner* owner, wire::ScopedFd listener,
                wire::ScopedFd wake, wire::ScopedFd epoll);
  void Loop();
  void Accept();
  // Reads what has come; false when the channel is over.
  bool Read(uint64_t key, Channel& channel);
  absl::Status Handle(uint64_t key, Channel& channel, wire::ReceivedFrame received);
  absl::Status Greet(uint64_t key, Channel& channel, const wire::ReceivedFrame& hello);
  void Drop(uint64_t key);
  void DropSilent();
  bool Watch(int fd, uint64_t key);

  const std::string path_;
  ChannelOwner* const owner_;
  wire::ScopedFd listener_;
  wire::ScopedFd wake_;
  wire::ScopedFd epoll_;
  std::map<uint64_t, Channel> channels_;  // the loop's thread only; keys are never reused
  uint64_t next_key_ = 2;                 // 0: the listener, 1: wake_
  std::thread thread_;
};

}  // namespace dmuon::node
