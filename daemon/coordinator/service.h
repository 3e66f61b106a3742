// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// dmuon.v1.CoordinatorService over a host: checks the deadline, calls, translates the status.
#pragma once

#include <memory>

#include "absl/strings/string_view.h"
#include "daemon/coordinator/host.h"

namespace grpc {
class Service;
}

namespace dmuon::coordinator {

// Full name, for its health.
inline constexpr absl::string_view kServiceName = "dmuon.v1.CoordinatorService";

class Service {
 public:
  // `host` outlives the service. Starts the thread that ticks the host, a few times a lease.
  static std::unique_ptr<Service> Create(Host* host);
  virtual ~Service() = default;

  // For RpcServer::Start. Call host->EndWatches() before RpcServer::Shutdown: a watch ends only
  // then or when its client goes.
  [[nodiscard]] virtual grpc::Service* grpc_service() = 0;
};

}  // namespace dmuon::coordinator
