// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Where the nodes of one plan meet to connect to each other: numbered attempts, and in each a few
// keys that a node leaves for the others. A pure core, as the coordinator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace dmuon::coordinator {

// Bounds of what a node may leave. Gloo leaves a key a node and peer, of some hundred bytes.
inline constexpr size_t kMaxKeyBytes = 256;
inline constexpr size_t kMaxValueBytes = size_t{64} << 10;
inline constexpr size_t kMaxKeys = size_t{1} << 16;

class MeetingPoint {
 public:
  // The attempt for a node whose attempt `broken` is broken (0: it had none). Begins a new one, with
  // no keys, unless that has happened already.
  uint64_t NextAttempt(uint64_t broken);
  // The current one; 0 before the first.
  [[nodiscard]] uint64_t attempt() const { return attempt_; }

  // Both: ABORTED when `attempt` is not the current one.
  absl::Status Set(uint64_t attempt, const std::string& key, const std::string& value);
  [[nodiscard]] absl::StatusOr<std::optional<std::string>> Get(uint64_t attempt,
                                                               const std::string& key) const;

 private:
  [[nodiscard]] absl::Status Check(uint64_t attempt) const;

  uint64_t attempt_ = 0;
  std::map<std::string, std::string> keys_;
};

}  // namespace dmuon::coordinator
