// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A client of grpc.health.v1.Health that needs no generated code: the two messages have one field
// each, and gRPC's own service holds the only copy of their descriptors.
#pragma once

#include <memory>
#include <string>

namespace grpc {
class Channel;
}

namespace dmuon {

enum class Health { kServing, kNotServing, kNoAnswer };

// Asks for the health of `service`; "" is the server's.
Health CheckHealth(const std::shared_ptr<grpc::Channel>& channel, const std::string& service);

}  // namespace dmuon
