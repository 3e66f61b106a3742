// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// State that workers are given and bring, on one node; on several, and through a client: tests/e2e/full_state_test.py.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "daemon/base/sha256.h"
#include "daemon/checkpoint/head.h"
#include "daemon/node/channel_server.h"
#include "tests/daemon/base/temp_dir.h"
#include "tests/daemon/node/exact_run.h"
#include "tests/daemon/node/test_node.h"
#include "wire/error.h"

namespace dmuon::node {
namespace {

using ::testing::HasSubstr;

TestJob Model() {
  TestJob job("model", 2);
  job.spec.mutable_groups(0)->mutable_muon()->set_variant(v1::VARIANT_NORMUON);
  job.Add("up", {13, 6});
  job.Add("narrow", {2, 9});
  job.Add("embedding", {11, 5}, 1);
  return job;
}

std::string BytesOf(int fd) {
  struct stat info {};
  EXPECT_EQ(::fstat(fd, &info), 0);
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  EXPECT_EQ(::pread(fd, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  return bytes;
}

ino_t InodeOf(const wire::ScopedFd& fd) {
  struct stat info {};
  EXPECT_EQ(::fstat(fd.get(), &info), 0);
  return info.st_ino;
}

std::string DigestOf(const std::string& bytes) {
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), checkpoint::kLengthBytes);
  Sha256 hash;
  hash.Update(std::as_bytes(std::span(bytes).first(checkpoint::kLengthBytes + length)));
  return hash.Hex();
}

wire::ScopedFd Memory(const std::string& bytes, bool sealed = true) {
  wire::ScopedFd fd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::write(fd.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  const int seals = sealed ? F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE : 0;
  EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

class ExchangeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(run_.Start().ok());
    for (uint64_t step = 1; step <= 2; ++step) ASSERT_TRUE(StepExactly(run_, step).ok());
  }
  // Of what `brought` is, by both workers.
  absl::StatusOr<uint64_t> Import(wire::ScopedFd brought, const std::string& digest) {
    const bool brings = brought.valid();
    EXPECT_TRUE(!brings || run_[0].Offer(std::move(brought)).ok());
    for (size_t rank = 0; rank < 2; ++rank) run_[rank].StartImport(digest);
    const absl::StatusOr<v1::ImportResponse> first = run_[0].FinishImport();
    const absl::StatusOr<v1::ImportResponse> second = run_[1].FinishImport();
    EXPECT_EQ(first.status(), second.status());
    if (!first.ok()) return first.status();
    return first->last_step();
  }

  TestJob job_ = Model();
  TestNode node_{TwoSlots()};
  TestRun run_{&node_.engine(), job_};
};

TEST_F(ExchangeTest, WhatWasGivenIsTakenInAgainBitForBit) {
  const wire::ScopedFd given = run_[1].Export(2).value();
  const std::string bytes = BytesOf(given.get());
  const auto at_two = ParametersOf(run_, job_);
  for (uint64_t step = 3; step <= 4; ++step) ASSERT_TRUE(StepExactly(run_, step).ok());
  const auto at_four = ParametersOf(run_, job_);
  const absl::StatusOr<uint64_t> restored = Import(Memory(bytes), DigestOf(bytes));
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(*restored, 2);
  EXPECT_EQ(ParametersOf(run_, job_), at_two);
  for (uint64_t step = 3; step <= 4; ++step) ASSERT_TRUE(StepExactly(run_, step).ok());
  EXPECT_EQ(ParametersOf(run_, job_), at_four);
}

TEST_F(ExchangeTest, AllWorkersOfANodeReadOneCopyAndEachStepHasItsOwn) {
  const wire::ScopedFd first = run_[0].Export(2).value();
  const wire::ScopedFd second = run_[1].Export(2).value();
  EXPECT_EQ(InodeOf(first), InodeOf(second));
  ASSERT_TRUE(StepExactly(run_, 3).ok());
  const wire::ScopedFd later = run_[0].Export(3).value();
  EXPECT_NE(InodeOf(later), InodeOf(second));
  // Restored to the same step, the state may be another.
  const std::string bytes = BytesOf(second.get());
  ASSERT_TRUE(Import(Memory(bytes), DigestOf(bytes)).ok());
  EXPECT_NE(InodeOf(run_[0].Export(2).value()), InodeOf(second));
}

TEST_F(ExchangeTest, TheStateOfAnotherStepIsRefused) {
  for (const uint64_t step : {1, 3}) {
    const absl::Status status = run_[0].Export(step).status();
    EXPECT_EQ(wire::ReasonOf(status), v1::ERROR_REASON_STEP_OUT_OF_ORDER);
    EXPECT_THAT(std::string(status.message()), HasSubstr("last applied is 2"));
  }
}

TEST_F(ExchangeTest, WhatNobodyCanBelieveChangesNothing) {
  const auto before = ParametersOf(run_, job_);
  const std::string bytes = BytesOf(run_[0].Export(2).value().get());
  std::string damaged = bytes;
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  const auto refused = [&](wire::ScopedFd fd, const std::string& digest, const std::string& why) {
    const absl::Status status = Import(std::move(fd), digest).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
    EXPECT_EQ(ParametersOf(run_, job_), before);
  };
  refused(Memory(bytes, false), DigestOf(bytes), "not sealed");
  refused(wire::ScopedFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)), DigestOf(bytes), "in no memfd");
  refused(Memory(bytes.substr(0, bytes.size() / 2)), DigestOf(bytes), "the state that a worker has brought");
  refused(Memory(damaged), DigestOf(bytes), "are not those that were saved");
  refused(Memory(bytes), std::string(64, 'a'), "its head is not the one");
  refused(wire::ScopedFd(), DigestOf(bytes), "no worker of job 'model' has brought a state");
  refused(wire::ScopedFd(), "short", "digest 'short' of 5 characters");
  wire::ScopedFd huge(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(huge.get(), off_t{1} << 50), 0);
  ASSERT_EQ(::fcntl(huge.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE), 0);
  refused(std::move(huge), DigestOf(bytes), "allowed are");
  EXPECT_TRUE(StepExactly(run_, 3).ok());
}

