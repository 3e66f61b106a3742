// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/round.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "wire/error.h"

namespace dmuon::node {
namespace {

using ::testing::HasSubstr;

v1::PeerReport At(uint64_t reached, uint64_t target) {
  v1::PeerReport report;
  report.set_reached(reached);
  report.set_target(target);
  return report;
}

v1::StepVerdict Skipping(const std::string& reason) {
  v1::StepVerdict verdict;
  verdict.set_skip(true);
  verdict.set_skip_reason(reason);
  return verdict;
}

class RoundTest : public ::testing::Test {
 protected:
  RoundTest() {
    job_.set_job_id("job");
    for (const char* name : {"a", "b", "c"}) plan_.add_nodes(name);
  }

  v1::JobSpec job_;
  v1::Plan plan_;
};

TEST_F(RoundTest, TheLeastThatANodeWantsIsDoneFirst) {
  EXPECT_EQ(LowestTarget({At(4, 5), At(4, 4), At(3, 4)}), 4U);
  EXPECT_TRUE(AnyIsBehind({At(4, 5), At(4, 4), At(3, 4)}, 4));
  EXPECT_FALSE(AnyIsBehind({At(4, 5), At(4, 4)}, 4));
}

TEST_F(RoundTest, ValuesOfAStepThatANodeHasLeftBehindDoNotGoRoundWhateverItsOwnVerdict) {
  EXPECT_TRUE(Publishes({At(4, 4), At(4, 4)}, 4, {}));
  EXPECT_FALSE(Publishes({At(4, 4), At(4, 4)}, 4, Skipping("not finite")));
  // One helps with step 3, which was skipped; another has applied step 4. Each has the verdict of its own step.
  const Reports reports = {At(4, 4), At(5, 5)};
  EXPECT_FALSE(Publishes(reports, 4, Skipping("not finite")));
  EXPECT_FALSE(Publishes(reports, 4, {}));
}

v1::PeerReport Follower(uint64_t reached, uint64_t target) {
  v1::PeerReport report = At(reached, target);
  report.set_follows(true);
  return report;
}

TEST_F(RoundTest, NodesWithoutWorkersRestoreWhatAllOthersRestore) {
  v1::PeerReport restoring = At(4, 5);
  restoring.set_restore("'x' of step 3");
  restoring.set_restore_name("x");
  EXPECT_EQ(RestoreToFollow({restoring, restoring, Follower(4, 5)}), "x");
  EXPECT_EQ(RestoreToFollow({restoring, At(4, 5), Follower(4, 5)}), "");
  EXPECT_EQ(RestoreToFollow({restoring, restoring, restoring}), "");  // nobody has to be told
  EXPECT_EQ(RestoreToFollow({At(4, 5), At(4, 5), Follower(4, 5)}), "");
}

TEST_F(RoundTest, SettingsAreThoseOfTheStepThatIsDone) {
  v1::PeerReport said = At(4, 5);
  said.mutable_settings()->set_target(5);
  said.mutable_settings()->add_hypers()->set_lr(0.5);
  const Reports reports = {At(4, 4), said, Follower(4, 5)};
  EXPECT_EQ(SettingsOf(reports, 4), nullptr);
  ASSERT_NE(SettingsOf(reports, 5), nullptr);
  EXPECT_EQ(SettingsOf(reports, 5)->hypers(0).lr(), 0.5);
}

TEST_F(RoundTest, AJobWithoutStepsWaitsForNodesWithoutWorkersToBeReadyForAnotherPlan) {
  const auto ready = [](v1::PeerReport report) {
    report.set_successor(7);
    return report;
  };
  EXPECT_TRUE(FollowersLackSuccessor({ready(At(4, 4)), ready(At(4, 4)), Follower(4, 5)}));
  EXPECT_FALSE(FollowersLackSuccessor({ready(At(4, 4)), ready(At(4, 4)), ready(Follower(4, 5))}));  // goes over
  EXPECT_FALSE(FollowersLackSuccessor({ready(At(4, 4)), At(4, 4), Follower(4, 5)}));
  EXPECT_FALSE(FollowersLackSuccessor({ready(At(4, 4)), ready(At(4, 5)), Follower(4, 5)}));  // a step is wanted
  EXPECT_FALSE(FollowersLackSuccessor({ready(At(4, 4)), ready(At(4, 4)), Follower(3, 4)}));  // one is behind
}

TEST_F(RoundTest, NobodyLoadsInitialParametersBesideAStateThatHasGoneOn) {
  EXPECT_TRUE(CheckReports(job_, plan_, {At(1, 1), At(0, 1), At(1, 2)}, 1).ok());
  EXPECT_EQ(wire::ReasonOf(CheckReports(job_, plan_, {At(1, 1), At(0, 1), At(2, 2)}, 1)), v1::ERROR_REASON_STATE_LOST);
  EXPECT_TRUE(CheckReports(job_, plan_, {At(1, 1), At(1, 1), At(2, 2)}, 1).ok());  // only to know that all have
}

TEST_F(RoundTest, NobodyLoadsInitialParametersWhereWorkersCountOnStateThatNobodyHas) {
  v1::PeerReport resumes = At(0, 1);
  resumes.set_lost(true);
  const absl::Status status = CheckReports(job_, plan_, {At(0, 1), resumes}, 1);
  EXPECT_EQ(wire::ReasonOf(status), v1::ERROR_REASON_STATE_LOST);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the workers of node b count on the state"));
}

TEST_F(RoundTest, NodesMoreThanAStepApartHaveLostState) {
  EXPECT_TRUE(CheckReports(job_, plan_, {At(4, 5), At(4, 4), At(3, 4)}, 4).ok());
  const absl::Status status = CheckReports(job_, plan_, {At(4, 4), At(0, 1), At(4, 4)}, 1);
  EXPECT_EQ(wire::ReasonOf(status), v1::ERROR_REASON_STATE_LOST);
  EXPECT_THAT(std::string(status.message()), HasSubstr("node a is at 4"));
}

TEST_F(RoundTest, ANodesErrorEndsTheRoundForAll) {
  Reports reports = {At(3, 4), At(3, 4)};
  SetStatus(wire::Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_NOT_READY, "no"), reports[1]);
  const absl::Status status = CheckReports(job_, plan_, reports, 4);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(wire::ReasonOf(status), v1::ERROR_REASON_NOT_READY);
}

TEST_F(RoundTest, WhoHasAppliedTheStepKnowsItsVerdict) {
  Reports reports = {At(3, 4), At(4, 4)};
  reports[1].mutable_verdict()->set_sum_squares(7.0);
  ASSERT_NE(VerdictOfDone(reports, 4), nullptr);
  EXPECT_EQ(VerdictOfDone(reports, 4)->sum_squares(), 7.0);
  EXPECT_EQ(VerdictOfDone({At(3, 4), At(3, 4)}, 4), nullptr);
}

TEST_F(RoundTest, OneSkipsAllSkip) {
  Reports reports = {At(3, 4), At(3, 4), At(3, 4)};
  reports[0].mutable_verdict()->set_sum_squares(9.0);
  EXPECT_FALSE(MergeVerdicts(reports).skip());
  *reports[1].mutable_verdict() = Skipping("first");
  *reports[2].mutable_verdict() = Skipping("second");
  EXPECT_TRUE(MergeVerdicts(reports).skip());
  EXPECT_EQ(MergeVerdicts(reports).skip_reason(), "first");
  EXPECT_TRUE(Conclude(job_, MergeVerdicts(reports)).skip);
}

TEST_F(RoundTest, TheNormOverAllNodesIsClipped) {
  Reports reports = {At(3, 4), At(3, 4)};
  reports[0].mutable_verdict()->set_sum_squares(9.0);
  reports[1].mutable_verdict()->set_sum_squares(16.0);
  EXPECT_EQ(Conclude(job_, MergeVerdicts(reports)).clip, 1.0);
  job_.set_max_grad_norm(1.0);
  const Verdict verdict = Conclude(job_, MergeVerdicts(reports));
  EXPECT_EQ(verdict.grad_norm, 5.0);
  EXPECT_NEAR(verdict.clip, 0.2, 1e-6);
}

TEST_F(RoundTest, TheFirstNodesCheckpointCounts) {
  Reports reports = {At(3, 4), At(3, 4), At(3, 5)};
  reports[1].set_save("b");
  reports[2].set_save("c");
  EXPECT_EQ(NameToSave(reports, 4), "b");
  EXPECT_EQ(NameToSave(reports, 5), "c");
  EXPECT_EQ(NameToSave(reports, 6), "");
}

TEST(AgreedSuccessorTest, AllMustBeReadyForTheSameFromTheSameState) {
  Reports reports(3);
  for (v1::PeerReport& report : reports) {
    report.set_reached(5 + kLoaded);
    report.set_successor(4);
  }
  EXPECT_EQ(AgreedSuccessor(reports), 4U);
  Reports other = reports;
  other[1].set_successor(0);
  EXPECT_EQ(AgreedSuccessor(other), 0U);
  other = reports;
  other[2].set_successor(5);
  EXPECT_EQ(AgreedSuccessor(other), 0U);
  other = reports;
  other[0].set_reached(6 + kLoaded);
  EXPECT_EQ(AgreedSuccessor(other), 0U);
  other = reports;
  other[1].set_restore("checkpoint 'x' of step 3");
  EXPECT_EQ(AgreedSuccessor(other), 0U);
  for (v1::PeerReport& report : reports) report.set_reached(0);
  EXPECT_EQ(AgreedSuccessor(reports), 0U);  // there is nothing to hand over yet
}

}  // namespace
}  // namespace dmuon::node
