// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include "daemon/coordinator/plan_queue.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace dmuon::coordinator {
namespace {

constexpr size_t kHalf = 1'000;

v1::WatchPlansResponse EventOf(uint64_t generation, size_t bytes = 0) {
  v1::WatchPlansResponse event;
  event.mutable_plan()->set_generation(generation);
  event.mutable_plan()->set_reason(std::string(bytes, 'x'));
  return event;
}

uint64_t PopGeneration(PlanQueue& queue) {
  const PlanQueue::Next next = queue.Pop();
  return next.event.has_value() ? next.event->plan().generation() : 0;
}

TEST(PlanQueueTest, EventsComeInOrderAndTheEndAfterThem) {
  PlanQueue queue([] {});
  EXPECT_FALSE(queue.Pop().event.has_value());
  EXPECT_FALSE(queue.Pop().end.has_value());
  queue.PushInitial({EventOf(1), EventOf(2)});
  queue.Push(EventOf(3));
  queue.End(absl::AbortedError("first"));
  queue.End(absl::AbortedError("second"));
  queue.Push(EventOf(4));
  EXPECT_EQ(PopGeneration(queue), 1u);
  EXPECT_EQ(PopGeneration(queue), 2u);
  EXPECT_EQ(PopGeneration(queue), 3u);
  const PlanQueue::Next end = queue.Pop();
  EXPECT_FALSE(end.event.has_value());
  ASSERT_TRUE(end.end.has_value());
  EXPECT_EQ(end.end->message(), "first");
}

TEST(PlanQueueTest, AFullQueueEndsInsteadOfGrowing) {
  PlanQueue queue([] {}, 2 * kHalf);
  queue.Push(EventOf(1, kHalf));
  queue.Push(EventOf(2, kHalf));
  EXPECT_EQ(PopGeneration(queue), 1u);
  const PlanQueue::Next end = queue.Pop();
  ASSERT_TRUE(end.end.has_value());
  EXPECT_EQ(end.end->code(), absl::StatusCode::kResourceExhausted);
}

TEST(PlanQueueTest, PoppingMakesRoom) {
  PlanQueue queue([] {}, 2 * kHalf);
  for (uint64_t generation = 1; generation <= 3; ++generation) {
    queue.Push(EventOf(generation, kHalf));
    EXPECT_EQ(PopGeneration(queue), generation);
  }
}

}  // namespace
}  // namespace dmuon::coordinator
