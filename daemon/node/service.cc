// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <utility>

#include "daemon/base/clock.h"
#include "daemon/base/rpc_server.h"
#include "dmuon/v1/node.grpc.pb.h"
#include "wire/error.h"
#include "wire/grpc_status.h"

namespace dmuon::node {
namespace {

using grpc::CallbackServerContext;
using grpc::ServerUnaryReactor;

absl::Time AnswerBy(const CallbackServerContext& context) {
  return node::AnswerBy(absl::FromChrono(context.deadline() - std::chrono::system_clock::now()));
}

// The way back of one call. If it dies unused (its job went away), the caller is told to retry.
template <typename Response>
class Answer {
 public:
  Answer(ServerUnaryReactor* reactor, Response* response, Metrics* metrics)
      : reactor_(reactor), response_(response), metrics_(metrics) {}
  ~Answer() {
    Send(wire::Error(absl::StatusCode::kUnavailable, v1::ERROR_REASON_DRAINING,
                     "the daemon is shutting down, or the job has just ended; retry"));
  }
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;

  void Send(absl::StatusOr<Response> result) {
    if (sent_.exchange(true)) return;
    if (result.ok()) {
      *response_ = *std::move(result);
      reactor_->Finish(grpc::Status::OK);
      return;
    }
    const absl::string_view reason = [&] {
      const v1::ErrorReason value = wire::ReasonOf(result.status());
      return value == v1::ERROR_REASON_UNSPECIFIED ? absl::string_view("OTHER")
                                                   : wire::ReasonName(value);
    }();
    metrics_->Increment(MetricId::kRejectedRequests,
                        {std::string_view(reason.data(), reason.size())});
    reactor_->Finish(wire::ToGrpc(result.status()));
  }

 private:
  ServerUnaryReactor* const reactor_;
  Response* const response_;
  Metrics* const metrics_;
  std::atomic<bool> sent_ = false;
};

// Finishes a call that names no deadline; it must not reach the engine.
bool Refused(const CallbackServerContext& context, ServerUnaryReactor* reactor) {
  if (HasDeadline(context)) return false;
  reactor->Finish(wire::ToGrpc(wire::InvalidField("the call has no deadline; every call needs one")));
  return true;
}

class ServiceImpl final : public Service, public v1::NodeService::CallbackService {
 public:
  ServiceImpl(Engine* engine, Metrics* metrics, NodeDescription description)
      : engine_(engine), metrics_(metrics), description_(std::move(description)) {}

  grpc::Service* grpc_service() override { return this; }

  ServerUnaryReactor* Open(CallbackServerContext* context, const v1::OpenRequest* request,
                           v1::OpenResponse* response) override {
    ServerUnaryReactor* reactor = context->DefaultReactor();
    if (Refused(*context, reactor)) return reactor;
    engine_->Open(*request, [version = description_.version,
                             reply = ReplyBy(reactor, response)](
                                absl::StatusOr<v1::OpenResponse> opened) {
      if (opened.ok()) opened->set_daemon_version(version);
      reply(std::move(opened));
    });
    return reactor;
  }

  ServerUnaryReactor* Register(CallbackServerContext* context, const v1::RegisterRequest* request,
                               v1::RegisterResponse* response) override {
    ServerUnaryReactor* reactor = context->DefaultReactor();
    if (Refused(*context, reactor)) return reactor;
    engine_->Register(*request, AnswerBy(*context), ReplyBy(reactor, response));
    return reactor;
  }

  ServerUnaryReactor* Begin(CallbackServerContext* context, const v1::BeginRequest* request,
                            v1::BeginResponse* response) override {
    ServerUnaryReactor* reactor = context->DefaultReactor();
    if (Refused(*context, reactor)) return reactor;
    engine_->Begin(*request, AnswerBy(*context), ReplyBy(reactor, response));
    return reactor;
  }

  ServerUnaryReactor* Step(CallbackServerContext* context, const v1::StepRequest* request,
                           v1::StepResponse* response) override {
    ServerUnaryReactor* reactor = context->DefaultReactor();
    if (Refused(*context, reactor)) return reactor;
    engine_->Step(*request, AnswerBy(*context), ReplyBy(reactor, response));
    return reactor;
  }

  ServerUnaryReactor* Save(CallbackServerContext* context, const v1::SaveRequest* request,
                           v1::SaveResponse* response) override {
    ServerUnaryReactor* reactor = context->DefaultReactor();
    if (Refused(*context, reactor)) return reactor;
    engine_->Save(*request, AnswerBy(*context), ReplyBy(reactor, response));
    return reactor;
  }

  ServerUnaryReactor* Restore(CallbackServerContext* context, const v1::RestoreRequest* request,
                              v1::RestoreResponse* response) override {
    ServerUnaryReactor* reactor = context->DefaultReactor();
    if (Refused(*context, reactor)) return reactor;
    engine_->Restore(*request, AnswerBy(*context), ReplyBy(reactor, response));
    return reactor;
  }

  ServerUnaryReactor* Close(CallbackServerContext* context, const v1::CloseRequest* request,
                            v1::CloseResponse* response) override {
    ServerUnaryReactor* reactor = context->DefaultReactor();
    if (Refused(*context, reactor)) return reactor;
    engine_->Close(*request, ReplyBy(reactor, response));
    return reactor;
  }

  ServerUnaryReactor* GetNodeStatus(CallbackServerContext* context,
                                    const v1::GetNodeStatusRequest* /*request*/,
                                    v1::GetNodeStatusResponse* response) override {
    response->set_node_id(engine_->options().node_id);
    response->set_incarnation(engine_->incarnation());
    response->set_version(description_.version);
    response->set_slots(engine_->options().slots);
    response->set_threads_per_slot(static_cast<uint32_t>(engine_->options().threads_per_slot));
    response->set_backend(description_.backend);
    response->set_uptime_seconds(absl::ToDoubleSeconds(MonotonicNow() - started_));
    response->set_coordinator(description_.coordinator);
    response->set_metrics_address(description_.metrics_address);
    for (v1::NodeJobStatus& job : engine_->JobStatuses()) *response->add_jobs() = std::move(job);
    ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  ServerUnaryReactor* GetKernels(CallbackServerContext* context, const v1::GetKernelsRequest* /*request*/,
                                 v1::GetKernelsResponse* response) override {
    *response = engine_->Kernels();
    ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  template <typename Response>
  Reply<Response> ReplyBy(ServerUnaryReactor* reactor, Response* response) {
    auto answer = std::make_shared<Answer<Response>>(reactor, response, metrics_);
    return [answer](absl::StatusOr<Response> result) { answer->Send(std::move(result)); };
  }

  Engine* const engine_;
  Metrics* const metrics_;
  const NodeDescription description_;
  const absl::Time started_ = MonotonicNow();
};

}  // namespace

std::unique_ptr<Service> Service::Create(Engine* engine, Metrics* metrics,
                                         NodeDescription description) {
  return std::make_unique<ServiceImpl>(engine, metrics, std::move(description));
}

}  // namespace dmuon::node
