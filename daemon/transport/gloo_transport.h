// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Nodes in processes of their own, over TCP, by Gloo's unbound buffers. No encryption and no
// authentication: a trusted network only.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/transport/key_value_store.h"
#include "daemon/transport/transport.h"

namespace dmuon::transport {

struct GlooAddress {
  std::string host = "127.0.0.1";  // IP address or host name of this node, as its peers reach it
  std::string interface;           // or the name of a network interface; wins over `host`
};

// One address of this node and the threads that serve it (one for I/O, one that ends waits). Any
// number of transports share it.
class GlooDevice;

// INVALID_ARGUMENT when the address is not one of this machine. Ignores SIGPIPE in the whole
// process: Gloo writes to connections whose peer may be gone.
absl::StatusOr<std::shared_ptr<GlooDevice>> OpenGlooDevice(const GlooAddress& address);

// Connects to all other nodes of the mesh and makes sure that each is who it should be; blocks
// until then. `store` serves this call only, under keys "<prefix>/<node>".
//   DEADLINE_EXCEEDED    names the nodes that never left an address (three quarters of the time is
//   for
//                        that), or the one that did not answer
//   FAILED_PRECONDITION  (STALE_GENERATION) a peer is of another mesh
//   UNAVAILABLE          a peer, or the store, is gone
absl::StatusOr<std::unique_ptr<Transport>> ConnectGloo(std::shared_ptr<GlooDevice> device,
                                                       KeyValueStore& store, const Mesh& mesh,
                                                       Options options, absl::Time deadline);

}  // namespace dmuon::transport
