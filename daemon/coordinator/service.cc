// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include "daemon/coordinator/service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "daemon/base/rpc_server.h"
#include "dmuon/v1/coordinator.grpc.pb.h"
#include "wire/error.h"
#include "wire/grpc_status.h"
#include "wire/mutex.h"

namespace dmuon::coordinator {
namespace {

absl::Status CheckDeadline(const grpc::CallbackServerContext& context) {
  if (HasDeadline(context)) return absl::OkStatus();
  return wire::InvalidField("the call has no deadline; set one");
}

// One stream of WatchPlans. At most one write is in flight; the queue holds the rest. Lives until
// OnDone, and a little longer while a wake-up runs.
class WatchReactor final : public grpc::ServerWriteReactor<v1::WatchPlansResponse>,
                           public std::enable_shared_from_this<WatchReactor> {
 public:
  static WatchReactor* Start(Host* host, const grpc::CallbackServerContext& context,
                             const v1::WatchPlansRequest& request) {
    auto reactor = std::make_shared<WatchReactor>();
    reactor->self_ = reactor;
    reactor->queue_ = std::make_shared<PlanQueue>([weak = std::weak_ptr(reactor)] {
      if (const auto alive = weak.lock()) alive->Advance();
    });
    absl::Status status = CheckDeadline(context);
    if (status.ok()) status = host->Watch(request.node(), reactor->queue_);
    if (!status.ok()) reactor->queue_->End(std::move(status));
    reactor->Advance();
    return reactor.get();
  }

  void OnWriteDone(bool ok) override {
    {
      wire::MutexLock lock(mu_);
      writing_ = false;
      if (!ok) Break();
    }
    Advance();
  }
  void OnCancel() override {
    {
      wire::MutexLock lock(mu_);
      Break();
    }
    Advance();
  }
  void OnDone() override {
    std::shared_ptr<WatchReactor> last;  // may destroy this, so after the lock
    wire::MutexLock lock(mu_);
    last = std::move(self_);
  }

 private:
  // A broken stream takes no more events; they are all current plans, and a new watch gets them.
  void Break() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    queue_->End(absl::CancelledError("the node went away"));
    broken_ = true;
  }

  // Starts the next write, or the end. gRPC is called without the lock: it may call back at once.
  void Advance() {
    std::optional<absl::Status> end;
    {
      wire::MutexLock lock(mu_);
      if (writing_ || finished_) return;
      PlanQueue::Next next = queue_->Pop();
      while (broken_ && next.event.has_value()) next = queue_->Pop();
      if (next.event.has_value()) {
        current_ = *std::move(next.event);
        writing_ = true;
      } else if (next.end.has_value()) {
        end = std::move(next.end);
        finished_ = true;
      } else {
        return;
      }
    }
    if (end.has_value()) {
      Finish(wire::ToGrpc(*end));
    } else {
      StartWrite(&current_);
    }
  }

  std::shared_ptr<WatchReactor> self_;
  std::shared_ptr<PlanQueue> queue_;
  wire::Mutex mu_;  // before PlanQueue's lock
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  bool broken_ ABSL_GUARDED_BY(mu_) = false;
  v1::WatchPlansResponse current_;  // gRPC's while writing_
};

// Calls Host::Tick until destruction.
class Ticker {
 public:
  explicit Ticker(Host* host) : thread_([this, host] { Run(host); }) {}
  ~Ticker() {
    {
      wire::MutexLock lock(mu_);
      stopping_ = true;
      cv_.NotifyAll();
    }
    thread_.join();
  }

 private:
  void Run(Host* host) {
    const auto period = absl::ToChronoNanoseconds(
        std::clamp(host->lease() / 8, absl::Milliseconds(10), absl::Seconds(1)));
    while (true) {
      const auto deadline = std::chrono::steady_clock::now() + period;
      {
        wire::MutexLock lock(mu_);
        while (!stopping_ && cv_.WaitUntil(mu_, deadline)) {
        }
        if (stopping_) return;
      }
      host->Tick();
    }
  }

  wire::Mutex mu_;  // leaf lock
  wire::CondVar cv_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last: starts when the rest exists
};

class ServiceImpl final : public Service, public v1::CoordinatorService::CallbackService {
 public:
  explicit ServiceImpl(Host* host) : host_(host), ticker_(host) {}

  grpc::Service* grpc_service() override { return this; }

