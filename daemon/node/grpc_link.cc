// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/grpc_link.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "daemon/base/join_requests.h"
#include "daemon/base/log.h"
#include "daemon/base/rpc_server.h"
#include "dmuon/v1/coordinator.grpc.pb.h"
#include "wire/error.h"
#include "wire/grpc_status.h"
#include "wire/mutex.h"

namespace dmuon::node {
namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(10);
constexpr absl::Duration kFirstBackoff = absl::Milliseconds(200);
constexpr absl::Duration kLongestBackoff = absl::Seconds(5);
// A watch has a deadline like every call; it is simply begun again.
constexpr absl::Duration kWatchTime = absl::Hours(1);

void SetDeadline(grpc::ClientContext& context, absl::Duration timeout) {
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMicroseconds(timeout));
}

class GrpcLink final : public CoordinatorLink {
 public:
  explicit GrpcLink(std::string address)
      : address_(std::move(address)),
        stub_(v1::CoordinatorService::NewStub(MakeChannel(address_))) {}
  ~GrpcLink() override { Stop(); }

  void Start(PlanSink sink, std::function<v1::JoinRequest()> join) override {
    sink_ = std::move(sink);
    join_ = std::move(join);
    node_ = join_().node();
    thread_ = std::thread([this] { Loop(); });
  }

  void Stop() override {
    {
      wire::MutexLock lock(mu_);
      if (stopping_) return;
      stopping_ = true;
      if (watch_ != nullptr) watch_->TryCancel();
    }
    changed_.NotifyAll();
    if (!thread_.joinable()) return;
    thread_.join();
    v1::LeaveRequest request;
    *request.mutable_node() = node_;
    v1::LeaveResponse response;
    Call([&](grpc::ClientContext* context) { return stub_->Leave(context, request, &response); })
        .IgnoreError();  // the lease ends it anyway
  }

  void Rejoin() override {
    {
      wire::MutexLock lock(mu_);
      joins_.Ask();
    }
    changed_.NotifyAll();
  }
  bool AwaitRejoin(absl::Duration patience) override { return joins_.Await(patience); }

  absl::Status RegisterWorker(v1::RegisterWorkerRequest request) override {
    v1::RegisterWorkerResponse response;
    return Call([&](grpc::ClientContext* context) {
      return stub_->RegisterWorker(context, request, &response);
    });
  }

  absl::Status ReleaseJob(v1::ReleaseJobRequest request) override {
    *request.mutable_node() = node_;
    v1::ReleaseJobResponse response;
    return Call([&](grpc::ClientContext* context) {
      return stub_->ReleaseJob(context, request, &response);
    });
  }

  absl::StatusOr<uint64_t> NextAttempt(v1::Meeting meeting) override {
    v1::NextAttemptRequest request;
    *request.mutable_meeting() = Mine(std::move(meeting));
    v1::NextAttemptResponse response;
    DMUON_RETURN_IF_ERROR(Call([&](grpc::ClientContext* context) {
      return stub_->NextAttempt(context, request, &response);
    }));
    return response.attempt();
  }

  absl::Status SetKey(v1::Meeting meeting, const std::string& key,
                      const std::string& value) override {
    v1::SetKeyRequest request;
    *request.mutable_meeting() = Mine(std::move(meeting));
    request.set_key(key);
    request.set_value(value);
    v1::SetKeyResponse response;
    return Call([&](grpc::ClientContext* context) {
      return stub_->SetKey(context, request, &response);
    });
  }

  absl::StatusOr<std::optional<std::string>> GetKey(v1::Meeting meeting,
                                                    const std::string& key) override {
    v1::GetKeyRequest request;
    *request.mutable_meeting() = Mine(std::move(meeting));
    request.set_key(key);
    v1::GetKeyResponse response;
    DMUON_RETURN_IF_ERROR(Call([&](grpc::ClientContext* context) {
      return stub_->GetKey(context, request, &response);
    }));
    return response.found() ? std::optional(response.value()) : std::nullopt;
  }

  absl::StatusOr<v1::ReportPartResponse> ReportPart(v1::ReportPartRequest request) override {
    *request.mutable_node() = node_;
    v1::ReportPartResponse response;
    DMUON_RETURN_IF_ERROR(Call([&](grpc::ClientContext* context) {
      return stub_->ReportPart(context, request, &response);
    }));
    return response;
  }

  std::string address() const override { return address_; }

 private:
  v1::Meeting Mine(v1::Meeting meeting) const {
    *meeting.mutable_node() = node_;
    return meeting;
  }

