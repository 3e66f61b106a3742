// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include "daemon/coordinator/host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "tests/daemon/coordinator/requests.h"
#include "tests/daemon/base/temp_dir.h"
#include "wire/error.h"

namespace dmuon::coordinator {
namespace {

using testing::HasSubstr;

class HostTest : public testing::Test {
 protected:
  std::unique_ptr<Host> Open() {
    auto store = GenerationStore::Open(dir_.path());
    EXPECT_TRUE(store.ok()) << store.status();
    return std::make_unique<Host>(
        HostOptions{.lease = absl::Seconds(15), .now = [this] { return now_; }},
        *std::move(store), &metrics_);
  }
  std::shared_ptr<PlanQueue> Watch(Host& host, const v1::NodeIdentity& node) {
    auto queue = std::make_shared<PlanQueue>([this] { ++wakes_; });
    const absl::Status status = host.Watch(node, queue);
    EXPECT_TRUE(status.ok()) << status;
    return queue;
  }
  // The generation that registering a one-rank job gives.
  static uint64_t Plan(Host& host, PlanQueue& queue, const std::string& job) {
    EXPECT_TRUE(host.RegisterWorker(RankOf(Node("a"), ModelOf(job, "mlp", 1), 0)).ok());
    const PlanQueue::Next next = queue.Pop();
    return next.event.has_value() ? next.event->plan().generation() : 0;
  }

  TempDir dir_;
  Metrics metrics_;
  absl::Time now_ = absl::UnixEpoch();
  int wakes_ = 0;
};

TEST_F(HostTest, APlanReachesTheWatchAndIsCounted) {
  const auto host = Open();
  const auto joined = host->Join(JoinOf("a"));
  ASSERT_TRUE(joined.ok());
  EXPECT_EQ(joined->lease_seconds(), 15.0);
  const auto queue = Watch(*host, Node("a"));
  EXPECT_EQ(Plan(*host, *queue, "j"), 1u);
  EXPECT_EQ(wakes_, 2);  // the watch began; the plan came
  EXPECT_THAT(metrics_.Text(), HasSubstr("dmuon_plan_generations_total{result=\"ok\"} 1"));
  EXPECT_THAT(metrics_.Text(), HasSubstr("dmuon_members{state=\"alive\"} 1"));
  EXPECT_THAT(metrics_.Text(), HasSubstr("dmuon_plan_compute_seconds_count 1"));
}

TEST_F(HostTest, AWatchBeginsWithWhatIsCurrent) {
  const auto host = Open();
  ASSERT_TRUE(host->Join(JoinOf("a")).ok());
  const auto first = Watch(*host, Node("a"));
  EXPECT_EQ(Plan(*host, *first, "j"), 1u);
  const auto second = Watch(*host, Node("a"));
  EXPECT_EQ(second->Pop().event->plan().generation(), 1u);
  EXPECT_EQ(first->Pop().end->code(), absl::StatusCode::kAborted);
}

TEST_F(HostTest, GenerationsAreOnDiskBeforeTheyAreUsedAndNeverComeTwice) {
  uint64_t last = 0;
  for (int start = 0; start < 3; ++start) {
    const auto host = Open();
    ASSERT_TRUE(host->Join(JoinOf("a")).ok());
    const auto queue = Watch(*host, Node("a"));
    for (int i = 0; i < 3; ++i) {
      const uint64_t generation = Plan(*host, *queue, absl::StrCat("j", i));
      EXPECT_GT(generation, last);
      last = generation;
    }
  }
}

TEST_F(HostTest, NoGenerationIsGivenOutThatCannotBeStored) {
  const auto host = Open();
  ASSERT_TRUE(host->Join(JoinOf("a")).ok());
  const auto queue = Watch(*host, Node("a"));
  const std::string blocker = dir_.path() + absl::StrCat("/generation.", getpid(), ".tmp");
  std::filesystem::create_directory(blocker);
  const v1::RegisterWorkerRequest rank = RankOf(Node("a"), ModelOf("j", "mlp", 1), 0);
  EXPECT_EQ(host->RegisterWorker(rank).code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(queue->Pop().event.has_value());
  EXPECT_EQ(host->GetClusterStatus().jobs_size(), 0);
  std::filesystem::remove(blocker);
  EXPECT_EQ(Plan(*host, *queue, "j"), 1u);
}

TEST_F(HostTest, ARefusalReachesTheWatchAndIsCounted) {
  const auto host = Open();
  ASSERT_TRUE(host->Join(JoinOf("a")).ok());
  const auto queue = Watch(*host, Node("a"));
  ASSERT_TRUE(
      host->RegisterWorker(RankOf(Node("a"), ModelOf("j", "mlp", 1), 0, "rows", "hole")).ok());
  EXPECT_EQ(queue->Pop().event->refusal().reason(), "COVERAGE");
  EXPECT_THAT(metrics_.Text(), HasSubstr("dmuon_plan_generations_total{result=\"refused\"} 1"));
}

TEST_F(HostTest, AWatchEndsWithTheLease) {
  const auto host = Open();
  ASSERT_TRUE(host->Join(JoinOf("a")).ok());
  const auto queue = Watch(*host, Node("a"));
  now_ += absl::Seconds(14);
  host->Tick();
  EXPECT_FALSE(queue->Pop().end.has_value());
  now_ += absl::Seconds(1);
  host->Tick();
  EXPECT_EQ(queue->Pop().end->code(), absl::StatusCode::kAborted);
  v1::BeatRequest beat;
  *beat.mutable_node() = Node("a");
  EXPECT_EQ(wire::ReasonOf(host->Beat(beat)), v1::ERROR_REASON_UNKNOWN_NODE);
}

TEST_F(HostTest, AWatchEndsWhenItsNodeIsReplaced) {
  const auto host = Open();
  ASSERT_TRUE(host->Join(JoinOf("a", 1, "1")).ok());
  const auto queue = Watch(*host, Node("a", "1"));
  ASSERT_TRUE(host->Join(JoinOf("a", 1, "2")).ok());
  EXPECT_THAT(std::string(queue->Pop().end->message()), HasSubstr("incarnation '1'"));
  EXPECT_EQ(host->Watch(Node("a", "1"), queue).code(), absl::StatusCode::kNotFound);
}

TEST_F(HostTest, DrainingEndsAllWatchesAndTakesNoNewOne) {
  const auto host = Open();
  ASSERT_TRUE(host->Join(JoinOf("a")).ok());
  const auto queue = Watch(*host, Node("a"));
  host->EndWatches();
  EXPECT_EQ(wire::ReasonOf(*queue->Pop().end), v1::ERROR_REASON_DRAINING);
  EXPECT_EQ(host->Watch(Node("a"), queue).code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace dmuon::coordinator
