// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include "daemon/coordinator/local_link.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/daemon/coordinator/inbox.h"
#include "tests/daemon/coordinator/requests.h"

namespace dmuon::coordinator {
namespace {

class LocalLinkTest : public testing::Test {
 protected:
  void Start() {
    link_->Start([this](const v1::WatchPlansResponse& event) { inbox_.Put(event); },
                 [this] {
                   ++joins_;
                   return JoinOf("a");
                 });
  }
  // Until the node has joined there is no coordinator to register with.
  absl::Status Register(const v1::RegisterWorkerRequest& request) {
    while (true) {
      const absl::Status status = link_->RegisterWorker(request);
      if (status.code() != absl::StatusCode::kUnavailable) return status;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  Metrics metrics_;
  std::atomic<int64_t> now_seconds_{0};
  Host host_{HostOptions{.lease = absl::Seconds(15),
                         .now = [this] { return absl::FromUnixSeconds(now_seconds_); }},
             GenerationStore(), &metrics_};
  Inbox<v1::WatchPlansResponse> inbox_;
  std::atomic<int> joins_{0};
  std::unique_ptr<CoordinatorLink> link_ = MakeLocalLink(&host_);
};

TEST_F(LocalLinkTest, PlansAndRefusalsComeOnItsOwnThread) {
  Start();
  EXPECT_EQ(link_->address(), "standalone");
  // Whoever the caller says it is, the link knows which node it is.
  ASSERT_TRUE(Register(RankOf(Node("x"), ModelOf("j", "mlp", 1), 0)).ok());
  const auto plan = inbox_.Take();
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->plan().generation(), 1u);
  ASSERT_TRUE(Register(RankOf(Node("a"), ModelOf("k", "mlp", 1), 0, "rows", "hole")).ok());
  const auto refusal = inbox_.Take();
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->refusal().job_id(), "k");
}

v1::ReleaseJobRequest Release() {
  v1::ReleaseJobRequest request;
  request.set_job_id("j");
  request.set_generation(1);
  return request;
}

TEST_F(LocalLinkTest, BeforeItHasJoinedCallsAreUnavailable) {
  EXPECT_EQ(link_->RegisterWorker(RankOf(Node("a"), ModelOf("j", "mlp", 1), 0)).code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(link_->ReleaseJob(Release()).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(link_->ReportPart(ReportOf(Node("a"), "x", 4)).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(LocalLinkTest, APartOfACheckpointIsReportedAsThisNode) {
  Start();
  ASSERT_TRUE(Register(RankOf(Node("a"), ModelOf("demo", "mlp", 1), 0)).ok());
  v1::ReportPartRequest report = ReportOf(Node("a"), "x", 4);
  report.clear_node();
  const auto response = link_->ReportPart(report);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->parts_size(), 1);
}

TEST_F(LocalLinkTest, StopLeavesAndNothingIsDeliveredAfterwards) {
  Start();
  ASSERT_TRUE(Register(RankOf(Node("a"), ModelOf("j", "mlp", 1), 0)).ok());
  ASSERT_TRUE(inbox_.Take().has_value());
  ASSERT_TRUE(link_->ReleaseJob(Release()).ok());
  link_->Stop();
  link_->Stop();
  EXPECT_EQ(host_.GetClusterStatus().nodes_size(), 0);
  EXPECT_EQ(link_->ReleaseJob(Release()).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(inbox_.empty());
}

TEST_F(LocalLinkTest, ANodeThatFellOutJoinsAgainAndHearsOfItsPlans) {
  Start();
  ASSERT_TRUE(Register(RankOf(Node("a"), ModelOf("j", "mlp", 1), 0)).ok());
  ASSERT_TRUE(inbox_.Take().has_value());
  now_seconds_ += 100;  // as after a stop of the whole process
  host_.Tick();
  const auto again = inbox_.Take();
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->plan().generation(), 1u);
  EXPECT_EQ(joins_, 2);
}

}  // namespace
}  // namespace dmuon::coordinator
