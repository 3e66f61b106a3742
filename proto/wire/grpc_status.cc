// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "wire/grpc_status.h"

#include <grpcpp/support/status.h>

#include <string>

#include "absl/strings/string_view.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "wire/error.h"

namespace dmuon::wire {
namespace {

constexpr char kDomain[] = "dmuon";

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const auto code = static_cast<grpc::StatusCode>(status.code());
  const std::string message(status.message());
  google::rpc::Status details;
  details.set_code(static_cast<int>(status.code()));
  details.set_message(message);
  if (const v1::ErrorReason reason = ReasonOf(status); reason != v1::ERROR_REASON_UNSPECIFIED) {
    google::rpc::ErrorInfo info;
    info.set_reason(std::string(ReasonName(reason)));
    info.set_domain(kDomain);
    details.add_details()->PackFrom(info);
  }
  return {code, message, details.SerializeAsString()};
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  google::rpc::Status details;
  if (details.ParseFromString(status.error_details())) {
    for (const auto& any : details.details()) {
      google::rpc::ErrorInfo info;
      if (any.UnpackTo(&info) && info.domain() == kDomain) {
        return Error(code, ReasonFromName(info.reason()), status.error_message());
      }
    }
  }
  return absl::Status(code, status.error_message());
}

}  // namespace dmuon::wire
