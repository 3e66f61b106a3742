// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A node's link to a coordinator in another process, over gRPC.
#pragma once

#include <memory>
#include <string>

#include "daemon/base/coordinator_link.h"

namespace dmuon::node {

// `address` is "unix:/path" or "host:port". After Start one thread joins, renews the lease and joins
// again (with backoff) whenever the coordinator does not know this node any more; another reads the
// plans. Every call has a deadline.
std::unique_ptr<CoordinatorLink> MakeGrpcLink(std::string address);

}  // namespace dmuon::node
