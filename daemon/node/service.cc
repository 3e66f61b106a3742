// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/service.h"

#include <grpcpp/grpcpp.h>

#include <string>
#include <utility>

#include "daemon/base/clock.h"
#include "daemon/node/rpc_answer.h"
#include "dmuon/v1/node.grpc.pb.h"

namespace dmuon::node {
namespace {

using grpc::CallbackServerContext;
using grpc::ServerUnaryReactor;

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

  ServerUnaryReactor* Export(CallbackServerContext* context, const v1::ExportRequest* request,
                             v1::ExportResponse* response) override {
    ServerUnaryReactor* reactor = context->DefaultReactor();
    if (Refused(*context, reactor)) return reactor;
    engine_->Export(*request, AnswerBy(*context), ReplyBy(reactor, response));
    return reactor;
  }

  ServerUnaryReactor* Import(CallbackServerContext* context, const v1::ImportRequest* request,
                             v1::ImportResponse* response) override {
    ServerUnaryReactor* reactor = context->DefaultReactor();
    if (Refused(*context, reactor)) return reactor;
    engine_->Import(*request, AnswerBy(*context), ReplyBy(reactor, response));
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
    return node::ReplyBy(reactor, response, metrics_);
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
