// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The program as an operator meets it: exit codes, stdout for answers, stderr for errors.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/base/rpc_server.h"
#include "dmuon/v1/checkpoint.grpc.pb.h"
#include "dmuon/v1/coordinator.grpc.pb.h"
#include "dmuon/v1/node.grpc.pb.h"
#include "tests/daemon/base/temp_dir.h"
#include "wire/error.h"
#include "wire/grpc_status.h"
#include "wire/mutex.h"

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

// Holds checkpoint "best" of job "demo"; it can also be saved as "new" and deleted as "torn", which is not listed.
class FakeCheckpoints : public v1::CheckpointService::Service {
 public:
  std::string deleted() {
    wire::MutexLock lock(mu_);
    return deleted_;
  }

 private:
  static grpc::Status Find(const std::string& job, const std::string& name) {
    if (job == "demo" && name == "best") return grpc::Status::OK;
    return wire::ToGrpc(wire::Error(absl::StatusCode::kNotFound, v1::ERROR_REASON_CHECKPOINT,
                                    absl::StrCat("job '", job, "' has no checkpoint '", name, "'")));
  }
  static v1::ListedCheckpoint Best() {
    v1::ListedCheckpoint listed;
    listed.mutable_checkpoint()->set_job_id("demo");
    listed.mutable_checkpoint()->set_name("best");
    listed.mutable_checkpoint()->set_step(7);
    for (const char* node : {"a", "b"}) {
      v1::CheckpointPart& part = *listed.mutable_checkpoint()->add_parts();
      part.set_node_id(node);
      part.set_file(absl::StrCat("best.7.1.", node, ".safetensors"));
      part.set_bytes(2048);
    }
    listed.add_absent_files("best.7.1.b.safetensors");
    return listed;
  }
  grpc::Status ListCheckpoints(grpc::ServerContext*, const v1::ListCheckpointsRequest* request,
                               v1::ListCheckpointsResponse* response) override {
    response->set_directory("/checkpoints");
    if (request->job_id().empty() || request->job_id() == "demo") *response->add_checkpoints() = Best();
    return grpc::Status::OK;
  }
  grpc::Status GetCheckpoint(grpc::ServerContext*, const v1::GetCheckpointRequest* request,
                             v1::GetCheckpointResponse* response) override {
    *response->mutable_listed() = Best();
    return Find(request->job_id(), request->name());
  }
  grpc::Status VerifyCheckpoint(grpc::ServerContext*, const v1::VerifyCheckpointRequest* request,
                                v1::VerifyCheckpointResponse* response) override {
    response->set_bytes(2048);
    return Find(request->job_id(), request->name());
  }
  grpc::Status SaveJob(grpc::ServerContext* context, const v1::SaveJobRequest* request,
                       v1::SaveJobResponse* response) override {
    // A save takes as long as a step and a disk.
    if (context->deadline() < std::chrono::system_clock::now() + std::chrono::minutes(5)) {
      return wire::ToGrpc(absl::DeadlineExceededError("no time"));
    }
    if (request->job_id() != "demo") {
      return wire::ToGrpc(wire::Draining("the daemon"));
    }
    response->set_step(8);
    return grpc::Status::OK;
  }
  grpc::Status DeleteCheckpoint(grpc::ServerContext*, const v1::DeleteCheckpointRequest* request,
                                v1::DeleteCheckpointResponse*) override {
    if (request->name() == "torn") return grpc::Status::OK;
    const grpc::Status found = Find(request->job_id(), request->name());
    wire::MutexLock lock(mu_);
    if (found.ok()) deleted_ = absl::StrCat(request->job_id(), "/", request->name());
    return found;
  }

