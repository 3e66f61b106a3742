// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Deadlines as condition variables take them.
#pragma once

#include <algorithm>
#include <chrono>

#include "absl/time/time.h"
#include "daemon/base/clock.h"

namespace dmuon::transport {

// A monotonic deadline for one round of a wait loop: at most a minute from now, so that any
// absl::Time will do.
inline std::chrono::steady_clock::time_point SteadyTime(absl::Time deadline) {
  const absl::Duration left =
      std::clamp(deadline - MonotonicNow(), absl::ZeroDuration(), absl::Minutes(1));
  return std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(left);
}

}  // namespace dmuon::transport
