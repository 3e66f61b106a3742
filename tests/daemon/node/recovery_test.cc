// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/recovery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <utility>

#include "wire/error.h"

namespace dmuon::node {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Range = std::pair<uint64_t, uint64_t>;

// Node i's copies are on node i + 1.
v1::Plan Ring(int nodes) {
  v1::Plan plan;
  plan.set_job_id("demo");
  for (int node = 0; node < nodes; ++node) {
    plan.add_nodes(std::string(1, static_cast<char>('a' + node)));
    plan.add_buddies(static_cast<uint32_t>((node + 1) % nodes));
  }
  return plan;
}

void Add(std::initializer_list<Range> steps, google::protobuf::RepeatedPtrField<v1::StepRange>& ranges) {
  for (const auto& [first, last] : steps) {
    v1::StepRange& range = *ranges.Add();
    range.set_first(first);
    range.set_last(last);
  }
}

v1::PeerReport At(uint64_t step, std::initializer_list<Range> kept, std::initializer_list<Range> copied) {
  v1::PeerReport report;
  report.set_reached(step + kLoaded);
  Add(kept, *report.mutable_kept());
  Add(copied, *report.mutable_copied());
  return report;
}

v1::PeerReport Nothing(bool lost) {
  v1::PeerReport report;
  report.set_lost(lost);
  return report;
}

absl::StatusOr<uint64_t> Common(const Reports& reports) {
  const v1::Plan plan = Ring(static_cast<int>(reports.size()));
  return CommonStep(plan, reports, LostNodes(plan, reports));
}

TEST(LostNodesTest, ANewJobHasLostNothing) {
  EXPECT_FALSE(AnyIsLost(Ring(2), {Nothing(false), Nothing(false)}));
  EXPECT_FALSE(AnyIsLost(Ring(2), {At(0, {}, {}), Nothing(false)}));  // loading is under way
}

TEST(LostNodesTest, WhoHasNothingIsLostWhereOthersHaveGoneOnOrWorkersSaySo) {
  EXPECT_THAT(LostNodes(Ring(2), {At(1, {}, {}), Nothing(false)}), ElementsAre(false, true));
  EXPECT_THAT(LostNodes(Ring(2), {At(0, {}, {}), Nothing(true)}), ElementsAre(false, true));
}

TEST(LostNodesTest, WhoseBuddyHasACopyHadAState) {
  // All have loaded the initial parameters, and workers compute with them; node b comes back before the first step.
  const Reports reports = {At(0, {{0, 0}}, {{0, 0}}), Nothing(false), At(0, {{0, 0}}, {{0, 0}})};
  EXPECT_THAT(LostNodes(Ring(3), reports), ElementsAre(false, true, false));
  EXPECT_EQ(*Common(reports), 0U);
}

TEST(NeedRecoveryTest, WhoHasNotHeardOfOneIsTaken) {
  Reports reports = {At(6, {{6, 6}}, {}), At(6, {{6, 6}}, {}), At(8, {{6, 6}, {7, 7}}, {})};
  EXPECT_FALSE(NeedRecovery(Ring(3), reports));
  reports[0].set_recoveries(3);
  reports[1].set_recoveries(3);
  EXPECT_TRUE(NeedRecovery(Ring(3), reports));
  EXPECT_EQ(*Common(reports), 6U);
  EXPECT_EQ(MostRecoveries(reports), 3U);
}

TEST(NeedRecoveryTest, OneThatBrokeOffIsBegunAgain) {
  // All had begun it; two had gone to step 6, and the third not yet.
  Reports reports = {At(6, {{6, 6}}, {}), At(6, {{6, 6}}, {}), At(7, {{6, 6}, {7, 7}}, {})};
  for (v1::PeerReport& report : reports) report.set_recoveries(1);
  EXPECT_FALSE(NeedRecovery(Ring(3), reports));
  reports[2].set_recovering(true);
  EXPECT_TRUE(NeedRecovery(Ring(3), reports));
  EXPECT_EQ(*Common(reports), 6U);
}

TEST(CommonStepTest, TheNewestStepThatAllHaveIsTaken) {
  EXPECT_EQ(*Common({Nothing(true), At(7, {{6, 6}, {7, 7}}, {{6, 6}, {7, 7}}), At(7, {{6, 6}, {7, 7}}, {})}), 7U);
}

TEST(CommonStepTest, WhereTheLastCopyHasNotArrivedAllGoBack) {
  EXPECT_EQ(*Common({Nothing(true), At(7, {{6, 6}}, {{6, 6}}), At(7, {{6, 6}}, {{6, 6}})}), 6U);
  EXPECT_EQ(*Common({Nothing(true), At(7, {{6, 6}}, {{6, 6}}), At(6, {{5, 5}}, {{6, 6}})}), 6U);
}

TEST(CommonStepTest, SkippedStepsAreOneState) {
  EXPECT_EQ(*Common({Nothing(true), At(9, {{6, 9}}, {{6, 8}}), At(8, {{6, 8}}, {})}), 8U);
}

TEST(CommonStepTest, WhatNobodyHasACopyOfIsLostByName) {
  const absl::Status both = Common({Nothing(true), Nothing(true), At(7, {{7, 7}}, {{7, 7}})}).status();
  EXPECT_EQ(wire::ReasonOf(both), v1::ERROR_REASON_STATE_LOST);
  EXPECT_THAT(std::string(both.message()), HasSubstr("of node a, node b kept the copies, and is lost itself"));
  const absl::Status apart = Common({Nothing(true), At(7, {{6, 6}}, {{4, 4}, {3, 3}}), At(7, {{6, 6}}, {})}).status();
  EXPECT_THAT(std::string(apart.message()), HasSubstr("node b has copies of steps: 4, 3"));
}

// The last of three nodes owns nothing.
v1::Plan WithoutTheLast() {
  v1::Plan plan = Ring(3);
  for (uint32_t node = 0; node < 2; ++node) plan.add_units()->add_owners()->set_node(node);
  return plan;
}

TEST(CommonStepTest, WhoOwnsNothingCanHaveAnyStep) {
  const Reports reports = {At(7, {{6, 6}}, {{4, 4}}), At(7, {{6, 6}}, {}), Nothing(true)};
  EXPECT_EQ(*CommonStep(WithoutTheLast(), reports, LostNodes(WithoutTheLast(), reports)), 7U);
}

// And has no copies of what it does not own.
v1::Plan WithoutCopiesOfTheLast() {
  v1::Plan plan = WithoutTheLast();
  for (const int node : {0, 1, 2}) plan.set_buddies(node, static_cast<uint32_t>(node < 2 ? 1 - node : node));
  return plan;
}

TEST(PassOverTest, WhoOwnsNothingIsWhereTheOthersAre) {
  v1::Plan without_copies = WithoutTheLast();
  without_copies.clear_buddies();
  for (const v1::Plan& plan : {without_copies, WithoutCopiesOfTheLast()}) {
    Reports reports = {At(7, {}, {}), At(7, {}, {}), Nothing(true)};
    reports[0].mutable_verdict()->set_skip(true);
    for (size_t node : {0, 1}) reports[node].set_recoveries(3);
    ASSERT_TRUE(PassOver(plan, reports));
    EXPECT_EQ(reports[2].reached(), 7 + kLoaded);
    EXPECT_EQ(reports[2].recoveries(), 3U);
    EXPECT_TRUE(reports[2].verdict().skip());
    EXPECT_FALSE(PassOver(plan, reports));  // nobody begins anew
  }
}

TEST(PassOverTest, NobodyIsPassedOverBesideARecovery) {
  Reports reports = {At(7, {}, {}), At(7, {}, {}), Nothing(true)};
  reports[1].set_recovering(true);
  EXPECT_FALSE(PassOver(WithoutCopiesOfTheLast(), reports));
  reports[1].set_recovering(false);
  reports[1].set_recoveries(1);
  EXPECT_FALSE(PassOver(WithoutCopiesOfTheLast(), reports));
}

TEST(WardTest, WhoIsItsOwnBuddyKeepsNoCopies) {
  EXPECT_EQ(WardOf(WithoutCopiesOfTheLast(), 1), 0U);
  EXPECT_EQ(WardOf(WithoutCopiesOfTheLast(), 2), std::nullopt);
}

TEST(PassOverTest, WhoOwnsSomethingIsNotPassedOver) {
  Reports owner = {Nothing(true), At(7, {}, {}), At(7, {}, {})};
  EXPECT_FALSE(PassOver(WithoutTheLast(), owner));
  Reports apart = {At(7, {}, {}), At(8, {}, {}), Nothing(true)};
  EXPECT_FALSE(PassOver(WithoutTheLast(), apart));
  Reports fresh = {Nothing(false), Nothing(false), Nothing(false)};
  EXPECT_FALSE(PassOver(WithoutTheLast(), fresh));
}

TEST(CommonStepTest, AStateThatIsBeingRestoredIsNoBasis) {
  Reports reports = {Nothing(true), At(7, {{7, 7}}, {{7, 7}}), At(7, {{7, 7}}, {{7, 7}})};
  reports[1].set_restore("'x' of step 3");
  EXPECT_THAT(std::string(Common(reports).status().message()), HasSubstr("restore it again"));
}

TEST(CheckNextTest, OnlyTheNextStepFollows) {
  const Reports reports = {Nothing(true), At(8, {}, {})};
  EXPECT_TRUE(CheckNext(Ring(2), reports, 7 + kLoaded, 6 + kLoaded, 6 + kLoaded).ok());
  const absl::Status status = CheckNext(Ring(2), reports, 9 + kLoaded, 8 + kLoaded, 7 + kLoaded);
  EXPECT_EQ(wire::ReasonOf(status), v1::ERROR_REASON_ROLLED_BACK);
  EXPECT_THAT(std::string(status.message()), HasSubstr("from step 8 to step 7"));
}

TEST(CheckNextTest, AStepThatWasDoneHereAndIsUndoneIsNotDoneAgainBeforeItIsCalledFor) {
  const Reports reports = {Nothing(true), At(8, {}, {})};
  const absl::Status status = CheckNext(Ring(2), reports, 8 + kLoaded, 8 + kLoaded, 7 + kLoaded);
  EXPECT_EQ(wire::ReasonOf(status), v1::ERROR_REASON_PEER_LOST);
  EXPECT_THAT(std::string(status.message()), HasSubstr("step 8, which no worker was told of, is undone"));
}

TEST(LackCopiesTest, WhatDidNotArriveIsCopiedAgainBeforeTheStepThatChangesIt) {
  const uint64_t target = 8 + kLoaded;
  EXPECT_FALSE(LackCopies({At(7, {{7, 7}}, {}), At(7, {{6, 7}}, {})}, target));
  EXPECT_TRUE(LackCopies({At(7, {{7, 7}}, {}), At(7, {{5, 5}, {6, 6}}, {})}, target));
  // One that is ahead has seen that all had theirs, and cannot copy what it does not have any more.
  EXPECT_FALSE(LackCopies({At(8, {{7, 7}}, {}), At(7, {{6, 6}}, {})}, target));
}

}  // namespace
}  // namespace dmuon::node
