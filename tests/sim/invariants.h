// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What must hold of every history. The numbers are those of the design's list; README.md says what each means here.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "dmuon/v1/tensor.pb.h"
#include "tests/sim/history.h"

namespace dmuon::sim {

struct Violation {
  std::string invariant;  // "I4"
  std::string what;
  bool operator==(const Violation&) const = default;
};

// What a checker has found.
class Violations {
 public:
  template <typename... Parts>
  void Expect(bool holds, const char* invariant, const Event& event, const Parts&... parts) {
    if (holds) return;
    found_.push_back({invariant, absl::StrCat("at ", absl::ToDoubleSeconds(event.at - absl::UnixEpoch()), " ", event.who, ": ",
                                              parts...)});
  }
  std::vector<Violation> Take() { return std::move(found_); }

 private:
  std::vector<Violation> found_;
};

// How long after the last fault an unknown outcome may stay unknown.
inline constexpr absl::Duration kResolveWithin = absl::Seconds(40);

// `nodes` of the cluster, all of which have workers.
std::vector<Violation> Check(const History& history, const v1::JobSpec& job, uint32_t nodes);
// Those of it that are about copies of state on other nodes: I15 to I18. None without replication.
std::vector<Violation> CheckReplication(const History& history, const v1::JobSpec& job, uint32_t nodes);

// Those about jobs that go over to other owners: I20 to I22.
std::vector<Violation> CheckHandover(const History& history, uint32_t nodes);
// The history as if a job that went over to other owners had kept its generation: what holds of one holds of all of them.
History AsOneGeneration(const History& history);

}  // namespace dmuon::sim
