// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Errors that cross processes: a canonical code, a message for people, and a stable reason for
// programs, all inside one absl::Status. No gRPC here; grpc_status.h translates.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "dmuon/v1/error.pb.h"

namespace dmuon::wire {

// A status whose reason survives copies and the way over gRPC. `message` names the thing, the number
// and the bound.
absl::Status Error(absl::StatusCode code, v1::ErrorReason reason, absl::string_view message);

// ERROR_REASON_UNSPECIFIED for a status without one.
v1::ErrorReason ReasonOf(const absl::Status& status);

// "STALE_GENERATION": the enumerator without its prefix; and back (UNSPECIFIED when unknown).
absl::string_view ReasonName(v1::ErrorReason reason);
v1::ErrorReason ReasonFromName(absl::string_view name);

// Shorthands for the commonest pair.
absl::Status InvalidField(absl::string_view message);

// UNAVAILABLE/DRAINING: "the daemon is shutting down; retry".
absl::Status Draining(absl::string_view what);

}  // namespace dmuon::wire

#define DMUON_RETURN_IF_ERROR(expr)                                   \
  do {                                                                \
    if (absl::Status dmuon_status = (expr); !dmuon_status.ok()) {     \
      return dmuon_status;                                            \
    }                                                                 \
  } while (false)

#define DMUON_CONCAT_INNER(a, b) a##b
#define DMUON_CONCAT(a, b) DMUON_CONCAT_INNER(a, b)
#define DMUON_ASSIGN_OR_RETURN(lhs, expr) \
  DMUON_ASSIGN_OR_RETURN_IMPL(DMUON_CONCAT(dmuon_statusor_, __LINE__), lhs, expr)
#define DMUON_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                                \
  if (!tmp.ok()) return std::move(tmp).status();    \
  lhs = *std::move(tmp)
