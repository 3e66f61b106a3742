// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What the client promises of states that it is given and brings, whatever becomes of the daemon. The daemon is scripted.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tests/client/scripted_test.h"

namespace dmuon::client {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kDigest(64, 'a');

absl::Status Gone() { return absl::UnavailableError("gone"); }

class StateTest : public ScriptedTest {
 protected:
  static std::string Message(const absl::Status& status) { return std::string(status.message()); }
  static std::vector<float> FloatsOf(std::span<const std::byte> bytes) {
    const auto* first = reinterpret_cast<const float*>(bytes.data());
    return {first, first + bytes.size() / sizeof(float)};
  }
  // A sealed memfd of three masters.
  static wire::ScopedFd Masters(float value) {
    wire::ScopedFd fd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    const std::vector<float> values(3, value);
    EXPECT_EQ(::write(fd.get(), values.data(), 12), 12);
    EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE), 0);
    return fd;
  }
  // Until the daemon has heard of so many releases.
  void AwaitReleases(int count) {
    const Deadline until = Clock::now() + std::chrono::seconds(30);
    while (node_->log().releases < count && Clock::now() < until) std::this_thread::sleep_for(milliseconds(1));
    EXPECT_EQ(node_->log().releases, count);
  }
};

TEST_F(StateTest, AStateIsThatOfTheLastStepAndReadableUntilItIsReleased) {
  Attach();
  ASSERT_EQ(Run(1, 2.0F).status(), absl::OkStatus());
  const auto state = client_->Export(kForever);
  ASSERT_EQ(state.status(), absl::OkStatus());
  EXPECT_THAT(FloatsOf(*state), ElementsAre(8, 8, 8));
  ASSERT_EQ(Run(2, 2.0F).status(), absl::OkStatus());
  EXPECT_THAT(FloatsOf(*state), ElementsAre(8, 8, 8));
  ASSERT_EQ(client_->ReleaseState(), absl::OkStatus());
  AwaitReleases(1);
  EXPECT_EQ(client_->ReleaseState(), absl::OkStatus());  // harmless
  const auto next = client_->Export(kForever);
  ASSERT_EQ(next.status(), absl::OkStatus());
  EXPECT_THAT(FloatsOf(*next), ElementsAre(6, 6, 6));
  ASSERT_EQ(client_->Export(kForever).status(), absl::OkStatus());
  AwaitReleases(2);  // of the one before
}

TEST_F(StateTest, AnExportIsRepeatedAfterALostConnectionAndALostPeer) {
  Attach();
  ASSERT_EQ(Run(1, 2.0F).status(), absl::OkStatus());
  const absl::Status lost = wire::Error(absl::StatusCode::kAborted, v1::ERROR_REASON_PEER_LOST, "node-1 is gone");
  for (const FakeNode::Script& script :
       {FakeNode::Script{.export_before = Gone()}, FakeNode::Script{.export_after = Gone()},
        FakeNode::Script{.export_before = lost}}) {
    node_->Play(script);
    const auto state = client_->Export(kForever);
    ASSERT_EQ(state.status(), absl::OkStatus());
    EXPECT_THAT(FloatsOf(*state), ElementsAre(8, 8, 8));
  }
  ASSERT_EQ(Run(2, 2.0F).status(), absl::OkStatus());
}

TEST_F(StateTest, AStateThatCouldStillShrinkIsNotMapped) {
  Attach();
  node_->Play({.unsealed_state = true});
  EXPECT_THAT(Message(client_->Export(kForever).status()), HasSubstr("no sealed memfd"));
  AwaitReleases(1);
  EXPECT_EQ(client_->Export(kForever).status(), absl::OkStatus());
}

TEST_F(StateTest, WhatIsBroughtTakesTheStatesPlace) {
  Attach();
  ASSERT_EQ(Run(1, 2.0F).status(), absl::OkStatus());
  const auto step = client_->Import(Masters(3.0F).get(), kDigest, kForever);
  ASSERT_EQ(step.status(), absl::OkStatus());
  EXPECT_EQ(*step, 7u);
  EXPECT_THAT(params_, ElementsAre(3, 3, 3));
  ASSERT_EQ(Run(8, 1.0F).status(), absl::OkStatus());
  EXPECT_THAT(params_, ElementsAre(2, 2, 2));
}

TEST_F(StateTest, WhatIsBroughtIsBroughtAgainAfterALostConnection) {
  Attach();
  for (const bool after : {false, true}) {
    const int before = node_->log().offers;
    node_->Play(after ? FakeNode::Script{.import_after = Gone()} : FakeNode::Script{.import_before = Gone()});
    ASSERT_EQ(client_->Import(Masters(3.0F).get(), kDigest, kForever).status(), absl::OkStatus());
    EXPECT_EQ(node_->log().offers - before, 2);
    EXPECT_THAT(params_, ElementsAre(3, 3, 3));
  }
}

TEST_F(StateTest, WhoBringsNothingOffersNothing) {
  Attach();
  const absl::Status status = client_->Import(-1, kDigest, kForever).status();
  EXPECT_THAT(Message(status), HasSubstr("nothing was brought"));
  EXPECT_EQ(node_->log().offers, 0);
  ASSERT_EQ(Run(1, 2.0F).status(), absl::OkStatus());
}

TEST_F(StateTest, BadArgumentsAndCallsOutOfTheirOrderAreRefused) {
  ASSERT_EQ(Open(), absl::OkStatus());
  EXPECT_THAT(Message(client_->Export(kForever).status()), HasSubstr("dmuon_begin comes before dmuon_export_state"));
  EXPECT_THAT(Message(client_->Import(-1, kDigest, kForever).status()),
              HasSubstr("dmuon_begin comes before dmuon_import_state"));
  client_.reset();
  Attach();
  for (const std::string& digest : {std::string(), std::string(63, 'a'), std::string(64, 'A'), std::string(65, 'a')}) {
    EXPECT_EQ(client_->Import(-1, digest, kForever).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_THAT(Message(client_->Import(1'000'000, kDigest, kForever).status()), HasSubstr("descriptor 1000000 of a state"));
  node_->HoldSteps(true);
  ASSERT_EQ(Start(1, 2.0F), absl::OkStatus());
  EXPECT_THAT(Message(client_->Export(kForever).status()), HasSubstr("dmuon_export_state while step 1 is in flight"));
  EXPECT_THAT(Message(client_->ReleaseState()), HasSubstr("dmuon_release_state while step 1 is in flight"));
  EXPECT_THAT(Message(client_->Import(-1, kDigest, kForever).status()),
              HasSubstr("dmuon_import_state while step 1 is in flight"));
}

}  // namespace
}  // namespace dmuon::client
