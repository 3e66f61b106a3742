// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The monotonic clock as an absl::Time: for deadlines and leases, never for a date.
#pragma once

#include <chrono>

#include "absl/time/time.h"

namespace dmuon {

inline absl::Time MonotonicNow() {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace dmuon
