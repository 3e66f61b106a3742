// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include "daemon/node/work_lane.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <utility>
#include <vector>

namespace dmuon::node {
namespace {

TEST(WorkLaneTest, WorkIsDoneInOrderOneAfterTheOther) {
  std::vector<int> done;
  std::promise<void> all;
  WorkLane lane(100);
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(lane.Add([&, i] {
      done.push_back(i);
      if (i == 49) all.set_value();
    }));
  }
  all.get_future().wait();
  ASSERT_EQ(done.size(), 50U);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(done[static_cast<size_t>(i)], i);
}

TEST(WorkLaneTest, NoMoreIsTakenThanMayWait) {
  std::promise<void> begun;
  std::promise<void> go;
  WorkLane lane(2);
  ASSERT_TRUE(lane.Add([&] {
    begun.set_value();
    go.get_future().wait();
  }));
  begun.get_future().wait();
  EXPECT_TRUE(lane.Add([] {}));
  EXPECT_FALSE(lane.Add([] {}));
  go.set_value();
}

TEST(WorkLaneTest, StopDropsWhatWaitsAndWaitsForWhatRuns) {
  std::promise<void> begun;
  std::promise<void> go;
  bool ran = false;
  bool ran_later = false;
  std::promise<void> dropped;
  auto token = std::shared_ptr<void>(nullptr, [&](void*) { dropped.set_value(); });
  WorkLane lane(2);
  ASSERT_TRUE(lane.Add([&] {
    begun.set_value();
    go.get_future().wait();
    ran = true;
  }));
  begun.get_future().wait();
  ASSERT_TRUE(lane.Add([&, token = std::move(token)] { ran_later = true; }));
  const std::future<void> stopped = std::async(std::launch::async, [&] { lane.Stop(); });
  dropped.get_future().wait();  // while the first one runs
  go.set_value();
  stopped.wait();
  EXPECT_TRUE(ran);
  EXPECT_FALSE(ran_later);
  EXPECT_FALSE(lane.Add([] {}));
}

}  // namespace
}  // namespace dmuon::node
