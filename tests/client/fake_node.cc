// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "tests/client/fake_node.h"

#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dmuon/v1/node.grpc.pb.h"
#include "wire/arena_channel.h"
#include "wire/error.h"
#include "wire/grpc_status.h"

namespace dmuon::client {
namespace {

absl::Status Take(absl::Status& scripted) { return std::exchange(scripted, absl::OkStatus()); }

absl::Status WaitWhile(const std::atomic<bool>& held, const std::function<bool()>& cancelled) {
  while (held) {
    if (cancelled()) return absl::CancelledError("cancelled");
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return absl::OkStatus();
}

}  // namespace

class FakeNode::Service : public v1::NodeService::Service {
 public:
  explicit Service(FakeNode* node) : node_(node) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(node->address(), grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~Service() override { server_->Shutdown(std::chrono::system_clock::now()); }

  grpc::Status Open(grpc::ServerContext*, const v1::OpenRequest* request,
                    v1::OpenResponse* response) override {
    return wire::ToGrpc(node_->Open(*request, response));
  }
  grpc::Status Register(grpc::ServerContext*, const v1::RegisterRequest* request,
                        v1::RegisterResponse* response) override {
    return wire::ToGrpc(node_->Register(*request, response));
  }
  grpc::Status Begin(grpc::ServerContext*, const v1::BeginRequest* request,
                     v1::BeginResponse* response) override {
    return wire::ToGrpc(node_->Begin(*request, response));
  }
  grpc::Status Step(grpc::ServerContext* context, const v1::StepRequest* request,
                    v1::StepResponse* response) override {
    return wire::ToGrpc(
        node_->AskForStep(*request, response, [context] { return context->IsCancelled(); }));
  }
  grpc::Status Save(grpc::ServerContext* context, const v1::SaveRequest* request,
                    v1::SaveResponse* response) override {
    return wire::ToGrpc(
        node_->Save(*request, response, [context] { return context->IsCancelled(); }));
  }
  grpc::Status Restore(grpc::ServerContext* context, const v1::RestoreRequest* request,
                       v1::RestoreResponse* response) override {
    return wire::ToGrpc(
        node_->Restore(*request, response, [context] { return context->IsCancelled(); }));
  }
  grpc::Status Export(grpc::ServerContext*, const v1::ExportRequest* request, v1::ExportResponse* response) override {
    return wire::ToGrpc(node_->Export(*request, response));
  }
  grpc::Status Import(grpc::ServerContext*, const v1::ImportRequest* request, v1::ImportResponse* response) override {
    return wire::ToGrpc(node_->Import(*request, response));
  }
  grpc::Status Close(grpc::ServerContext*, const v1::CloseRequest*, v1::CloseResponse*) override {
    return wire::ToGrpc(node_->Close());
  }

 private:
  FakeNode* const node_;
  std::unique_ptr<grpc::Server> server_;
};

FakeNode::FakeNode(const std::string& directory) : path_(directory + "/node.sock") {
  listener_ = *wire::ListenChannel(absl::StrCat(path_, wire::kChannelSuffix));
  service_ = std::make_unique<Service>(this);
  channels_ = std::thread([this] { ServeChannels(); });
}

FakeNode::~FakeNode() {
  stopping_ = true;
  service_.reset();
  channels_.join();
}

void FakeNode::Play(Script script) {
  wire::MutexLock lock(mu_);
  script_ = std::move(script);
}

FakeNode::Log FakeNode::log() {
  wire::MutexLock lock(mu_);
  return log_;
}

void FakeNode::ServeChannels() {
  while (!stopping_) {
    std::array<pollfd, 2> waiting = {pollfd{listener_.get(), POLLIN, 0}, pollfd{-1, POLLIN, 0}};
    {
      wire::MutexLock lock(mu_);
      waiting[1].fd = channel_.get();
    }
    if (::poll(waiting.data(), waiting.size(), 20) <= 0) continue;
    if (waiting[0].revents != 0) {
      Accept();
    } else {
      Hear();
    }
  }
}

void FakeNode::Accept() {
  wire::ScopedFd peer(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  const auto hello = wire::ReceiveFrame(peer.get(), absl::Seconds(5));
  if (!hello.ok()) return;
  wire::ChannelFrame welcome;
  welcome.type = wire::FrameType::kWelcome;
  welcome.session_id = hello->frame.session_id;
  wire::MutexLock lock(mu_);
  if (wire::SendFrame(peer.get(), welcome).ok()) channel_ = std::move(peer);
}

void FakeNode::Hear() {
  std::string payload;
  {
    wire::MutexLock lock(mu_);
    absl::StatusOr<wire::ReceivedFrame> received = wire::ReceiveFrame(channel_.get(), absl::ZeroDuration());
    if (!received.ok()) {
      channel_ = wire::ScopedFd();
      return;
    }
    if (received->frame.type == wire::FrameType::kRelease) {
      ++log_.releases;
      return;
    }
    if (received->frame.type == wire::FrameType::kOffer) {
      ++log_.offers;
      offered_ = std::move(received->fd);
      wire::ChannelFrame taken;
      taken.type = wire::FrameType::kTaken;
      wire::SendFrame(channel_.get(), taken).IgnoreError();
      return;
    }
    payload = received->payload;
  }
  HearRing(payload);
}

void FakeNode::HearRing(const std::string& payload) {
  v1::StepRequest request;
  {
    wire::MutexLock lock(mu_);
    if (!request.ParseFromString(payload)) {
      channel_ = wire::ScopedFd();
      return;
    }
    referral_.reset();
  }
  v1::StepResponse response;
  const absl::Status status = Step(request, &response, [this] { return stopping_.load(); });
  wire::MutexLock lock(mu_);
  wire::WordState state = wire::WordState::kReady;
  if (!status.ok() || response.replayed()) {
    state = wire::WordState::kMissing;
    referral_ = status.ok() ? absl::StatusOr<v1::StepResponse>(response) : status;
  }
  arena_.header().answer_word.Store(wire::MakeWord(request.step(), state));
}

absl::Status FakeNode::AskForStep(const v1::StepRequest& request, v1::StepResponse* response,
                                  const std::function<bool()>& cancelled) {
  {
    wire::MutexLock lock(mu_);
    if (const auto referral = std::exchange(referral_, std::nullopt); referral.has_value()) {
      if (referral->ok()) *response = **referral;
      return referral->status();
    }
  }
  return Step(request, response, cancelled);
}

absl::Status FakeNode::Open(const v1::OpenRequest& request, v1::OpenResponse* response) {
  wire::MutexLock lock(mu_);
  log_.incarnations.push_back(request.incarnation());
  if (script_.opens_refused_as_taken > 0) {
    --script_.opens_refused_as_taken;
    return wire::Error(absl::StatusCode::kAlreadyExists, v1::ERROR_REASON_RANK_TAKEN,
                       absl::StrCat("rank ", request.rank(), " is taken"));
  }
  if (script_.opens_unavailable > 0) {
    --script_.opens_unavailable;
    return absl::UnavailableError("not yet");
  }
  response->set_session_id(++session_);
  response->set_token(std::string(wire::kTokenBytes, 't'));
  return absl::OkStatus();
}

absl::Status FakeNode::CheckSession(uint64_t session_id) {
  if (session_id == session_) return absl::OkStatus();
  return wire::Error(absl::StatusCode::kNotFound, v1::ERROR_REASON_UNKNOWN_SESSION,
                     absl::StrCat("no session ", session_id));
}

absl::Status FakeNode::Register(const v1::RegisterRequest& request,
                                v1::RegisterResponse* response) {
  wire::MutexLock lock(mu_);
  DMUON_RETURN_IF_ERROR(CheckSession(request.session_id()));
  if (std::exchange(script_.forget_state, false)) masters_.clear();
  generation_ += std::exchange(script_.raise_generation, 0);
  const std::span shards(request.shards().data(), static_cast<size_t>(request.shards_size()));
  DMUON_ASSIGN_OR_RETURN(const auto boxes, wire::ParseShards(request.job(), shards, 0));
  DMUON_ASSIGN_OR_RETURN(layout_, wire::LayOut(request.job(), boxes, 1 << 30));
  const bool wrong = std::exchange(script_.wrong_arena, false);
  DMUON_ASSIGN_OR_RETURN(arena_, wire::Arena::Create(layout_, generation_ + (wrong ? 1 : 0)));
  response->set_generation(generation_);
  response->set_arena_bytes(layout_.total_bytes);
  wire::ChannelFrame frame;
  frame.type = wire::FrameType::kArena;
  frame.session_id = session_;
  frame.generation = generation_;
  frame.bytes = layout_.total_bytes;
  return wire::SendFrame(channel_.get(), frame, arena_.fd());
}

absl::Status FakeNode::Begin(const v1::BeginRequest& request, v1::BeginResponse* response) {
  wire::MutexLock lock(mu_);
  DMUON_RETURN_IF_ERROR(CheckSession(request.session_id()));
  log_.must_resume.push_back(request.must_resume());
  DMUON_RETURN_IF_ERROR(Take(script_.begin));
  response->set_resumed(!masters_.empty());
  if (masters_.empty()) {
    if (request.must_resume()) {
      return wire::Error(absl::StatusCode::kDataLoss, v1::ERROR_REASON_STATE_LOST,
                         "job has no state");
    }
    last_step_ = 0;
    for (size_t t = 0; t < layout_.params.size(); ++t) {
      masters_.emplace_back(layout_.params[t].bytes / sizeof(float));
      std::memcpy(masters_[t].data(), arena_.param(t).data(), arena_.param(t).size());
    }
  }
  Deliver();
  response->set_last_step(last_step_);
  return absl::OkStatus();
}

absl::Status FakeNode::Step(const v1::StepRequest& request, v1::StepResponse* response,
                            const std::function<bool()>& cancelled) {
  DMUON_RETURN_IF_ERROR(WaitWhile(hold_steps_, cancelled));
  wire::MutexLock lock(mu_);
  ++log_.steps_received;
  DMUON_RETURN_IF_ERROR(CheckSession(request.session_id()));
  if (request.generation() != generation_ || script_.raise_generation != 0) {
    return wire::Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_STALE_GENERATION,
                       absl::StrCat("generation ", request.generation(), " is not current"));
  }
  DMUON_RETURN_IF_ERROR(Take(script_.step_before));
  response->set_step(request.step());
  response->set_replayed(request.step() == last_step_);
  for (size_t t = 0; t < masters_.size() && !response->replayed(); ++t) {
    if (arena_.entry(t).grad_word.load() !=
        wire::MakeWord(request.step(), wire::WordState::kReady)) {
      return wire::Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_MISSING_GRADIENT,
                         absl::StrCat("tensor ", t));
    }
  }
  if (!response->replayed()) Apply();
  last_step_ = request.step();
  DMUON_RETURN_IF_ERROR(Take(script_.step_after));
  Deliver();
  return absl::OkStatus();
}

void FakeNode::Apply() {
  ++log_.steps_applied;
  for (size_t t = 0; t < masters_.size(); ++t) {
    const auto* grad = reinterpret_cast<const float*>(arena_.grad(t).data());
    for (size_t i = 0; i < masters_[t].size(); ++i) masters_[t][i] -= grad[i];
  }
}

void FakeNode::Deliver() {
  for (size_t t = 0; t < masters_.size(); ++t) {
    std::memcpy(arena_.param(t).data(), masters_[t].data(), arena_.param(t).size());
  }
}

absl::Status FakeNode::Save(const v1::SaveRequest& request, v1::SaveResponse* response,
                            const std::function<bool()>& cancelled) {
  {
    wire::MutexLock lock(mu_);
    DMUON_RETURN_IF_ERROR(CheckSession(request.session_id()));
    const auto known = checkpoints_.find(request.name());
    const bool again = known != checkpoints_.end() && known->second.step == request.step();
    log_.saves.push_back(absl::StrCat(request.name(), " of step ", request.step(), request.wait() ? ", wait" : "",
                                      again ? ", again" : ""));
    DMUON_RETURN_IF_ERROR(Take(script_.save_before));
    if (!again) {
      if (request.generation() != generation_ || request.step() != last_step_) {
        return wire::Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_STEP_OUT_OF_ORDER,
                           absl::StrCat("step ", request.step(), " is not ", last_step_));
      }
      checkpoints_[request.name()] = {last_step_, masters_};
    }
    DMUON_RETURN_IF_ERROR(Take(script_.save_after));
    if (again) DMUON_RETURN_IF_ERROR(script_.write);
  }
  if (request.wait()) DMUON_RETURN_IF_ERROR(WaitWhile(hold_writes_, cancelled));
  response->set_exists(request.wait());
  return absl::OkStatus();
}

absl::Status FakeNode::Restore(const v1::RestoreRequest& request, v1::RestoreResponse* response,
                               const std::function<bool()>& cancelled) {
  DMUON_RETURN_IF_ERROR(WaitWhile(hold_restores_, cancelled));
  wire::MutexLock lock(mu_);
  DMUON_RETURN_IF_ERROR(CheckSession(request.session_id()));
  DMUON_RETURN_IF_ERROR(Take(script_.restore_before));
  const auto found = checkpoints_.find(request.name());
  if (found == checkpoints_.end()) {
    return wire::Error(absl::StatusCode::kNotFound, v1::ERROR_REASON_CHECKPOINT,
                       absl::StrCat("no checkpoint ", request.name()));
  }
  ++log_.restores;
  last_step_ = found->second.step;
  masters_ = found->second.masters;
  DMUON_RETURN_IF_ERROR(Take(script_.restore_after));
  Deliver();
  for (size_t t = 0; t < masters_.size(); ++t) arena_.entry(t).grad_word.store(0);
  response->set_last_step(last_step_);
  return absl::OkStatus();
}

absl::Status FakeNode::Export(const v1::ExportRequest& request, v1::ExportResponse* response) {
  wire::MutexLock lock(mu_);
  DMUON_RETURN_IF_ERROR(CheckSession(request.session_id()));
  DMUON_RETURN_IF_ERROR(Take(script_.export_before));
  if (request.step() != last_step_) return absl::InvalidArgumentError(absl::StrCat("step ", request.step()));
  const wire::ScopedFd state(::memfd_create("state", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  uint64_t bytes = 0;
  for (const std::vector<float>& master : masters_) {
    const size_t size = master.size() * sizeof(float);
    if (::write(state.get(), master.data(), size) != static_cast<ssize_t>(size)) return absl::InternalError("write");
    bytes += size;
  }
  const int seals = std::exchange(script_.unsealed_state, false) ? 0 : F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
  if (::fcntl(state.get(), F_ADD_SEALS, seals) != 0) return absl::InternalError("seal");
  wire::ChannelFrame frame;
  frame.type = wire::FrameType::kState;
  frame.generation = generation_;
  frame.bytes = bytes;
  DMUON_RETURN_IF_ERROR(wire::SendFrame(channel_.get(), frame, state.get()));
  ++log_.exports;
  DMUON_RETURN_IF_ERROR(Take(script_.export_after));
  response->set_bytes(bytes);
  return absl::OkStatus();
}

absl::Status FakeNode::Import(const v1::ImportRequest& request, v1::ImportResponse* response) {
  wire::MutexLock lock(mu_);
  DMUON_RETURN_IF_ERROR(CheckSession(request.session_id()));
  const wire::ScopedFd brought = std::move(offered_);
  DMUON_RETURN_IF_ERROR(Take(script_.import_before));
  off_t at = 0;
  for (std::vector<float>& master : masters_) {
    const auto size = static_cast<ssize_t>(master.size() * sizeof(float));
    if (::pread(brought.get(), master.data(), static_cast<size_t>(size), at) != size) {
      return wire::Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_CHECKPOINT, "nothing was brought");
    }
    at += size;
  }
  last_step_ = 7;
  DMUON_RETURN_IF_ERROR(Take(script_.import_after));
  Deliver();
  for (size_t t = 0; t < masters_.size(); ++t) arena_.entry(t).grad_word.store(0);
  response->set_last_step(last_step_);
  return absl::OkStatus();
}

absl::Status FakeNode::Close() {
  wire::MutexLock lock(mu_);
  ++log_.closes;
  return absl::OkStatus();
}

}  // namespace dmuon::client
