// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "wire/arena.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <array>
#include <string>
#include <vector>

#include "wire/arena_channel.h"

namespace dmuon::wire {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kGeneration = 7;
constexpr uint64_t kRoom = 1 << 20;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

class ArenaTest : public ::testing::Test {
 protected:
  ArenaTest() {
    v1::Tensor* tensor = job_.add_tensors();
    tensor->set_param_dtype(v1::DTYPE_BFLOAT16);
    tensor->set_grad_dtype(v1::DTYPE_FLOAT32);
    ShardBoxes boxes;
    boxes.grad = boxes.param = WholeBox(std::vector<int64_t>{3, 5});
    shards_.push_back(boxes);
    layout_ = LayOut(job_, shards_, kRoom).value();
  }

  // What a peer might hand over instead of an arena.
  ScopedFd Memfd(uint64_t bytes, int seals) {
    ScopedFd fd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
    EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
    return fd;
  }
  absl::Status MapStatus(ScopedFd fd) {
    return Arena::Map(std::move(fd), layout_, kGeneration).status();
  }

  v1::JobSpec job_;
  std::vector<ShardBoxes> shards_;
  ArenaLayout layout_;
};

TEST_F(ArenaTest, BothSidesSeeTheSameBytes) {
  Arena daemon = Arena::Create(layout_, kGeneration).value();
  Arena worker = Arena::Map(ScopedFd(::dup(daemon.fd())), layout_, kGeneration).value();
  worker.grad(0)[4] = std::byte{42};
  worker.entry(0).grad_word.store(MakeWord(9, WordState::kReady), std::memory_order_release);
  EXPECT_EQ(daemon.grad(0)[4], std::byte{42});
  EXPECT_EQ(WordStep(daemon.entry(0).grad_word.load(std::memory_order_acquire)), 9U);
  EXPECT_EQ(daemon.grad(0).size(), 60U);
  EXPECT_EQ(daemon.param(0).size(), 30U);
}

TEST_F(ArenaTest, PiecesAreAlignedAndDisjoint) {
  EXPECT_EQ(layout_.grads[0].offset % kArenaAlignment, 0U);
  EXPECT_EQ(layout_.params[0].offset % kArenaAlignment, 0U);
  EXPECT_GE(layout_.params[0].offset, layout_.grads[0].offset + layout_.grads[0].bytes);
  EXPECT_GE(layout_.total_bytes, layout_.params[0].offset + layout_.params[0].bytes);
}

TEST_F(ArenaTest, NeitherSideCanShrinkOrGrowIt) {
  Arena daemon = Arena::Create(layout_, kGeneration).value();
  EXPECT_NE(::ftruncate(daemon.fd(), 1), 0);
  EXPECT_NE(::ftruncate(daemon.fd(), 1 << 22), 0);
}

TEST_F(ArenaTest, UnsealedMemfdIsRefused) {
  EXPECT_THAT(Message(MapStatus(Memfd(layout_.total_bytes, 0))), HasSubstr("not sealed"));
}

TEST_F(ArenaTest, ShortMemfdIsRefusedWithBothSizes) {
  EXPECT_THAT(Message(MapStatus(Memfd(64, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))),
              HasSubstr("has 64 bytes, expected"));
}

TEST_F(ArenaTest, OtherDescriptorsAreRefused) {
  EXPECT_THAT(Message(MapStatus(ScopedFd(::open("/dev/null", O_RDWR | O_CLOEXEC)))),
              HasSubstr("no memfd"));
  EXPECT_THAT(Message(MapStatus(ScopedFd(::open("/", O_RDONLY | O_CLOEXEC)))),
              HasSubstr("no memfd"));
}

TEST_F(ArenaTest, ForeignHeaderIsRefused) {
  EXPECT_THAT(
      Message(MapStatus(Memfd(layout_.total_bytes, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))),
      HasSubstr("version 0"));
}

TEST_F(ArenaTest, AnotherGenerationIsRefused) {
  Arena daemon = Arena::Create(layout_, kGeneration + 1).value();
  EXPECT_THAT(Message(MapStatus(ScopedFd(::dup(daemon.fd())))), HasSubstr("generation 8"));
}

TEST_F(ArenaTest, OnlyASecondMarkForOneStepCountsAsAResubmission) {
  const Arena arena = Arena::Create(layout_, kGeneration).value();
  const auto resubmissions = [&] { return arena.header().resubmissions.load(); };
  arena.MarkGradient(0, 1, WordState::kReady);
  arena.MarkGradient(1, 1, WordState::kMissing);
  arena.MarkGradient(0, 2, WordState::kReady);
  EXPECT_EQ(resubmissions(), 0U);
  arena.MarkGradient(0, 2, WordState::kReady);
  arena.MarkGradient(1, 1, WordState::kReady);
  EXPECT_EQ(resubmissions(), 2U);
  EXPECT_EQ(arena.entry(0).grad_word.load(), MakeWord(2, WordState::kReady));
}

TEST_F(ArenaTest, LargerThanAllowedIsRefusedWithBothSizes) {
  const absl::Status status = LayOut(job_, shards_, 100).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Message(status), HasSubstr("allowed are 100"));
}

