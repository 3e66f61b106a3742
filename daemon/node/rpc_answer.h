// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What the services of a node share: the way back of a call, its deadline, and the metric of refusals.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/base/metrics.h"
#include "daemon/node/job.h"

namespace grpc {
class CallbackServerContext;
class ServerUnaryReactor;
}  // namespace grpc

namespace dmuon::node {

// Ends one call, once. If it dies unused (its job went away), the caller is told to retry. Thread-safe.
class CallEnd {
 public:
  // `metrics` outlives it.
  CallEnd(grpc::ServerUnaryReactor* reactor, Metrics* metrics);
  ~CallEnd();
  CallEnd(const CallEnd&) = delete;
  CallEnd& operator=(const CallEnd&) = delete;

  // `fill` puts the response in its place before an OK leaves.
  void Send(const absl::Status& status, const std::function<void()>& fill);

 private:
  grpc::ServerUnaryReactor* const reactor_;
  Metrics* const metrics_;
  std::atomic<bool> sent_ = false;
};

template <typename Response>
Reply<Response> ReplyBy(grpc::ServerUnaryReactor* reactor, Response* response, Metrics* metrics) {
  return [end = std::make_shared<CallEnd>(reactor, metrics), response](absl::StatusOr<Response> result) {
    end->Send(result.status(), [&] { *response = *std::move(result); });
  };
}

// When to answer the call at the latest.
absl::Time AnswerBy(const grpc::CallbackServerContext& context);

// Finishes a call that names no deadline; its handler must do nothing then.
bool Refused(const grpc::CallbackServerContext& context, grpc::ServerUnaryReactor* reactor);

}  // namespace dmuon::node
