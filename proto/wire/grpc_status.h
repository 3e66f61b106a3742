// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
// absl::Status <-> grpc::Status, with the reason as google.rpc.ErrorInfo in the status details.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace grpc {
class Status;
}

namespace dmuon::wire {

// Bumped when a change breaks older peers; peers of another version refuse each other.
inline constexpr uint32_t kProtocolVersion = 2;

// Bounds of one control message in either direction; a registration of 100 000 tensors needs about
// 10 MiB. Larger messages end in RESOURCE_EXHAUSTED.
inline constexpr int kMaxMessageBytes = 64 << 20;

// Keepalive pings, equal on both ends: a frozen peer is noticed after kKeepaliveMs + kKeepaliveTimeoutMs.
inline constexpr int kKeepaliveMs = 10'000;
inline constexpr int kKeepaliveTimeoutMs = 5'000;

grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace dmuon::wire
