// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "wire/error.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace dmuon::wire {
namespace {

constexpr absl::string_view kPayloadUrl = "dmuon.v1.ErrorReason";
constexpr absl::string_view kPrefix = "ERROR_REASON_";

}  // namespace

absl::Status Error(absl::StatusCode code, v1::ErrorReason reason, absl::string_view message) {
  absl::Status status(code, message);
  status.SetPayload(kPayloadUrl,
                    absl::Cord(absl::string_view(v1::ErrorReason_Name(reason))));
  return status;
}

absl::Status InvalidField(absl::string_view message) {
  return Error(absl::StatusCode::kInvalidArgument, v1::ERROR_REASON_INVALID_FIELD, message);
}

absl::Status Draining(absl::string_view what) {
  return Error(absl::StatusCode::kUnavailable, v1::ERROR_REASON_DRAINING,
               absl::StrCat(what, " is shutting down; retry"));
}

v1::ErrorReason ReasonOf(const absl::Status& status) {
  const auto payload =
      status.GetPayload(kPayloadUrl);
  v1::ErrorReason reason = v1::ERROR_REASON_UNSPECIFIED;
  if (payload.has_value()) v1::ErrorReason_Parse(std::string(*payload), &reason);
  return reason;
}

absl::string_view ReasonName(v1::ErrorReason reason) {
  const absl::string_view name = v1::ErrorReason_Name(reason);
  return name.substr(kPrefix.size());
}

v1::ErrorReason ReasonFromName(absl::string_view name) {
  v1::ErrorReason reason = v1::ERROR_REASON_UNSPECIFIED;
  v1::ErrorReason_Parse(std::string(kPrefix) + std::string(name), &reason);
  return reason;
}

}  // namespace dmuon::wire
