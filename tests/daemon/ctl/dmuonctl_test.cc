// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The program as an operator meets it: exit codes, stdout for answers, stderr for errors.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/base/rpc_server.h"
#include "dmuon/v1/coordinator.grpc.pb.h"
#include "dmuon/v1/node.grpc.pb.h"
#include "tests/daemon/base/temp_dir.h"

namespace dmuon {
namespace {

using ::testing::HasSubstr;

class FakeNode : public v1::NodeService::Service {
  grpc::Status GetNodeStatus(grpc::ServerContext*, const v1::GetNodeStatusRequest*,
                             v1::GetNodeStatusResponse* response) override {
    response->set_node_id("fake");
    response->set_version("9.9");
    return grpc::Status::OK;
  }
};

class FakeCoordinator : public v1::CoordinatorService::Service {
  grpc::Status GetClusterStatus(grpc::ServerContext*, const v1::GetClusterStatusRequest*,
                                v1::GetClusterStatusResponse* response) override {
    response->add_jobs()->set_job_id("demo");
    return grpc::Status::OK;
  }
  grpc::Status GetPlan(grpc::ServerContext*, const v1::GetPlanRequest* request,
                       v1::GetPlanResponse* response) override {
    if (request->job_id() != "demo") {
      return {grpc::StatusCode::NOT_FOUND, "no job \"" + request->job_id() + "\""};
    }
    response->mutable_plan()->set_job_id("demo");
    return grpc::Status::OK;
  }
};

struct Answer {
  int code = -1;
  std::string out;
  std::string err;
};

std::string ReadFile(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class DmuonctlTest : public ::testing::Test {
 protected:
  void Serve(std::vector<grpc::Service*> services) {
    RpcServerOptions options;
    options.address = Address();
    auto server = RpcServer::Start(options, std::move(services), &metrics_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = std::move(*server);
  }
  void ServeBoth() { Serve({&node_, &coordinator_}); }

  Answer Run(const std::string& arguments) {
    const std::string command =
        absl::StrCat(DMUONCTL, " --address ", Address(), " ", arguments, " >", dir_.File("out"),
                     " 2>", dir_.File("err"));
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, ReadFile(dir_.File("out")),
            ReadFile(dir_.File("err"))};
  }
  std::string Address() const { return "unix:" + dir_.File("d.sock"); }

  const TempDir dir_;
  Metrics metrics_;
  FakeNode node_;
  FakeCoordinator coordinator_;
  std::unique_ptr<RpcServer> server_;
};

TEST_F(DmuonctlTest, StatusShowsTheNode) {
  ServeBoth();
  const Answer answer = Run("status");
  EXPECT_EQ(answer.code, 0) << answer.err;
  EXPECT_THAT(answer.out, HasSubstr("fake"));
}

TEST_F(DmuonctlTest, FlagsMayFollowTheVerb) {
  ServeBoth();
  const Answer answer = Run("status --json --timeout 9");
  EXPECT_EQ(answer.code, 0) << answer.err;
  EXPECT_THAT(answer.out, HasSubstr("\"node_id\":\"fake\""));
}

TEST_F(DmuonctlTest, ANodeWithoutACoordinatorHasAStatus) {
  Serve({&node_});
  const Answer answer = Run("status");
  EXPECT_EQ(answer.code, 0) << answer.err;
  EXPECT_THAT(answer.out, HasSubstr("no coordinator here"));
}

TEST_F(DmuonctlTest, JobsAndPlanShowTheJob) {
  ServeBoth();
  EXPECT_THAT(Run("jobs").out, HasSubstr("demo"));
  EXPECT_THAT(Run("plan demo").out, HasSubstr("job demo"));
  EXPECT_THAT(Run("plan demo --json").out, HasSubstr("\"job_id\":\"demo\""));
}

TEST_F(DmuonctlTest, AnUnknownJobIsAnErrorThatNamesIt) {
  ServeBoth();
  const Answer answer = Run("plan nobody");
  EXPECT_EQ(answer.code, 1);
  EXPECT_EQ(answer.out, "");
  EXPECT_THAT(answer.err, HasSubstr("no job \"nobody\""));
}

TEST_F(DmuonctlTest, NobodyAtTheAddressIsAnErrorThatNamesIt) {
  const Answer answer = Run("status");
  EXPECT_EQ(answer.code, 1);
  EXPECT_THAT(answer.err, HasSubstr("nobody answers at " + Address()));
}

TEST_F(DmuonctlTest, VersionAnswersWithAndWithoutADaemon) {
  const Answer alone = Run("version");
  EXPECT_EQ(alone.code, 0);
  EXPECT_THAT(alone.out, HasSubstr("nobody answers"));
  ServeBoth();
  EXPECT_THAT(Run("version").out, HasSubstr("daemon   9.9\n"));
}

TEST_F(DmuonctlTest, WrongUsageIsExitCodeTwo) {
  EXPECT_EQ(Run("").code, 2);
  EXPECT_EQ(Run("destroy").code, 2);
  EXPECT_EQ(Run("plan").code, 2);
  EXPECT_EQ(Run("status --timeout 0").code, 2);
}

TEST_F(DmuonctlTest, HelpTeaches) {
  const Answer answer = Run("--help");
  EXPECT_EQ(answer.code, 0);
  EXPECT_THAT(answer.out, HasSubstr("dmuonctl plan demo"));
}

}  // namespace
}  // namespace dmuon
