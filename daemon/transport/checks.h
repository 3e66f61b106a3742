// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What every implementation refuses in the same words. Pure.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "daemon/transport/transport.h"

namespace dmuon::transport {

// INVALID_ARGUMENT for an empty prefix, no nodes, a node named twice, or `self` out of range.
absl::Status CheckMesh(const Mesh& mesh);

// INVALID_ARGUMENT as Transport::Start says.
absl::Status CheckBatch(const Mesh& mesh, const Options& options, const Batch& batch);

// "job/7/1: node 'b' <what>"
absl::Status PeerError(absl::StatusCode code, const Mesh& mesh, uint32_t peer,
                       absl::string_view what);

// DEADLINE_EXCEEDED for a message of `bytes` bytes of the batch `tag`.
absl::Status LateError(const Mesh& mesh, uint32_t peer, bool incoming, uint64_t bytes,
                       uint64_t tag);

}  // namespace dmuon::transport
