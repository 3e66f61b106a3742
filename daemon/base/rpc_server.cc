// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/base/rpc_server.h"

#include <arpa/inet.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/rpc_observer.h"
#include "daemon/base/socket_lock.h"
#include "wire/address.h"
#include "wire/error.h"
#include "wire/grpc_status.h"

namespace dmuon {
namespace {

// A client's pings may come as often as every kKeepaliveMs; half of it leaves room for jitter.
constexpr int kMinPingMs = wire::kKeepaliveMs / 2;
// Calls at once on one connection. A worker has two or three.
constexpr int kMaxStreams = 256;
constexpr int kReconnectMs = 200;
constexpr int kLongestReconnectMs = 2'000;

// The reflection plug-in registers itself with every builder of the process; this takes it out.
class WithoutReflection : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments* /*args*/) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    std::erase_if(*plugins, [](const std::unique_ptr<grpc::ServerBuilderPlugin>& plugin) {
      return plugin->name() == "proto_server_reflection";
    });
  }
};

bool IsLoopback(const std::string& host) {
  if (host == "localhost" || host == "[::1]") return true;
  in_addr parsed{};
  return ::inet_pton(AF_INET, host.c_str(), &parsed) == 1 && ntohl(parsed.s_addr) >> 24 == 127;
}

// "127.0.0.1:50051", "localhost:0", "[::1]:0".
absl::Status CheckLoopback(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == address.size()) {
    return wire::InvalidField(
        absl::StrCat("address \"", address, "\" is neither unix:/path nor host:port"));
  }
  if (!IsLoopback(address.substr(0, colon))) {
    return wire::InvalidField(absl::StrCat(
        "address \"", address, "\" is not loopback, and there is no TLS; use 127.0.0.1 or unix:"));
  }
  return absl::OkStatus();
}

void SetLimits(grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(wire::kMaxMessageBytes);
  builder.SetMaxSendMessageSize(wire::kMaxMessageBytes);
  // Otherwise a second server would share the port and get half of the calls.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreams);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, wire::kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, wire::kKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kMinPingMs);
}

class GrpcServer : public RpcServer {
 public:
  // `lock` is empty for TCP.
  GrpcServer(std::optional<SocketLock> lock, std::vector<std::string> names)
      : lock_(std::move(lock)), names_(std::move(names)) {}
  ~GrpcServer() override { Shutdown(absl::ZeroDuration()); }

  absl::Status Listen(grpc::ServerBuilder& builder, const std::string& address) {
    int port = 0;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
    // The socket is for this user. The mask is the process's, so others' files of these few
    // microseconds become private too.
    const mode_t mask = ::umask(0177);
    server_ = builder.BuildAndStart();
    ::umask(mask);
    if (server_ == nullptr || port == 0) {
      return absl::UnavailableError(absl::StrCat("cannot listen on ", address,
                                                 "; the address is taken or does not exist here"));
    }
    address_ = lock_.has_value() ? address
                                 : absl::StrCat(address.substr(0, address.rfind(':')), ":", port);
    SetServing(false);
    return absl::OkStatus();
  }

  [[nodiscard]] std::string address() const override { return address_; }

  void SetServing(bool serving) override {
    grpc::HealthCheckServiceInterface* const health = server_->GetHealthCheckService();
    for (const std::string& name : names_) health->SetServingStatus(name, serving);
    health->SetServingStatus(serving);
  }

  void Shutdown(absl::Duration deadline) override {
    if (server_ == nullptr || std::exchange(down_, true)) return;
    server_->GetHealthCheckService()->Shutdown();
    server_->Shutdown(absl::ToChronoTime(absl::Now() + deadline));
    server_->Wait();
  }

 private:
  std::optional<SocketLock> lock_;  // first: given free when nothing of the server is left
  std::vector<std::string> names_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
  bool down_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(const RpcServerOptions& options,
                                                            std::vector<grpc::Service*> services,
                                                            Metrics* metrics) {
  std::optional<SocketLock> lock;
  std::string address = options.address;
  if (const std::optional<std::string> path = wire::UnixPath(options.address)) {
    DMUON_ASSIGN_OR_RETURN(lock, SocketLock::Acquire(*path));
    address = absl::StrCat("unix:", *path);
  } else {
    DMUON_RETURN_IF_ERROR(CheckLoopback(options.address));
  }
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  SetLimits(builder);
  AddObserver(builder, metrics);
  if (!options.reflection) builder.SetOption(std::make_unique<WithoutReflection>());
  for (grpc::Service* service : services) builder.RegisterService(service);
  auto server = std::make_unique<GrpcServer>(std::move(lock), options.service_names);
  DMUON_RETURN_IF_ERROR(server->Listen(builder, address));
  return server;
}

bool HasDeadline(const grpc::ServerContextBase& context) {
  return context.deadline() != std::chrono::system_clock::time_point::max();
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address) {
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(wire::kMaxMessageBytes);
  args.SetMaxSendMessageSize(wire::kMaxMessageBytes);
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // The default waits up to two minutes before it dials a peer again that has been away.
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectMs);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kReconnectMs);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kLongestReconnectMs);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, wire::kKeepaliveMs);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, wire::kKeepaliveTimeoutMs);
  args.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args);
}

}  // namespace dmuon
