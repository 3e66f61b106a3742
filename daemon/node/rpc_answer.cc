// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/rpc_answer.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <string_view>

#include "daemon/base/rpc_server.h"
#include "daemon/node/engine.h"
#include "wire/error.h"
#include "wire/grpc_status.h"

namespace dmuon::node {

CallEnd::CallEnd(grpc::ServerUnaryReactor* reactor, Metrics* metrics) : reactor_(reactor), metrics_(metrics) {}

CallEnd::~CallEnd() {
  Send(wire::Error(absl::StatusCode::kUnavailable, v1::ERROR_REASON_DRAINING,
                   "the daemon is shutting down, or the job has just ended; retry"),
       [] {});
}

void CallEnd::Send(const absl::Status& status, const std::function<void()>& fill) {
  if (sent_.exchange(true)) return;
  if (status.ok()) {
    fill();
  } else {
    const v1::ErrorReason value = wire::ReasonOf(status);
    const absl::string_view reason = value == v1::ERROR_REASON_UNSPECIFIED ? "OTHER" : wire::ReasonName(value);
    metrics_->Increment(MetricId::kRejectedRequests, {std::string_view(reason.data(), reason.size())});
  }
  reactor_->Finish(wire::ToGrpc(status));
}

absl::Time AnswerBy(const grpc::CallbackServerContext& context) {
  return AnswerBy(absl::FromChrono(context.deadline() - std::chrono::system_clock::now()));
}

bool Refused(const grpc::CallbackServerContext& context, grpc::ServerUnaryReactor* reactor) {
  if (HasDeadline(context)) return false;
  reactor->Finish(wire::ToGrpc(wire::InvalidField("the call has no deadline; every call needs one")));
  return true;
}

}  // namespace dmuon::node
