// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The arena channel: a SOCK_SEQPACKET unix socket beside the daemon's gRPC socket, at its path with
// ".arena" appended. It carries what gRPC cannot (file descriptors), and its end tells the daemon at
// once that a worker is gone.
//
//   worker -> daemon   hello(session_id, token)      at once after connecting
//   daemon -> worker   welcome(session_id)           or the connection is closed
//   daemon -> worker   arena(generation, bytes) + 1 descriptor, after each Register
//   worker -> daemon   step(milliseconds) + v1.StepRequest, serialised: the same as the RPC Step, but
//                      answered in the arena (arena.h)
//   worker -> daemon   gradients(generation, step)   gradients of a step are marked one by one from now on: the
//                      daemon may look for them before the step is called for
//   daemon -> worker   state(generation, bytes) + 1 descriptor, before the answer to each Export
//   worker -> daemon   release()                     the worker has no more need of the state that it was given
//   worker -> daemon   offer() + 1 descriptor        a state, of which an Import will speak
//   daemon -> worker   taken()                       the answer: now the daemon has it, and Import may follow
//
// One frame is one packet of sizeof(ChannelFrame) bytes, and in a step what belongs to it; anything
// else ends the connection.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "wire/scoped_fd.h"

namespace dmuon::wire {

inline constexpr uint32_t kChannelMagic = 0x43414D44;  // "DMAC"
inline constexpr absl::string_view kChannelSuffix = ".arena";
inline constexpr size_t kTokenBytes = 16;
using Token = std::array<uint8_t, kTokenBytes>;

enum class FrameType : uint32_t { kHello = 1, kWelcome = 2, kArena = 3, kStep = 4, kGradients = 5,
                                  kState = 6, kRelease = 7, kOffer = 8, kTaken = 9 };

// Of what follows a frame in its packet.
inline constexpr size_t kMaxFramePayload = size_t{64} << 10;

struct ChannelFrame {
  uint32_t magic = kChannelMagic;
  FrameType type = FrameType::kHello;
  uint64_t session_id = 0;
  uint64_t generation = 0;  // kArena, kGradients, kState
  uint64_t bytes = 0;       // kArena, kState; kStep: milliseconds within which an answer is wanted; kGradients: the step
  Token token{};            // kHello
};
static_assert(sizeof(ChannelFrame) == 48);

// Listening socket at `path`, mode 0600, close-on-exec. The caller holds the lock that makes the path
// its own; a stale file is replaced.
absl::StatusOr<ScopedFd> ListenChannel(const std::string& path);
// UNAVAILABLE when nobody listens.
absl::StatusOr<ScopedFd> ConnectChannel(const std::string& path);

// Sends one frame, with a descriptor when `passed_fd` >= 0, and with what follows it. Never blocks:
// UNAVAILABLE when the peer is gone, or its queue is full.
absl::Status SendFrame(int socket, const ChannelFrame& frame, int passed_fd = -1,
                       absl::string_view payload = {});

// Receives one frame, at most one descriptor, and what follows a kStep. DEADLINE_EXCEEDED after `timeout`; UNAVAILABLE at
// the end of the stream; INVALID_ARGUMENT for a packet that is no frame (surplus descriptors are
// closed).
struct ReceivedFrame {
  ChannelFrame frame;
  ScopedFd fd;
  std::string payload;
};
absl::StatusOr<ReceivedFrame> ReceiveFrame(int socket, absl::Duration timeout);

}  // namespace dmuon::wire
