// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include "daemon/coordinator/meeting_point.h"

#include "absl/strings/str_cat.h"
#include "wire/error.h"

namespace dmuon::coordinator {

uint64_t MeetingPoint::NextAttempt(uint64_t broken) {
  if (broken >= attempt_) {
    attempt_ = broken + 1;
    keys_.clear();
  }
  return attempt_;
}

absl::Status MeetingPoint::Check(uint64_t attempt) const {
  if (attempt == attempt_) return absl::OkStatus();
  return absl::AbortedError(
      absl::StrCat("attempt ", attempt, " to connect is over; current is ", attempt_));
}

absl::Status MeetingPoint::Set(uint64_t attempt, const std::string& key, const std::string& value) {
  DMUON_RETURN_IF_ERROR(Check(attempt));
  if (key.empty() || key.size() > kMaxKeyBytes || value.size() > kMaxValueBytes) {
    return wire::InvalidField(absl::StrCat("a key of ", key.size(), " bytes, allowed are 1..",
                                           kMaxKeyBytes, ", with a value of ", value.size(),
                                           ", at most ", kMaxValueBytes));
  }
  if (keys_.size() >= kMaxKeys && !keys_.contains(key)) {
    return wire::Error(absl::StatusCode::kResourceExhausted, v1::ERROR_REASON_LIMIT,
                       absl::StrCat(keys_.size(), " keys, at most ", kMaxKeys));
  }
  keys_[key] = value;
  return absl::OkStatus();
}

absl::StatusOr<std::optional<std::string>> MeetingPoint::Get(uint64_t attempt,
                                                             const std::string& key) const {
  DMUON_RETURN_IF_ERROR(Check(attempt));
  const auto it = keys_.find(key);
  return it == keys_.end() ? std::nullopt : std::optional(it->second);
}

}  // namespace dmuon::coordinator
