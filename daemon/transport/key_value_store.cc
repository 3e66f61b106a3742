// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/transport/key_value_store.h"

#include "absl/strings/str_cat.h"
#include "daemon/base/clock.h"
#include "daemon/transport/steady.h"

namespace dmuon::transport {

absl::Status MemoryStore::Set(const std::string& key, const std::string& value) {
  wire::MutexLock lock(mu_);
  if (!values_.emplace(key, value).second) {
    return absl::AlreadyExistsError(absl::StrCat("key '", key, "' is set"));
  }
  changed_.NotifyAll();
  return absl::OkStatus();
}

absl::StatusOr<std::string> MemoryStore::Get(const std::string& key, absl::Time deadline) {
  wire::MutexLock lock(mu_);
  for (;;) {
    if (const auto found = values_.find(key); found != values_.end()) return found->second;
    if (MonotonicNow() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat("key '", key, "' was not set in time"));
    }
    changed_.WaitUntil(mu_, SteadyTime(deadline));
  }
}

}  // namespace dmuon::transport