  template <typename Fn>
  absl::Status Call(Fn&& call) {
    grpc::ClientContext context;
    SetDeadline(context, kCallTimeout);
    return wire::FromGrpc(call(&context));
  }

  // Joins, watches and beats until a call fails, then starts over.
  void Loop() {
    absl::Duration backoff = kFirstBackoff;
    std::string last_error;
    while (!Stopping()) {
      const absl::Status status = ServeMembership(backoff, last_error);
      if (Stopping()) return;
      if (std::string(status.message()) != last_error) {
        LogWarning("coordinator ", address_, ": ", status.message());
        last_error = std::string(status.message());
      }
      Sleep(backoff, /*or_watch_end=*/false);
      backoff = std::min(backoff * 2, kLongestBackoff);
    }
  }

  absl::Status ServeMembership(absl::Duration& backoff, std::string& last_error) {
    v1::JoinResponse joined;
    DMUON_RETURN_IF_ERROR(Join(joined));
    backoff = kFirstBackoff;
    last_error.clear();
    LogInfo("joined coordinator ", address_, ", lease ", joined.lease_seconds(), " s");
    {
      wire::MutexLock lock(mu_);
      watch_ended_ = false;
    }
    std::thread watcher([this] { WatchPlans(); });
    const absl::Status status = Beat(absl::Seconds(joined.lease_seconds()) / 3);
    {
      wire::MutexLock lock(mu_);
      if (watch_ != nullptr) watch_->TryCancel();
    }
    watcher.join();
    return status;
  }

  // Until a beat fails or the stream of plans ends, which it does at once when the coordinator dies. A Join renews as
  // well as a beat.
  absl::Status Beat(absl::Duration period) {
    v1::BeatRequest request;
    *request.mutable_node() = node_;
    while (true) {
      Sleep(period, /*or_watch_end=*/true);
      if (Stopping()) return absl::OkStatus();
      if (WatchEnded()) return absl::UnavailableError("the stream of plans has ended");
      if (joins_.due()) {
        v1::JoinResponse joined;
        DMUON_RETURN_IF_ERROR(Join(joined));
        continue;
      }
      v1::BeatResponse response;
      DMUON_RETURN_IF_ERROR(Call(
          [&](grpc::ClientContext* context) { return stub_->Beat(context, request, &response); }));
    }
  }

  void WatchPlans() {
    grpc::ClientContext context;
    SetDeadline(context, kWatchTime);
    {
      wire::MutexLock lock(mu_);
      if (stopping_) return;
      watch_ = &context;
    }
    v1::WatchPlansRequest request;
    *request.mutable_node() = node_;
    const auto reader = stub_->WatchPlans(&context, request);
    v1::WatchPlansResponse event;
    while (reader->Read(&event)) sink_(event);
    const absl::Status status = wire::FromGrpc(reader->Finish());
    {
      wire::MutexLock lock(mu_);
      watch_ = nullptr;
      watch_ended_ = true;
    }
    changed_.NotifyAll();
    if (!Stopping()) LogInfo("stream of plans ended: ", status.message());
  }

  bool WatchEnded() {
    wire::MutexLock lock(mu_);
    return watch_ended_;
  }

  bool Stopping() {
    wire::MutexLock lock(mu_);
    return stopping_;
  }

  absl::Status Join(v1::JoinResponse& joined) {
    const uint64_t number = joins_.Begin();
    const v1::JoinRequest join = join_();
    DMUON_RETURN_IF_ERROR(Call([&](grpc::ClientContext* context) { return stub_->Join(context, join, &joined); }));
    joins_.Heard(number);
    return absl::OkStatus();
  }

  void Sleep(absl::Duration duration, bool or_watch_end) {
    const auto until = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(duration);
    wire::MutexLock lock(mu_);
    while (!stopping_ && !(or_watch_end && (watch_ended_ || joins_.due())) && changed_.WaitUntil(mu_, until)) {
    }
  }

  const std::string address_;
  const std::unique_ptr<v1::CoordinatorService::Stub> stub_;
  v1::NodeIdentity node_;
  PlanSink sink_;
  std::function<v1::JoinRequest()> join_;
  wire::Mutex mu_;
  wire::CondVar changed_;
  JoinRequests joins_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  grpc::ClientContext* watch_ ABSL_GUARDED_BY(mu_) = nullptr;  // while a watch runs
  bool watch_ended_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<CoordinatorLink> MakeGrpcLink(std::string address) {
  return std::make_unique<GrpcLink>(std::move(address));
}

}  // namespace dmuon::node
