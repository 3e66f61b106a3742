// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Packed messages from node to node. Point-to-point exchange is the whole interface: no sums, no
// broadcasts, no message to oneself. local_transport.h and gloo_transport.h implement it.
//
// Deadlines are of the monotonic clock (daemon/base/clock.h). Every error names the mesh and a
// peer. The first UNAVAILABLE or DEADLINE_EXCEEDED breaks the whole transport: its connections
// close, and everything later answers that same error. Its owner makes a new one under a new
// prefix. A peer that gave up first closes its connections too, so the peer named need not be the
// one that failed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace dmuon::transport {

// Who talks to whom. `prefix` and `nodes` are equal on all nodes.
struct Mesh {
  std::string prefix;              // unique for all time, such as "job/7/1": fences former attempts
  std::vector<std::string> nodes;  // node ids in the plan's order, each once
  uint32_t self = 0;               // index into nodes
};

struct Options {
  // Bytes of one batch, both directions together. Larger allows larger buckets, whose staging
  // memory is the caller's.
  uint64_t max_batch_bytes = uint64_t{1} << 30;
};

struct Outgoing {
  uint32_t peer = 0;  // index into Mesh::nodes
  std::span<const std::byte> bytes;
};

struct Incoming {
  uint32_t peer = 0;  // index into Mesh::nodes
  std::span<std::byte> bytes;
};

// Messages that are started together, at most one a peer and direction. Both ends know the sizes
// from the plan: messages of no bytes are not sent, and messages of which the ends expect different
// sizes never meet (both waits end by their deadline, and nothing is written).
struct Batch {
  uint64_t tag = 0;  // equal on both ends, unique among the batches in flight
  std::vector<Outgoing> out;
  std::vector<Incoming> in;
};

// Finished messages since the transport was made, by node index; the own entry stays zero.
struct Traffic {
  struct Flow {
    uint64_t messages = 0;
    uint64_t bytes = 0;  // payload, without the transport's own headers
    bool operator==(const Flow&) const = default;
  };
  struct Peer {
    Flow sent;
    Flow received;
    bool operator==(const Peer&) const = default;
  };
  std::vector<Peer> peers;
};

// A batch in flight. One thread at a time. Destroying it unfinished breaks the transport
// (CANCELLED).
class Exchange {
 public:
  virtual ~Exchange() = default;
  // Blocks until all messages are received and all sent: a sent message has left its buffer,
  // towards a peer that had started its side. A deadline in the past takes what is finished.
  // Afterwards, OK or not, the transport touches no buffer of the batch; after an error incoming
  // buffers hold anything.
  //   DEADLINE_EXCEEDED  a peer did not start its side, or is frozen or slow
  //   UNAVAILABLE        a peer is gone or closed its connections
  virtual absl::Status Wait(absl::Time deadline) = 0;
};

// The connections of one mesh. Any thread; outlives its exchanges. Destroying it closes the
// connections, and a peer that still waits for a message from here may lose it: agree on the end
// first.
class Transport {
 public:
  virtual ~Transport() = default;
  // Does not wait for peers. The buffers stay alive, and those that go out unchanged, until Wait
  // returned or the exchange is destroyed. INVALID_ARGUMENT for a peer out of range, the own index,
  // two messages for one peer and direction, or a batch over the limit: nothing was sent, and the
  // transport goes on.
  virtual absl::StatusOr<std::unique_ptr<Exchange>> Start(Batch batch) = 0;
  // Breaks the transport: everything in flight and later answers CANCELLED, within moments.
  virtual void Cancel() = 0;
  [[nodiscard]] virtual Traffic traffic() const = 0;
  // For metrics: "local" or "gloo".
  [[nodiscard]] virtual std::string_view name() const = 0;
};

}  // namespace dmuon::transport
