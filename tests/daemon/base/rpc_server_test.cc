// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/base/rpc_server.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/failpoint.h"
#include "dmuon/v1/node.grpc.pb.h"
#include "tests/daemon/base/health.h"
#include "tests/daemon/base/temp_dir.h"
#include "wire/grpc_status.h"
#include "wire/scoped_fd.h"

namespace dmuon {
namespace {

using ::testing::HasSubstr;

class FakeNode : public v1::NodeService::Service {
 public:
  grpc::Status GetNodeStatus(grpc::ServerContext* context, const v1::GetNodeStatusRequest*,
                             v1::GetNodeStatusResponse* response) override {
    if (!HasDeadline(*context)) return {grpc::StatusCode::INVALID_ARGUMENT, "no deadline"};
    ++calls;
    response->set_node_id("fake");
    return grpc::Status::OK;
  }
  // Forgets to look at the deadline.
  grpc::Status Close(grpc::ServerContext*, const v1::CloseRequest*, v1::CloseResponse*) override {
    return grpc::Status::OK;
  }
  std::atomic<int> calls = 0;
};

void SetDeadline(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
}

// What a client at `address` hears.
grpc::Status Ask(const std::string& address) {
  const auto stub = v1::NodeService::NewStub(MakeChannel(address));
  grpc::ClientContext context;
  SetDeadline(context);
  v1::GetNodeStatusResponse response;
  return stub->GetNodeStatus(&context, {}, &response);
}

class RpcServerTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<RpcServer>> TryStart(const std::string& address) {
    RpcServerOptions options;
    options.address = address;
    options.service_names = {"dmuon.v1.NodeService"};
    return RpcServer::Start(options, {&node_}, &metrics_);
  }
  std::unique_ptr<RpcServer> Start(const std::string& address) {
    auto server = TryStart(address);
    EXPECT_TRUE(server.ok()) << server.status();
    return server.ok() ? std::move(*server) : nullptr;
  }
  std::unique_ptr<RpcServer> Start() { return Start(UnixAddress()); }
  std::string UnixAddress() const { return "unix:" + SocketPath(); }
  std::string SocketPath() const { return dir_.File("d.sock"); }