  grpc::ServerUnaryReactor* Join(grpc::CallbackServerContext* context,
                                 const v1::JoinRequest* request,
                                 v1::JoinResponse* response) override {
    return Answer(context, [&] { return Assign(host_->Join(*request), response); });
  }
  grpc::ServerUnaryReactor* Beat(grpc::CallbackServerContext* context,
                                 const v1::BeatRequest* request, v1::BeatResponse*) override {
    return Answer(context, [&] { return host_->Beat(*request); });
  }
  grpc::ServerUnaryReactor* Leave(grpc::CallbackServerContext* context,
                                  const v1::LeaveRequest* request, v1::LeaveResponse*) override {
    return Answer(context, [&] { return host_->Leave(*request); });
  }
  grpc::ServerUnaryReactor* RegisterWorker(grpc::CallbackServerContext* context,
                                           const v1::RegisterWorkerRequest* request,
                                           v1::RegisterWorkerResponse*) override {
    return Answer(context, [&] { return host_->RegisterWorker(*request); });
  }
  grpc::ServerUnaryReactor* ReleaseJob(grpc::CallbackServerContext* context,
                                       const v1::ReleaseJobRequest* request,
                                       v1::ReleaseJobResponse*) override {
    return Answer(context, [&] { return host_->ReleaseJob(*request); });
  }
  grpc::ServerUnaryReactor* NextAttempt(grpc::CallbackServerContext* context,
                                        const v1::NextAttemptRequest* request,
                                        v1::NextAttemptResponse* response) override {
    return Answer(context, [&]() -> absl::Status {
      DMUON_ASSIGN_OR_RETURN(const uint64_t attempt, host_->NextAttempt(request->meeting()));
      response->set_attempt(attempt);
      return absl::OkStatus();
    });
  }
  grpc::ServerUnaryReactor* SetKey(grpc::CallbackServerContext* context,
                                   const v1::SetKeyRequest* request,
                                   v1::SetKeyResponse*) override {
    return Answer(context, [&] { return host_->SetKey(*request); });
  }
  grpc::ServerUnaryReactor* GetKey(grpc::CallbackServerContext* context,
                                   const v1::GetKeyRequest* request,
                                   v1::GetKeyResponse* response) override {
    return Answer(context, [&]() -> absl::Status {
      DMUON_ASSIGN_OR_RETURN(const std::optional<std::string> value, host_->GetKey(*request));
      response->set_found(value.has_value());
      response->set_value(value.value_or(""));
      return absl::OkStatus();
    });
  }
  grpc::ServerUnaryReactor* ReportPart(grpc::CallbackServerContext* context,
                                       const v1::ReportPartRequest* request,
                                       v1::ReportPartResponse* response) override {
    return Answer(context, [&] { return Assign(host_->ReportPart(*request), response); });
  }
  grpc::ServerUnaryReactor* DrainNode(grpc::CallbackServerContext* context, const v1::DrainNodeRequest* request,
                                      v1::DrainNodeResponse*) override {
    return Answer(context, [&] { return host_->DrainNode(*request); });
  }
  grpc::ServerUnaryReactor* GetClusterStatus(grpc::CallbackServerContext* context,
                                             const v1::GetClusterStatusRequest*,
                                             v1::GetClusterStatusResponse* response) override {
    return Answer(context, [&] {
      *response = host_->GetClusterStatus();
      return absl::OkStatus();
    });
  }
  grpc::ServerUnaryReactor* GetPlan(grpc::CallbackServerContext* context,
                                    const v1::GetPlanRequest* request,
                                    v1::GetPlanResponse* response) override {
    return Answer(context, [&] { return Assign(host_->GetPlan(*request), response); });
  }
  grpc::ServerWriteReactor<v1::WatchPlansResponse>* WatchPlans(
      grpc::CallbackServerContext* context, const v1::WatchPlansRequest* request) override {
    return WatchReactor::Start(host_, *context, *request);
  }

 private:
  template <typename Message>
  static absl::Status Assign(absl::StatusOr<Message> result, Message* response) {
    if (!result.ok()) return std::move(result).status();
    *response = *std::move(result);
    return absl::OkStatus();
  }

  template <typename Handler>
  static grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, Handler handler) {
    absl::Status status = CheckDeadline(*context);
    if (status.ok()) status = handler();
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(wire::ToGrpc(status));
    return reactor;
  }

  Host* const host_;
  Ticker ticker_;
};

}  // namespace

std::unique_ptr<Service> Service::Create(Host* host) { return std::make_unique<ServiceImpl>(host); }

}  // namespace dmuon::coordinator
