// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Two nodes and a coordinator behind a unix socket.
#include "daemon/node/grpc_link.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "daemon/base/rpc_server.h"
#include "daemon/coordinator/host.h"
#include "daemon/coordinator/service.h"
#include "tests/daemon/base/temp_dir.h"
#include "tests/daemon/coordinator/inbox.h"
#include "tests/daemon/coordinator/requests.h"
#include "wire/error.h"

namespace dmuon::node {
namespace {

using coordinator::FailureOf;
using coordinator::JoinOf;
using coordinator::ModelOf;
using coordinator::Node;
using coordinator::RankOf;
using coordinator::ReportOf;

class GrpcLinkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    RpcServerOptions options;
    options.address = "unix:" + dir_.File("coordinator.sock");
    options.service_names = {std::string(coordinator::kServiceName)};
    auto server = RpcServer::Start(options, {service_->grpc_service()}, &metrics_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    for (const uint32_t rank : {0U, 1U}) {
      const std::string id = rank == 0 ? "a" : "b";
      std::unique_ptr<CoordinatorLink>& link = rank == 0 ? a_ : b_;
      link = MakeGrpcLink(server_->address());
      link->Start([this](const v1::WatchPlansResponse& event) { events_.Put(event); }, [id] { return JoinOf(id); });
      Register(*link, RankOf(Node(id), ModelOf("demo", "mlp", 2), rank));
    }
    for (int node = 0; node < 2; ++node) ASSERT_TRUE(events_.Take().has_value()) << "a plan for each";
  }
  void TearDown() override {
    a_->Stop();
    b_->Stop();
    host_.EndWatches();
    server_->Shutdown(absl::Seconds(5));
  }
  // It is not known before it has joined, and hears of the plan when it watches.
  static void Register(CoordinatorLink& link, const v1::RegisterWorkerRequest& request) {
    while (true) {
      const absl::Status status = link.RegisterWorker(request);
      if (wire::ReasonOf(status) != v1::ERROR_REASON_UNKNOWN_NODE) {
        EXPECT_TRUE(status.ok()) << status;
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  const TempDir dir_;
  Metrics metrics_;
  coordinator::Host host_{coordinator::HostOptions(), coordinator::GenerationStore(), &metrics_};
  const std::unique_ptr<coordinator::Service> service_ = coordinator::Service::Create(&host_);
  std::unique_ptr<RpcServer> server_;
  coordinator::Inbox<v1::WatchPlansResponse> events_;
  std::unique_ptr<CoordinatorLink> a_;
  std::unique_ptr<CoordinatorLink> b_;
};

TEST_F(GrpcLinkTest, PartsOfACheckpointMeetWhoeverTheReportSaysItIsOf) {
  v1::ReportPartRequest report = ReportOf(Node("a"), "x", 4);
  *report.mutable_node() = Node("somebody");
  const auto waiting = a_->ReportPart(report);
  ASSERT_TRUE(waiting.ok()) << waiting.status();
  ASSERT_EQ(waiting->waiting_for_size(), 1);
  EXPECT_EQ(waiting->waiting_for(0), "b");
  const auto complete = b_->ReportPart(ReportOf(Node("b"), "x", 4));
  ASSERT_TRUE(complete.ok()) << complete.status();
  ASSERT_EQ(complete->parts_size(), 2);
  EXPECT_EQ(a_->ReportPart(report)->SerializeAsString(), complete->SerializeAsString());
}

TEST_F(GrpcLinkTest, AFailureAndARefusalComeBackAsTheyAre) {
  ASSERT_TRUE(b_->ReportPart(FailureOf(Node("b"), "x", 4, "disk full")).ok());
  EXPECT_EQ(a_->ReportPart(ReportOf(Node("a"), "x", 4))->failure(), "node 'b': disk full");
  v1::ReportPartRequest stale = ReportOf(Node("a"), "x", 4);
  stale.set_generation(2);
  EXPECT_EQ(wire::ReasonOf(a_->ReportPart(stale).status()), v1::ERROR_REASON_STALE_GENERATION);
}

}  // namespace
}  // namespace dmuon::node
