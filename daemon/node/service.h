// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// dmuon.v1.NodeService over an engine: moves requests in, answers from the job's thread.
#pragma once

#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "daemon/base/metrics.h"
#include "daemon/node/engine.h"

namespace grpc {
class Service;
}

namespace dmuon::node {

// Full name, for its health.
inline constexpr absl::string_view kServiceName = "dmuon.v1.NodeService";

// What GetNodeStatus says beside the jobs.
struct NodeDescription {
  std::string version;
  std::string backend;
  std::string coordinator;
  std::string metrics_address;
};

class Service {
 public:
  // Both pointers outlive the service.
  static std::unique_ptr<Service> Create(Engine* engine, Metrics* metrics,
                                         NodeDescription description);
  virtual ~Service() = default;

  // For RpcServer::Start. Drain the engine before RpcServer::Shutdown: it answers all that waits.
  [[nodiscard]] virtual grpc::Service* grpc_service() = 0;
};

}  // namespace dmuon::node
