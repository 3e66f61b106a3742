// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "client/src/session.h"

#include <grpcpp/grpcpp.h>
#include <poll.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/src/fork_guard.h"
#include "dmuon/v1/node.grpc.pb.h"
#include "wire/address.h"
#include "wire/arena_channel.h"
#include "wire/error.h"
#include "wire/grpc_status.h"
#include "wire/mutex.h"

namespace dmuon::client {
namespace {

using Stub = v1::NodeService::Stub;

template <typename Request, typename Response>
using Method = grpc::Status (Stub::*)(grpc::ClientContext*, const Request&, Response*);

std::chrono::milliseconds Remaining(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  return std::max(left, std::chrono::milliseconds(0));
}

std::shared_ptr<grpc::Channel> Dial(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(wire::kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(wire::kMaxMessageBytes);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, wire::kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, wire::kKeepaliveTimeoutMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Retries are ours: a step must not run twice behind the reconnect logic's back.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // A shared subchannel would hand its connection backoff on to the next session.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

class RpcSession : public Session {
 public:
  explicit RpcSession(std::string address)
      : address_(std::move(address)), stub_(v1::NodeService::NewStub(Dial(address_))) {}

  absl::Status Connect(const v1::OpenRequest& request, const std::string& channel_path,
                       Deadline deadline) {
    DMUON_ASSIGN_OR_RETURN(const v1::OpenResponse opened,
                           Invoke("Open", &Stub::Open, request, deadline));
    id_ = opened.session_id();
    absl::Status status = SayHello(opened.token(), channel_path, deadline);
    // Half a session would hold the rank until the daemon's own timeout.
    if (!status.ok()) Close(Clock::now() + std::chrono::seconds(1)).IgnoreError();
    return status;
  }

  absl::StatusOr<v1::RegisterResponse> Register(v1::RegisterRequest& request,
                                                Deadline deadline) override {
    request.set_session_id(id_);
    return Invoke("Register", &Stub::Register, request, deadline);
  }

  absl::StatusOr<v1::BeginResponse> Begin(v1::BeginRequest request, Deadline deadline) override {
    request.set_session_id(id_);
    return Invoke("Begin", &Stub::Begin, request, deadline);
  }

  absl::StatusOr<v1::StepResponse> Step(v1::StepRequest& request, Deadline deadline) override {
    request.set_session_id(id_);
    return Invoke("Step", &Stub::Step, request, deadline);
  }

  absl::StatusOr<v1::SaveResponse> Save(v1::SaveRequest& request, Deadline deadline) override {
    request.set_session_id(id_);
    return Invoke("Save", &Stub::Save, request, deadline);
  }

  absl::StatusOr<v1::RestoreResponse> Restore(v1::RestoreRequest& request, Deadline deadline) override {
    request.set_session_id(id_);
    return Invoke("Restore", &Stub::Restore, request, deadline);
  }

  absl::StatusOr<v1::ExportResponse> Export(v1::ExportRequest& request, Deadline deadline) override {
    request.set_session_id(id_);
    return Invoke("Export", &Stub::Export, request, deadline);
  }

  absl::StatusOr<v1::ImportResponse> Import(v1::ImportRequest& request, Deadline deadline) override {
    request.set_session_id(id_);
    return Invoke("Import", &Stub::Import, request, deadline);
  }

  absl::StatusOr<wire::ScopedFd> ReceiveState(uint64_t generation, uint64_t bytes, Deadline deadline) override {
    DMUON_ASSIGN_OR_RETURN(wire::ReceivedFrame received, Expect(wire::FrameType::kState, deadline));
    if (received.frame.generation == generation && received.frame.bytes == bytes && received.fd.valid()) {
      return std::move(received.fd);
    }
    return absl::UnavailableError(absl::StrCat("daemon at ", address_, " sent another state than it spoke of"));
  }

  absl::Status Offer(int state, Deadline deadline) override {
    wire::ChannelFrame frame;
    frame.type = wire::FrameType::kOffer;
    frame.session_id = id_;
    DMUON_RETURN_IF_ERROR(wire::SendFrame(channel_->get(), frame, state));
    return Expect(wire::FrameType::kTaken, deadline).status();
  }

  void Release() override {
    wire::ChannelFrame frame;
    frame.type = wire::FrameType::kRelease;
    frame.session_id = id_;
    wire::SendFrame(channel_->get(), frame).IgnoreError();
  }

  bool Ring(v1::StepRequest& request, Deadline deadline) override {
    request.set_session_id(id_);
    wire::ChannelFrame frame;
    frame.type = wire::FrameType::kStep;
    frame.session_id = id_;
    frame.generation = request.generation();
    frame.bytes = static_cast<uint64_t>(Remaining(deadline).count());
    const std::string payload = request.SerializeAsString();
    return payload.size() <= wire::kMaxFramePayload &&
           wire::SendFrame(channel_->get(), frame, -1, payload).ok();
  }

  void ExpectGradients(uint64_t generation, uint64_t step) override {
    wire::ChannelFrame frame;
    frame.type = wire::FrameType::kGradients;
    frame.session_id = id_;
    frame.generation = generation;
    frame.bytes = step;
    wire::SendFrame(channel_->get(), frame).IgnoreError();
  }

  bool Alive() override {
    pollfd channel{channel_->get(), 0, 0};
    return ::poll(&channel, 1, 0) == 0;
  }

  absl::Status Close(Deadline deadline) override {
    {
      wire::MutexLock lock(mu_);
      cancelled_ = false;
    }
    v1::CloseRequest request;
    request.set_session_id(id_);
    return Invoke("Close", &Stub::Close, request, deadline).status();
  }

  absl::StatusOr<wire::Arena> ReceiveArena(const wire::ArenaLayout& layout, uint64_t generation,
                                           Deadline deadline) override {
    DMUON_ASSIGN_OR_RETURN(
        wire::ReceivedFrame received,
        wire::ReceiveFrame(channel_->get(), absl::FromChrono(Remaining(deadline))));
    const wire::ChannelFrame& frame = received.frame;
    if (frame.type != wire::FrameType::kArena || frame.generation != generation ||
        frame.bytes != layout.total_bytes || !received.fd.valid()) {
      return absl::InternalError(absl::StrCat(
          "daemon at ", address_, " announced an arena of ", frame.bytes, " bytes, generation ",
          frame.generation, "; expected ", layout.total_bytes, ", generation ", generation));
    }
    return wire::Arena::Map(std::move(received.fd), layout, generation);
  }

  void Cancel() override {
    wire::MutexLock lock(mu_);
    cancelled_ = true;
    if (active_ != nullptr) active_->TryCancel();
  }

 private:
  template <typename Request, typename Response>
  absl::StatusOr<Response> Invoke(absl::string_view name, Method<Request, Response> method,
                                  const Request& request, Deadline deadline) {
    grpc::ClientContext context;
    const auto budget = Remaining(deadline);
    context.set_deadline(std::chrono::system_clock::now() + budget);
    if (!Enter(&context)) return absl::CancelledError("the client is closing");
    Response response;
    const absl::Status status = wire::FromGrpc(((*stub_).*method)(&context, request, &response));
    Enter(nullptr);
    if (status.ok()) return response;
    return Describe(status, name, budget);
  }

  // The next frame. UNAVAILABLE when it is another one, or none comes: then the session's frames are out of order.
  absl::StatusOr<wire::ReceivedFrame> Expect(wire::FrameType type, Deadline deadline) {
    absl::StatusOr<wire::ReceivedFrame> received =
        wire::ReceiveFrame(channel_->get(), absl::FromChrono(Remaining(deadline)));
    if (received.ok() && received->frame.type == type) return received;
    return absl::UnavailableError(absl::StrCat("daemon at ", address_, " sent nothing that was expected on the arena channel: ",
                                               received.ok() ? "another frame" : received.status().message()));
  }

  // False when cancelled; then nothing is entered.
  bool Enter(grpc::ClientContext* context) {
    wire::MutexLock lock(mu_);
    if (cancelled_ && context != nullptr) return false;
    active_ = context;
    return true;
  }

  // Errors of gRPC itself say neither who nor what.
  absl::Status Describe(const absl::Status& status, absl::string_view name,
                        std::chrono::milliseconds budget) const {
    if (wire::ReasonOf(status) != v1::ERROR_REASON_UNSPECIFIED) return status;
    if (status.code() == absl::StatusCode::kDeadlineExceeded) {
      return absl::DeadlineExceededError(absl::StrCat("daemon at ", address_, " gave no answer to ",
                                                      name, " within ", budget.count(), " ms"));
    }
    return absl::Status(status.code(),
                        absl::StrCat("daemon at ", address_, ", ", name, ": ", status.message()));
  }

  absl::Status SayHello(const std::string& token, const std::string& path, Deadline deadline) {
    wire::ChannelFrame hello;
    if (token.size() != hello.token.size()) {
      return absl::InternalError(absl::StrCat("daemon at ", address_, " sent a token of ",
                                              token.size(), " bytes instead of ",
                                              hello.token.size()));
    }
    hello.session_id = id_;
    std::copy(token.begin(), token.end(), hello.token.begin());
    DMUON_ASSIGN_OR_RETURN(ChannelSocket socket, ChannelSocket::Connect(path));
    channel_ = std::make_unique<ChannelSocket>(std::move(socket));
    DMUON_RETURN_IF_ERROR(wire::SendFrame(channel_->get(), hello));
    DMUON_ASSIGN_OR_RETURN(
        const wire::ReceivedFrame welcome,
        wire::ReceiveFrame(channel_->get(), absl::FromChrono(Remaining(deadline))));
    if (welcome.frame.type != wire::FrameType::kWelcome || welcome.frame.session_id != id_) {
      return absl::InternalError(
          absl::StrCat("daemon at ", address_, " answered the hello with something else"));
    }
    return absl::OkStatus();
  }

  const std::string address_;
  const std::unique_ptr<Stub> stub_;
  uint64_t id_ = 0;
  std::unique_ptr<ChannelSocket> channel_;

  wire::Mutex mu_;  // leaf lock
  grpc::ClientContext* active_ ABSL_GUARDED_BY(mu_) = nullptr;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

bool IsConnectionLost(const absl::Status& status) {
  const v1::ErrorReason reason = wire::ReasonOf(status);
  // A checkpoint that cannot be written is unavailable too.
  return reason == v1::ERROR_REASON_UNKNOWN_SESSION ||
         (status.code() == absl::StatusCode::kUnavailable && reason != v1::ERROR_REASON_CHECKPOINT);
}

bool IsPeerLost(const absl::Status& status) {
  return wire::ReasonOf(status) == v1::ERROR_REASON_PEER_LOST;
}

absl::StatusOr<std::shared_ptr<Session>> Session::Open(const std::string& address,
                                                       const v1::OpenRequest& request,
                                                       Deadline deadline) {
  const std::optional<std::string> path = wire::UnixPath(address);
  if (!path.has_value()) {
    return wire::InvalidField(absl::StrCat(
        "address ", address, ": a worker shares memory with its daemon; only unix:/path will do"));
  }
  auto session = std::make_shared<RpcSession>(address);
  DMUON_RETURN_IF_ERROR(
      session->Connect(request, absl::StrCat(*path, wire::kChannelSuffix), deadline));
  return session;
}

}  // namespace dmuon::client
