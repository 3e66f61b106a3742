// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/local_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/daemon/transport/nodes.h"

namespace dmuon::transport {
namespace {

using ::testing::HasSubstr;

class LocalTransportTest : public ::testing::Test {
 protected:
  LocalTransportTest() {
    for (uint32_t self = 0; self < 3; ++self) {
      nodes_.push_back(*switchboard_.Connect(MeshOf(3, self)));
      buffers_.emplace_back(4);
    }
  }
  // Starts `to`'s side of a message from `from`, and the other.
  std::unique_ptr<Exchange> Receive(uint32_t to, uint32_t from) {
    return *nodes_[to]->Start({1, {}, {{from, buffers_[to]}}});
  }
  std::unique_ptr<Exchange> Send(uint32_t from, uint32_t to) {
    return *nodes_[from]->Start({1, {{to, buffers_[from]}}, {}});
  }

  Switchboard switchboard_;
  std::vector<Bytes> buffers_;
  std::vector<std::unique_ptr<Transport>> nodes_;
};

TEST_F(LocalTransportTest, ADroppedNodeIsNamedByItsPeersOnly) {
  const auto waits_for_b = Receive(0, 1);
  const auto b_waits = Send(1, 2);
  switchboard_.Drop("b");
  const absl::Status waited = waits_for_b->Wait(Patient());
  EXPECT_EQ(waited.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(waited.message(), "job/1/1: node 'b' closed its connections");
  EXPECT_EQ(b_waits->Wait(Patient()).message(), "job/1/1: node 'b' was dropped");
  const auto waits_for_a = Receive(2, 0);  // which gave up, and closed too
  EXPECT_THAT(std::string(waits_for_a->Wait(Patient()).message()), HasSubstr("node 'a' closed"));
}

TEST_F(LocalTransportTest, ADropEndsAWaitThatHasBegun) {
  const auto waits_for_b = Receive(0, 1);
  std::thread drops([this] { switchboard_.Drop("b"); });
  EXPECT_EQ(waits_for_b->Wait(Patient()).code(), absl::StatusCode::kUnavailable);
  drops.join();
}

TEST_F(LocalTransportTest, ACutIsFoundByTheDeadlineAndHasOneDirection) {
  switchboard_.Cut("a", "b");
  const auto back = Receive(0, 1);
  EXPECT_TRUE(Send(1, 0)->Wait(Patient()).ok());
  EXPECT_TRUE(back->Wait(Patient()).ok());
  const auto sends = Send(0, 1);
  const auto receives = Receive(1, 0);
  EXPECT_EQ(receives->Wait(In(absl::Milliseconds(20))).message(),
            "job/1/1: node 'a' did not send the 4 B of batch 1 in time");
  EXPECT_EQ(sends->Wait(Patient()).code(), absl::StatusCode::kUnavailable);
}

TEST_F(LocalTransportTest, FaultsDoNotReachTheNextAttempt) {
  switchboard_.Drop("b");
  switchboard_.Cut("a", "b");
  const auto a = *switchboard_.Connect(MeshOf(2, 0, "job/1/2"));
  const auto b = *switchboard_.Connect(MeshOf(2, 1, "job/1/2"));
  const auto sends = *a->Start({1, {{1, buffers_[0]}}, {}});
  EXPECT_TRUE(RunBatch(*b, {1, {}, {{0, buffers_[1]}}}).ok());
  EXPECT_TRUE(sends->Wait(Patient()).ok());
}

TEST_F(LocalTransportTest, APlaceIsTakenOnce) {
  EXPECT_EQ(switchboard_.Connect(MeshOf(3, 1)).status().code(), absl::StatusCode::kAlreadyExists);
  nodes_[1].reset();
  EXPECT_EQ(switchboard_.Connect(MeshOf(3, 1)).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(switchboard_.Connect(MeshOf(4, 3)).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace dmuon::transport