TEST_F(ExchangeTest, WhatWasBroughtBeforeAFailureIsNotTakenLater) {
  const std::string bytes = BytesOf(run_[0].Export(2).value().get());
  EXPECT_FALSE(Import(Memory(bytes), std::string(64, 'a')).ok());
  EXPECT_THAT(std::string(Import(wire::ScopedFd(), DigestOf(bytes)).status().message()), HasSubstr("has brought a state"));
}

TEST_F(ExchangeTest, OneOfTheWorkersMayBringIt) {
  const std::string bytes = BytesOf(run_[0].Export(2).value().get());
  ASSERT_TRUE(run_[1].Offer(Memory(bytes)).ok());
  EXPECT_TRUE(Import(wire::ScopedFd(), DigestOf(bytes)).ok());
}

TEST_F(ExchangeTest, WorkersThatBringDifferentStatesAreNamed) {
  run_[0].StartImport(std::string(64, 'a'));
  run_[1].StartImport(std::string(64, 'b'));
  for (size_t rank = 0; rank < 2; ++rank) {
    const absl::Status status = run_[rank].FinishImport().status();
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0 wants to restore what workers have brought (aaaa"));
  }
}

TEST(ExchangeMemoryTest, ACopyIsChargedUntilAllHaveReleasedIt) {
  TestJob job("model", 2);
  job.Add("w", {256, 128});  // 256 KiB of state
  EngineOptions options = TwoSlots();
  options.memory_limit_bytes = 1700 << 10;  // room for one copy
  TestNode node(options);
  TestRun run({&node.engine(), &node.engine()}, job);
  ASSERT_TRUE(run.Start().ok());
  ASSERT_TRUE(StepExactly(run, 1).ok());
  ASSERT_TRUE(run[0].Export(1).ok());
  ASSERT_TRUE(run[1].Export(1).ok());  // the same
  ASSERT_TRUE(StepExactly(run, 2).ok());
  ASSERT_TRUE(run[0].Release().ok());
  const absl::Status full = run[0].Export(2).status();
  EXPECT_EQ(wire::ReasonOf(full), v1::ERROR_REASON_LIMIT) << full;
  ASSERT_TRUE(run[1].Release().ok());
  EXPECT_TRUE(run[0].Export(2).ok());
  run[0].Die();  // releases it too
  EXPECT_TRUE(run[1].Export(2).ok());
}

// Counts what comes.
class Owner : public ChannelOwner {
 public:
  absl::Status Hello(const wire::ChannelFrame&, int, int) override { return absl::OkStatus(); }
  absl::Status Ring(uint64_t, const wire::ReceivedFrame&) override { return absl::OkStatus(); }
  absl::Status ExpectGradients(uint64_t, const wire::ChannelFrame&) override { return absl::OkStatus(); }
  absl::Status Offer(uint64_t, wire::ScopedFd state) override {
    offers += state.valid() ? 1 : 100;
    return absl::OkStatus();
  }
  absl::Status Release(uint64_t) override { return absl::OkStatus(); }
  void ChannelGone(uint64_t) override {}

  std::atomic<int> offers = 0;
};

TEST(ExchangeChannelTest, AnOfferOfNothingOrBeforeTheHelloEndsTheChannel) {
  TempDir directory;
  Owner owner;
  const auto server = ChannelServer::Start(directory.File("arena"), &owner).value();
  wire::ChannelFrame offer;
  offer.type = wire::FrameType::kOffer;
  for (const bool greeted : {true, false}) {
    const wire::ScopedFd channel = wire::ConnectChannel(directory.File("arena")).value();
    wire::ChannelFrame hello;
    hello.session_id = 5;
    if (greeted) {
      ASSERT_TRUE(wire::SendFrame(channel.get(), hello).ok());
      ASSERT_TRUE(wire::ReceiveFrame(channel.get(), absl::Seconds(30)).ok());
      ASSERT_TRUE(wire::SendFrame(channel.get(), offer, Memory("x").get()).ok());
    }
    ASSERT_TRUE(wire::SendFrame(channel.get(), offer, greeted ? -1 : Memory("x").get()).ok());
    EXPECT_EQ(wire::ReceiveFrame(channel.get(), absl::Seconds(30)).status().code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_EQ(owner.offers, 1);
}

}  // namespace
}  // namespace dmuon::node