  const TempDir dir_;
  Metrics metrics_;
  FakeNode node_;
};

TEST_F(RpcServerTest, AnswersOnAUnixSocket) {
  const auto server = Start();
  ASSERT_NE(server, nullptr);
  EXPECT_EQ(server->address(), UnixAddress());
  EXPECT_TRUE(Ask(server->address()).ok());
}

TEST_F(RpcServerTest, ALostAnswerIsThatOfACallThatWasCarriedOut) {
  const auto server = Start();
  ASSERT_NE(server, nullptr);
  const std::array<absl::string_view, 1> services = {"dmuon.v1.NodeService"};
  ASSERT_TRUE(ArmFailpoints("NodeService/GetNodeStatus=lose@2", services).ok());
  EXPECT_TRUE(Ask(server->address()).ok());
  EXPECT_EQ(Ask(server->address()).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(node_.calls, 2);
  EXPECT_TRUE(Ask(server->address()).ok());
  ASSERT_TRUE(ArmFailpoints(nullptr, services).ok());
}

TEST_F(RpcServerTest, TheSocketIsForItsUserOnly) {
  const auto server = Start();
  ASSERT_NE(server, nullptr);
  struct stat info {};
  ASSERT_EQ(::stat(SocketPath().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0077U, 0U);
}

TEST_F(RpcServerTest, ASecondServerOnTheSocketIsRefusedAndTheFirstKeepsWorking) {
  const auto first = Start();
  ASSERT_NE(first, nullptr);
  const auto second = TryStart(UnixAddress());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  const std::string message(second.status().message());
  EXPECT_THAT(message, HasSubstr(SocketPath()));
  EXPECT_THAT(message, HasSubstr(absl::StrCat("by process ", ::getpid())));
  EXPECT_TRUE(Ask(UnixAddress()).ok());
}

TEST_F(RpcServerTest, TheSocketIsFreeAfterTheServerIsGone) {
  Start().reset();
  const auto next = Start();
  ASSERT_NE(next, nullptr);
  EXPECT_TRUE(Ask(UnixAddress()).ok());
}

TEST_F(RpcServerTest, AStaleSocketIsReplaced) {
  {
    const wire::ScopedFd dead(::socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, SocketPath().c_str(), sizeof address.sun_path - 1);
    ASSERT_EQ(::bind(dead.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  const auto server = Start();
  ASSERT_NE(server, nullptr);
  EXPECT_TRUE(Ask(UnixAddress()).ok());
}

TEST_F(RpcServerTest, AFileAtThePathIsLeftAlone) {
  std::ofstream(SocketPath()) << "precious";
  EXPECT_EQ(TryStart(UnixAddress()).status().code(), absl::StatusCode::kFailedPrecondition);
  std::string text;
  std::ifstream(SocketPath()) >> text;
  EXPECT_EQ(text, "precious");
}

TEST_F(RpcServerTest, ASecondServerOnAPortIsRefused) {
  const auto first = Start("127.0.0.1:0");
  ASSERT_NE(first, nullptr);
  const auto second = TryStart(first->address());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(first->address()));
  EXPECT_TRUE(Ask(first->address()).ok());
}

TEST_F(RpcServerTest, AnAddressThatOthersCanReachIsRefused) {
  for (const char* address : {"0.0.0.0:0", "[::]:0", "192.0.2.1:5000", "127.evil.example:1"}) {
    EXPECT_EQ(TryStart(address).status().code(), absl::StatusCode::kInvalidArgument) << address;
  }
}

TEST_F(RpcServerTest, AnAddressWithoutMeaningIsRefused) {
  for (const char* address : {"", "localhost", ":1", "localhost:", "unix:"}) {
    EXPECT_EQ(TryStart(address).status().code(), absl::StatusCode::kInvalidArgument) << address;
  }
}

TEST_F(RpcServerTest, HealthFollowsSetServingForEveryName) {
  const auto server = Start();
  ASSERT_NE(server, nullptr);
  const auto channel = MakeChannel(server->address());
  for (const char* name : {"", "dmuon.v1.NodeService"}) {
    EXPECT_EQ(CheckHealth(channel, name), Health::kNotServing) << name;
  }
  server->SetServing(true);
  for (const char* name : {"", "dmuon.v1.NodeService"}) {
    EXPECT_EQ(CheckHealth(channel, name), Health::kServing) << name;
  }
  server->SetServing(false);
  EXPECT_EQ(CheckHealth(channel, ""), Health::kNotServing);
}

TEST_F(RpcServerTest, ACallWithoutADeadlineIsRefusedAndDoesNothing) {
  const auto server = Start();
  ASSERT_NE(server, nullptr);
  const auto stub = v1::NodeService::NewStub(MakeChannel(server->address()));
  grpc::ClientContext context;
  v1::GetNodeStatusResponse response;
  const grpc::Status status = stub->GetNodeStatus(&context, {}, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("dmuon.v1.NodeService/GetNodeStatus"));
  EXPECT_EQ(node_.calls, 0);
}

TEST_F(RpcServerTest, ACallWithoutADeadlineIsRefusedEvenWhenTheHandlerForgot) {
  const auto server = Start();
  ASSERT_NE(server, nullptr);
  const auto stub = v1::NodeService::NewStub(MakeChannel(server->address()));
  grpc::ClientContext context;
  v1::CloseResponse response;
  EXPECT_EQ(stub->Close(&context, {}, &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(RpcServerTest, AnOversizedMessageIsRefused) {
  const auto server = Start();
  ASSERT_NE(server, nullptr);
  grpc::ChannelArguments args;
  args.SetMaxSendMessageSize(-1);
  const auto stub = v1::NodeService::NewStub(
      grpc::CreateCustomChannel(server->address(), grpc::InsecureChannelCredentials(), args));
  v1::OpenRequest request;
  request.set_job_id(std::string(wire::kMaxMessageBytes + 1, 'x'));
  grpc::ClientContext context;
  SetDeadline(context);
  v1::OpenResponse response;
  EXPECT_EQ(stub->Open(&context, request, &response).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(RpcServerTest, CallsAreMeasuredByMethodAndCode) {
  const auto server = Start();
  ASSERT_NE(server, nullptr);
  EXPECT_TRUE(Ask(server->address()).ok());
  server->Shutdown(absl::Seconds(5));  // all contexts are gone, all calls are counted
  const std::string text = metrics_.Text();
  EXPECT_THAT(text, HasSubstr("dmuon_rpc_server_duration_seconds_count{code=\"OK\",method=\"dmuon."
                              "v1.NodeService/GetNodeStatus\"} 1\n"));
  EXPECT_THAT(
      text, HasSubstr("dmuon_rpc_inflight{method=\"dmuon.v1.NodeService/GetNodeStatus\"} 0\n"));
}

TEST_F(RpcServerTest, ShutdownEndsServiceAndMayBeRepeated) {
  const auto server = Start();
  ASSERT_NE(server, nullptr);
  server->Shutdown(absl::Seconds(5));
  server->Shutdown(absl::ZeroDuration());
  EXPECT_EQ(Ask(server->address()).error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(RpcServerTest, AProxyInTheEnvironmentIsIgnored) {
  ::setenv("http_proxy", "http://127.0.0.1:1", 1);
  const auto server = Start("127.0.0.1:0");
  ASSERT_NE(server, nullptr);
  EXPECT_TRUE(Ask(server->address()).ok());
  ::unsetenv("http_proxy");
}

}  // namespace
}  // namespace dmuon
