// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A gRPC server with the project's conventions, the same for every daemon: message limits, keepalive,
// health, reflection, one owner a socket, deadlines required, durations measured.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/base/metrics.h"

namespace grpc {
class Channel;
class ServerContextBase;
class Service;
}  // namespace grpc

namespace dmuon {

struct RpcServerOptions {
  // "unix:/path" or "host:port"; port 0 takes a free one. A TCP address other than loopback is
  // refused (there is no TLS yet).
  std::string address;
  // Full names of the services ("dmuon.v1.NodeService"), for their health.
  std::vector<std::string> service_names;
  // Answers "what can you do" to grpcurl and the like.
  bool reflection = true;
};

class RpcServer {
 public:
  // Takes the lock beside a unix socket ("/path.lock", held until destruction) before it touches the
  // socket, so that a second daemon is refused: FAILED_PRECONDITION naming the path and, when known,
  // the holder's pid. UNAVAILABLE when a TCP port is taken. Services must outlive the server, and so
  // must `metrics`. Not serving (health) until SetServing(true).
  //
  // Calls without a deadline are answered INVALID_ARGUMENT, whatever the handler says; a handler
  // that changes anything asks HasDeadline first, because gRPC cannot keep a call from it.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(const RpcServerOptions& options,
                                                          std::vector<grpc::Service*> services,
                                                          Metrics* metrics);
  virtual ~RpcServer() = default;

  // Address as clients dial it, with the real port.
  [[nodiscard]] virtual std::string address() const = 0;
  // The health of "" and of every service.
  virtual void SetServing(bool serving) = 0;
  // Health first, then no new calls, then cancels what is left at `deadline`. Idempotent.
  virtual void Shutdown(absl::Duration deadline) = 0;
};

// True when the caller set a deadline.
bool HasDeadline(const grpc::ServerContextBase& context);

// A client channel with the same conventions: message limits, keepalive, no proxy, no retries inside
// gRPC. Connects lazily; never fails.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address);

}  // namespace dmuon
