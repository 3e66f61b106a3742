// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Where nodes leave their addresses for each other before they can talk. Whoever makes the store
// also clears it: a transport removes no key.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "wire/mutex.h"

namespace dmuon::transport {

// Any thread.
class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;
  // Once a key.
  virtual absl::Status Set(const std::string& key, const std::string& value) = 0;
  // Waits for the key: DEADLINE_EXCEEDED when it was not there by `deadline` (monotonic clock).
  // Looks at least once, also after the deadline.
  virtual absl::StatusOr<std::string> Get(const std::string& key, absl::Time deadline) = 0;
};

// For nodes in one process.
class MemoryStore final : public KeyValueStore {
 public:
  absl::Status Set(const std::string& key, const std::string& value) override;
  absl::StatusOr<std::string> Get(const std::string& key, absl::Time deadline) override;

 private:
  wire::Mutex mu_;  // leaf lock
  wire::CondVar changed_;
  std::map<std::string, std::string> values_ ABSL_GUARDED_BY(mu_);
};

}  // namespace dmuon::transport
