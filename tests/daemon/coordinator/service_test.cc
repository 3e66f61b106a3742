// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The gRPC shell over a unix socket: statuses, streams and their ends.
#include "daemon/coordinator/service.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "daemon/base/rpc_server.h"
#include "dmuon/v1/coordinator.grpc.pb.h"
#include "tests/daemon/coordinator/requests.h"
#include "tests/daemon/base/temp_dir.h"
#include "wire/error.h"
#include "wire/grpc_status.h"

namespace dmuon::coordinator {
namespace {

void SetDeadline(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
}

class ServiceTest : public testing::Test {
 protected:
  void SetUp() override {
    RpcServerOptions options;
    options.address = "unix:" + dir_.path() + "/coordinator.sock";
    options.service_names = {std::string(kServiceName)};
    auto server = RpcServer::Start(options, {service_->grpc_service()}, &metrics_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    server_->SetServing(true);
    stub_ = v1::CoordinatorService::NewStub(MakeChannel(server_->address()));
  }
  void TearDown() override {
    host_.EndWatches();
    server_->Shutdown(absl::Seconds(5));
  }

  absl::Status Join(const v1::JoinRequest& request) {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::JoinResponse response;
    return wire::FromGrpc(stub_->Join(&context, request, &response));
  }
  absl::Status Register(const v1::RegisterWorkerRequest& request) {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::RegisterWorkerResponse response;
    return wire::FromGrpc(stub_->RegisterWorker(&context, request, &response));
  }
  absl::StatusOr<v1::GetPlanResponse> GetPlan(const std::string& job) {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::GetPlanRequest request;
    request.set_job_id(job);
    v1::GetPlanResponse response;
    const absl::Status status = wire::FromGrpc(stub_->GetPlan(&context, request, &response));
    if (!status.ok()) return status;
    return response;
  }

  TempDir dir_;
  Metrics metrics_;
  std::atomic<int64_t> now_seconds_{0};
  Host host_{HostOptions{.lease = absl::Seconds(15),
                         .now = [this] { return absl::FromUnixSeconds(now_seconds_); }},
             GenerationStore(), &metrics_};
  std::unique_ptr<Service> service_ = Service::Create(&host_);
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<v1::CoordinatorService::Stub> stub_;
};

// One WatchPlans call.
class Watching {
 public:
  Watching(v1::CoordinatorService::Stub& stub, const v1::NodeIdentity& node) {
    SetDeadline(context_);
    v1::WatchPlansRequest request;
    *request.mutable_node() = node;
    reader_ = stub.WatchPlans(&context_, request);
  }
  // Generation of the next event; 0 at the end of the stream.
  uint64_t Next() {
    v1::WatchPlansResponse event;
    return reader_->Read(&event) ? event.plan().generation() : 0;
  }
  absl::Status Finish() { return wire::FromGrpc(reader_->Finish()); }
  void Cancel() { context_.TryCancel(); }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::WatchPlansResponse>> reader_;
};

TEST_F(ServiceTest, PlansComeOverTheStreamInOrder) {
  ASSERT_TRUE(Join(JoinOf("a")).ok());
  ASSERT_TRUE(Register(RankOf(Node("a"), ModelOf("early", "mlp", 1), 0)).ok());
  Watching watch(*stub_, Node("a"));
  EXPECT_EQ(watch.Next(), 1u);
  for (uint64_t i = 2; i < 20; ++i) {
    ASSERT_TRUE(Register(RankOf(Node("a"), ModelOf(absl::StrCat("j", i), "mlp", 1), 0)).ok());
  }
  for (uint64_t i = 2; i < 20; ++i) EXPECT_EQ(watch.Next(), i);
  const auto plan = GetPlan("early");
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->plan().generation(), 1u);
  EXPECT_EQ(plan->job().tensors_size(), 3);
}

TEST_F(ServiceTest, ReasonsSurviveTheWayOverGrpc) {
  const absl::Status unknown = GetPlan("none").status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(wire::ReasonOf(unknown), v1::ERROR_REASON_UNKNOWN_JOB);
  const absl::Status stranger = Register(RankOf(Node("a"), ModelOf("j", "mlp", 1), 0));
  EXPECT_EQ(wire::ReasonOf(stranger), v1::ERROR_REASON_UNKNOWN_NODE);
  Watching watch(*stub_, Node("a"));
  EXPECT_EQ(watch.Next(), 0u);
  EXPECT_EQ(wire::ReasonOf(watch.Finish()), v1::ERROR_REASON_UNKNOWN_NODE);
}

TEST_F(ServiceTest, PartsOfACheckpointMeet) {
  for (const uint32_t rank : {0U, 1U}) {
    const std::string id = rank == 0 ? "a" : "b";
    ASSERT_TRUE(Join(JoinOf(id)).ok());
    ASSERT_TRUE(Register(RankOf(Node(id), ModelOf("demo", "mlp", 2), rank)).ok());
  }
  const auto report = [&](const v1::ReportPartRequest& request) -> absl::StatusOr<v1::ReportPartResponse> {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::ReportPartResponse response;
    DMUON_RETURN_IF_ERROR(wire::FromGrpc(stub_->ReportPart(&context, request, &response)));
    return response;
  };
  const auto waiting = report(ReportOf(Node("a"), "x", 4));
  ASSERT_TRUE(waiting.ok()) << waiting.status();
  ASSERT_EQ(waiting->waiting_for_size(), 1);
  EXPECT_EQ(waiting->waiting_for(0), "b");
  EXPECT_EQ(report(ReportOf(Node("b"), "x", 4))->parts_size(), 2);
  EXPECT_EQ(wire::ReasonOf(report(ReportOf(Node("c"), "x", 4)).status()), v1::ERROR_REASON_UNKNOWN_NODE);
}

TEST_F(ServiceTest, ACallWithoutDeadlineIsRefusedAndChangesNothing) {
  grpc::ClientContext context;
  v1::JoinResponse response;
  EXPECT_EQ(wire::FromGrpc(stub_->Join(&context, JoinOf("a"), &response)).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(host_.GetClusterStatus().nodes_size(), 0);
}

TEST_F(ServiceTest, AStreamEndsWhenTheLeaseRunsOut) {
  ASSERT_TRUE(Join(JoinOf("a")).ok());
  Watching watch(*stub_, Node("a"));
  ASSERT_TRUE(Register(RankOf(Node("a"), ModelOf("j", "mlp", 1), 0)).ok());
  EXPECT_EQ(watch.Next(), 1u);
  now_seconds_ += 16;  // the service's own thread ticks
  EXPECT_EQ(watch.Next(), 0u);
  EXPECT_EQ(watch.Finish().code(), absl::StatusCode::kAborted);
}

TEST_F(ServiceTest, AStreamEndsWhenTheCoordinatorDrains) {
  ASSERT_TRUE(Join(JoinOf("a")).ok());
  ASSERT_TRUE(Register(RankOf(Node("a"), ModelOf("j", "mlp", 1), 0)).ok());
  Watching watch(*stub_, Node("a"));
  EXPECT_EQ(watch.Next(), 1u);
  host_.EndWatches();
  EXPECT_EQ(watch.Next(), 0u);
  EXPECT_EQ(wire::ReasonOf(watch.Finish()), v1::ERROR_REASON_DRAINING);
}

TEST_F(ServiceTest, AClientThatGoesAwayIsNoTroubleToTheNextOne) {
  ASSERT_TRUE(Join(JoinOf("a")).ok());
  ASSERT_TRUE(Register(RankOf(Node("a"), ModelOf("j", "mlp", 1), 0)).ok());
  for (int i = 0; i < 20; ++i) {
    Watching gone(*stub_, Node("a"));
    if (i % 2 == 0) {
      EXPECT_EQ(gone.Next(), 1u);
    }
    gone.Cancel();
    while (gone.Next() != 0) {
    }
    EXPECT_FALSE(gone.Finish().ok());
  }
  Watching watch(*stub_, Node("a"));
  EXPECT_EQ(watch.Next(), 1u);
}

TEST_F(ServiceTest, ManyNodesRegisterAtOnceAndAllHearOfOnePlan) {
  constexpr uint32_t kNodes = 6;
  std::vector<std::thread> nodes;
  std::vector<uint64_t> generations(kNodes, 0);
  const v1::JobSpec job = ModelOf("j", "mlp", kNodes);
  for (uint32_t i = 0; i < kNodes; ++i) {
    nodes.emplace_back([this, i, &generations, &job] {
      const std::string id = absl::StrCat("node", i);
      if (!Join(JoinOf(id)).ok()) return;
      Watching watch(*stub_, Node(id));
      if (!Register(RankOf(Node(id), job, i)).ok()) return;
      generations[i] = watch.Next();
    });
  }
  for (std::thread& node : nodes) node.join();
  EXPECT_EQ(generations, std::vector<uint64_t>(kNodes, 1));
}

}  // namespace
}  // namespace dmuon::coordinator
