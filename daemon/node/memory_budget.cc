// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/memory_budget.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "wire/error.h"

namespace dmuon::node {

absl::StatusOr<MemoryBudget::Share> MemoryBudget::Take(uint64_t bytes, std::string_view what) {
  wire::MutexLock lock(mu_);
  const uint64_t left = limit_bytes_ - used_bytes_;
  if (bytes > left) {
    return wire::Error(absl::StatusCode::kResourceExhausted, v1::ERROR_REASON_LIMIT,
                       absl::StrCat(std::string(what), " needs ", bytes, " bytes; left are ", left,
                                    " of the node's ", limit_bytes_, " (--memory-limit)"));
  }
  used_bytes_ += bytes;
  return Share(this, bytes);
}

}  // namespace dmuon::node
