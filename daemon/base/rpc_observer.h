// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What happens to every call before and after its handler: it is counted, timed, and answered
// INVALID_ARGUMENT when it came without a deadline.
#pragma once

namespace grpc {
class ServerBuilder;
}

namespace dmuon {

class Metrics;

// Adds the observer to a server under construction. `metrics` must outlive the server.
//
// The `method` label is "dmuon.v1.NodeService/Step", or "unknown" for a method that no service has;
// `code` is the canonical name, such as "OK" or "NOT_FOUND"; a call that ends without an answer
// counts as "CANCELLED". gRPC's own services (health, reflection) need no deadline. An answer OK that a failpoint loses
// becomes UNAVAILABLE here (failpoint.h).
void AddObserver(grpc::ServerBuilder& builder, Metrics* metrics);

}  // namespace dmuon