  wire::Mutex mu_;
  std::string deleted_ ABSL_GUARDED_BY(mu_);
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
  FakeCheckpoints checkpoints_;
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

TEST_F(DmuonctlTest, CheckpointsAreListedShownAndVerified) {
  Serve({&node_, &checkpoints_});
  EXPECT_THAT(Run("checkpoint list").out, HasSubstr("demo  best     7"));
  EXPECT_THAT(Run("checkpoint list demo").out, HasSubstr("best.7.1.b.safetensors"));
  EXPECT_EQ(Run("checkpoint list other").out, "no checkpoint in /checkpoints\n");
  EXPECT_THAT(Run("checkpoint show demo best").out, HasSubstr("job         demo\n"));
  EXPECT_THAT(Run("checkpoint show demo best --json").out, HasSubstr("\"absent_files\":[\"best.7.1.b.safetensors\"]"));
  EXPECT_EQ(Run("checkpoint verify demo best").out,
            "checkpoint best of job demo: 2.0 KiB were read, and all is as it was saved\n");
}

TEST_F(DmuonctlTest, ASaveIsGivenTimeAndSaysItsStep) {
  Serve({&node_, &checkpoints_});
  EXPECT_EQ(Run("checkpoint save demo new").out, "checkpoint new of job demo exists, of step 8\n");
  EXPECT_EQ(Run("checkpoint save demo new --json").out, "{\"step\":\"8\"}\n");
  const Answer hurried = Run("checkpoint save demo new --timeout 9");
  EXPECT_EQ(hurried.code, 1);
  EXPECT_THAT(hurried.err, HasSubstr("no time"));
}

TEST_F(DmuonctlTest, ADeletedCheckpointIsGoneAndNamedWithItsFiles) {
  Serve({&node_, &checkpoints_});
  const Answer answer = Run("checkpoint delete demo best");
  EXPECT_EQ(answer.code, 0) << answer.err;
  EXPECT_EQ(checkpoints_.deleted(), "demo/best");
  EXPECT_EQ(answer.out,
            "removed checkpoint best of job demo, step 7\n"
            "  removed  best.7.1.a.safetensors, 2.0 KiB\n"
            "  missing  best.7.1.b.safetensors, 2.0 KiB on node b, which has to remove it itself\n");
  EXPECT_THAT(Run("checkpoint delete demo best --json").out, HasSubstr("\"name\":\"best\""));
  EXPECT_THAT(Run("checkpoint delete demo torn").out, HasSubstr("manifest could not be read"));
}

TEST_F(DmuonctlTest, AnUnknownCheckpointIsAnErrorOfEveryVerb) {
  Serve({&node_, &checkpoints_});
  for (const char* verb : {"show", "verify", "delete"}) {
    const Answer answer = Run(absl::StrCat("checkpoint ", verb, " demo none"));
    EXPECT_EQ(answer.code, 1) << verb;
    EXPECT_EQ(answer.out, "") << verb;
    EXPECT_THAT(answer.err, HasSubstr("job 'demo' has no checkpoint 'none'")) << verb;
  }
}

TEST_F(DmuonctlTest, WhatADaemonSaysIsNotTakenForSilence) {
  Serve({&node_, &checkpoints_});
  EXPECT_EQ(Run("checkpoint save other new").err, "dmuonctl: the daemon is shutting down; retry\n");
}

TEST_F(DmuonctlTest, AServerWithoutCheckpointsIsAnErrorThatNamesTheAddress) {
  Serve({&coordinator_});
  const Answer answer = Run("checkpoint list");
  EXPECT_EQ(answer.code, 1);
  EXPECT_THAT(answer.err, HasSubstr("no node that serves checkpoints at " + Address()));
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
  EXPECT_EQ(Run("checkpoint").code, 2);
  EXPECT_EQ(Run("checkpoint save demo").code, 2);
  EXPECT_EQ(Run("status --timeout 0").code, 2);
}

TEST_F(DmuonctlTest, HelpTeaches) {
  const Answer answer = Run("--help");
  EXPECT_EQ(answer.code, 0);
  EXPECT_THAT(answer.out, HasSubstr("dmuonctl plan demo"));
  EXPECT_THAT(Run("checkpoint --help").out, HasSubstr("which is no fault"));
}

}  // namespace
}  // namespace dmuon
