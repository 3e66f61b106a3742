// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What must hold of every history. The numbers are those of the design's list; README.md says what each means here.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "dmuon/v1/tensor.pb.h"
#include "tests/sim/history.h"

namespace dmuon::sim {

struct Violation {
  std::string invariant;  // "I4"
  std::string what;
  bool operator==(const Violation&) const = default;
};

// How long after the last fault an unknown outcome may stay unknown.
inline constexpr absl::Duration kResolveWithin = absl::Seconds(40);

std::vector<Violation> Check(const History& history, const v1::JobSpec& job);

}  // namespace dmuon::sim
