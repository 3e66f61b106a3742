// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A node's link to a coordinator in the same process (`dmuond --standalone`): the same host that
// the gRPC service would serve, without a socket between.
#pragma once

#include <memory>

#include "daemon/base/coordinator_link.h"
#include "daemon/coordinator/host.h"

namespace dmuon::coordinator {

// `host` outlives the link. After Start one thread joins, renews the lease and calls the sink. A
// node that fell out (the process was stopped for longer than the lease) joins again by itself.
// address() is "standalone".
std::unique_ptr<CoordinatorLink> MakeLocalLink(Host* host);

}  // namespace dmuon::coordinator