class ChannelTest : public ::testing::Test {
 protected:
  ChannelTest() {
    std::array<int, 2> pair{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data()), 0);
    here_ = ScopedFd(pair[0]);
    there_ = ScopedFd(pair[1]);
  }
  absl::Status Received(absl::Duration timeout = absl::Seconds(5)) {
    return ReceiveFrame(there_.get(), timeout).status();
  }
  ScopedFd here_;
  ScopedFd there_;
};

TEST_F(ChannelTest, FrameAndDescriptorArrive) {
  ScopedFd file(::open("/dev/null", O_RDWR | O_CLOEXEC));
  ChannelFrame frame;
  frame.type = FrameType::kArena;
  frame.bytes = 4096;
  ASSERT_TRUE(SendFrame(here_.get(), frame, file.get()).ok());
  absl::StatusOr<ReceivedFrame> received = ReceiveFrame(there_.get(), absl::Seconds(5));
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_EQ(received->frame.bytes, 4096U);
  EXPECT_TRUE(received->fd.valid());
}

TEST_F(ChannelTest, TruncatedOversizedAndForeignPacketsAreRefused) {
  const std::string short_packet(10, 'x');
  const std::string long_packet(500, 'x');
  const std::string foreign(sizeof(ChannelFrame), 'x');
  for (const std::string& packet : {short_packet, long_packet, foreign}) {
    ASSERT_EQ(::send(here_.get(), packet.data(), packet.size(), 0),
              static_cast<ssize_t>(packet.size()));
    EXPECT_EQ(Received().code(), absl::StatusCode::kInvalidArgument) << packet.size();
  }
}

TEST_F(ChannelTest, AStepCarriesARequestAndNothingElseCarriesAnything) {
  ChannelFrame frame;
  for (const size_t bytes : {size_t{0}, size_t{300}, kMaxFramePayload}) {
    const std::string request(bytes, 'r');
    frame.type = FrameType::kStep;
    ASSERT_TRUE(SendFrame(here_.get(), frame, -1, request).ok());
    const absl::StatusOr<ReceivedFrame> received = ReceiveFrame(there_.get(), absl::Seconds(5));
    ASSERT_TRUE(received.ok()) << received.status();
    EXPECT_EQ(received->payload, request);
  }
  ASSERT_TRUE(SendFrame(here_.get(), frame, -1, std::string(kMaxFramePayload + 1, 'r')).ok());
  EXPECT_EQ(Received().code(), absl::StatusCode::kInvalidArgument);
  frame.type = FrameType::kHello;
  ASSERT_TRUE(SendFrame(here_.get(), frame, -1, "more").ok());
  EXPECT_EQ(Received().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ChannelTest, EndOfThePeerIsUnavailable) {
  here_.Reset();
  EXPECT_EQ(Received().code(), absl::StatusCode::kUnavailable);
}

TEST_F(ChannelTest, SilenceEndsByTheDeadline) {
  EXPECT_EQ(Received(absl::Milliseconds(20)).code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(ChannelTest, NobodyListeningIsUnavailableAndNamesThePath) {
  const absl::Status status = ConnectChannel("/nonexistent/dmuon.arena").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(status), HasSubstr("/nonexistent/dmuon.arena"));
}

}  // namespace
}  // namespace dmuon::wire
