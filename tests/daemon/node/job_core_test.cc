// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/job_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "wire/error.h"

namespace dmuon::node {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Two ranks, sessions 10 and 11; time is a number of seconds. A request's ticket is made up by the
// test; Told() says what came of it.
class JobCoreTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kGeneration = 5;

  explicit JobCoreTest(std::vector<uint32_t> ranks = {0, 1}) : ranks_(std::move(ranks)) {}

  absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

  // Writes actions down as words, in order.
  std::vector<std::string> Words(const Actions& actions) {
    std::vector<std::string> words;
    for (const Action& a : actions) {
      if (const auto* reply = std::get_if<action::ReplyTo>(&a)) {
        replies_[reply->ticket] = reply->status;
        words.push_back(absl::StrCat("reply ", reply->ticket));
      } else if (const auto* send = std::get_if<action::SendRegistration>(&a)) {
        words.push_back(absl::StrCat("send ", send->session));
      } else if (const auto* give = std::get_if<action::GiveArena>(&a)) {
        words.push_back(absl::StrCat("arena ", give->session));
      } else if (std::holds_alternative<action::Initialize>(a)) {
        words.push_back("initialize");
      } else if (const auto* deliver = std::get_if<action::Deliver>(&a)) {
        words.push_back(absl::StrCat("deliver ", deliver->session));
      } else if (const auto* run = std::get_if<action::RunStep>(&a)) {
        words.push_back(absl::StrCat("run ", run->step));
      } else if (const auto* drop = std::get_if<action::DropSession>(&a)) {
        words.push_back(absl::StrCat("drop ", drop->session));
      } else {
        words.push_back("end");
      }
    }
    return words;
  }

  absl::Status Told(Ticket ticket) {
    const auto it = replies_.find(ticket);
    return it == replies_.end() ? absl::UnknownError("no reply") : it->second;
  }

  void Attach(uint32_t rank, double at = 0) {
    ASSERT_TRUE(core_.Open(At(at), rank, 10 + rank).ok());
  }
  Actions Register(uint32_t rank, Ticket ticket, const std::string& digest = "d", double at = 0) {
    return core_.Register(At(at), 10 + rank, ticket, absl::InfiniteFuture(), digest);
  }
  // The plan for all registrations sent so far.
  Actions Plan(double at) {
    for (const uint32_t rank : ranks_) {
      Words(core_.RegistrationAnswered(At(at), 10 + rank, absl::OkStatus()));
    }
    return core_.PlanArrived(At(at), kGeneration, ranks_);
  }
  Actions Begin(uint32_t rank, Ticket ticket, double at = 0) {
    return core_.Begin(At(at), 10 + rank, ticket, absl::InfiniteFuture(), kGeneration, false);
  }
  Actions Step(uint32_t rank, Ticket ticket, uint64_t step, double at = 0,
               const std::string& hypers = "h") {
    return core_.Step(At(at), 10 + rank, ticket, absl::InfiniteFuture(), kGeneration, step, hypers);
  }
  // All ranks ready for step 1.
  void Start() {
    for (const uint32_t rank : ranks_) {
      Attach(rank);
      Words(Register(rank, 100 + rank));
    }
    Words(Plan(0));
    for (const uint32_t rank : ranks_) Words(core_.ArenaGiven(At(0), 10 + rank, absl::OkStatus()));
    for (const uint32_t rank : ranks_) Words(Begin(rank, 200 + rank));
    Words(core_.Initialized(At(0), absl::OkStatus()));
  }
  void Apply(uint64_t step) {
    Words(Step(0, 1, step));
    EXPECT_THAT(Words(Step(1, 2, step)), ElementsAre(absl::StrCat("run ", step)));
    Words(core_.StepDone(At(0), absl::OkStatus()));
  }

  const std::vector<uint32_t> ranks_;
  JobCore core_{{.job_id = "job",
                 .world_size = static_cast<uint32_t>(ranks_.size()),
                 .peer_timeout = absl::Seconds(60),
                 .orphan_timeout = absl::Seconds(1000)}};
  std::map<Ticket, absl::Status> replies_;
};

TEST_F(JobCoreTest, PlanComesAfterAllRanksAndStepsRunWhenAllArrive) {
  Attach(0);
  EXPECT_THAT(Words(Register(0, 1)), ElementsAre("send 10"));
  Attach(1);
  EXPECT_THAT(Words(Register(1, 2)), ElementsAre("send 11"));
  EXPECT_THAT(Words(Plan(1)), ElementsAre("arena 10", "arena 11"));
  EXPECT_THAT(Words(core_.ArenaGiven(At(1), 10, absl::OkStatus())), ElementsAre("reply 1"));
  EXPECT_THAT(Words(core_.ArenaGiven(At(1), 11, absl::OkStatus())), ElementsAre("reply 2"));
  EXPECT_THAT(Words(Begin(1, 3)), IsEmpty());
  EXPECT_THAT(Words(Begin(0, 4)), ElementsAre("initialize"));
  EXPECT_THAT(Words(core_.Initialized(At(2), absl::OkStatus())),
              ElementsAre("reply 4", "reply 3"));
  EXPECT_THAT(Words(Step(1, 5, 1)), IsEmpty());
  EXPECT_THAT(Words(Step(0, 6, 1)), ElementsAre("run 1"));
  EXPECT_THAT(Words(core_.StepDone(At(3), absl::OkStatus())), ElementsAre("reply 6", "reply 5"));
  EXPECT_EQ(core_.last_step(), 1U);
}

TEST_F(JobCoreTest, ALiveRankCannotBeTaken) {
  Attach(0);
  const absl::Status status = core_.Open(At(1), 0, 99);
  EXPECT_EQ(wire::ReasonOf(status), v1::ERROR_REASON_RANK_TAKEN);
  EXPECT_FALSE(core_.Open(At(1), 2, 99).ok());
}

TEST_F(JobCoreTest, StaleGenerationChangesNothing) {
  Start();
  Words(core_.Step(At(1), 10, 7, absl::InfiniteFuture(), kGeneration - 1, 1, "h"));
  EXPECT_EQ(wire::ReasonOf(Told(7)), v1::ERROR_REASON_STALE_GENERATION);
  EXPECT_EQ(core_.steps_arrived(), 0U);
}

TEST_F(JobCoreTest, AStepThatJumpsOrFallsBehindIsRefused) {
  Start();
  Apply(1);
  Apply(2);
  for (const uint64_t step : {0U, 1U, 4U}) {
    Words(Step(0, 50 + step, step));
    EXPECT_EQ(wire::ReasonOf(Told(50 + step)), v1::ERROR_REASON_STEP_OUT_OF_ORDER) << step;
  }
  EXPECT_THAT(std::string(Told(54).message()), HasSubstr("last applied is 2, next is 3"));
}

TEST_F(JobCoreTest, AnAppliedStepIsOnlyDeliveredAgain) {
  Start();
  Apply(1);
  EXPECT_THAT(Words(Step(1, 9, 1)), ElementsAre("deliver 11", "reply 9"));
  EXPECT_EQ(core_.last_step(), 1U);
}

TEST_F(JobCoreTest, AFailedStepMayBeSentAgain) {
  Start();
  Words(Step(0, 1, 1));
  Words(Step(1, 2, 1));
  Words(core_.StepDone(At(1), absl::FailedPreconditionError("missing")));
  EXPECT_EQ(Told(1).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(core_.last_step(), 0U);
  Apply(1);
}

TEST_F(JobCoreTest, BrokenStateIsToldToEveryoneFromThenOn) {
  Start();
  Words(Step(0, 1, 1));
  Words(Step(1, 2, 1));
  Words(core_.StepDone(At(1), absl::InternalError("tensor 'w' broke")));
  Words(Step(0, 3, 1));
  EXPECT_EQ(Told(3).code(), absl::StatusCode::kInternal);
  EXPECT_THAT(core_.Describe(), HasSubstr("tensor 'w' broke"));
}

TEST_F(JobCoreTest, DifferentHyperParametersAreRefusedToAll) {
  Start();
  Words(Step(0, 1, 1, 0, "lr 1"));
  EXPECT_THAT(Words(Step(1, 2, 1, 0, "lr 2")), ElementsAre("reply 1", "reply 2"));
  EXPECT_EQ(wire::ReasonOf(Told(1)), v1::ERROR_REASON_HYPER_MISMATCH);
  EXPECT_EQ(wire::ReasonOf(Told(2)), v1::ERROR_REASON_HYPER_MISMATCH);
  Apply(1);
}

TEST_F(JobCoreTest, AMissingWorkerIsNamedAtTheDeadlineAndTheStepMayBeRetried) {
  Start();
  Words(Step(0, 1, 1, /*at=*/10));
  EXPECT_EQ(core_.next_deadline(), At(70));
  EXPECT_THAT(Words(core_.Tick(At(69))), IsEmpty());
  EXPECT_THAT(Words(core_.Tick(At(70))), ElementsAre("reply 1"));
  EXPECT_EQ(wire::ReasonOf(Told(1)), v1::ERROR_REASON_WORKER_MISSING);
  EXPECT_THAT(std::string(Told(1).message()), HasSubstr("step 1 waits for rank 1"));
  Apply(1);
}

class ThreeRanksTest : public JobCoreTest {
 protected:
  ThreeRanksTest() : JobCoreTest({0, 1, 2}) {}
};

TEST_F(ThreeRanksTest, ARankThatWaitedInVainIsNotToBlame) {
  Start();
  Words(Step(0, 1, 1, /*at=*/10));
  Words(Step(2, 2, 1, /*at=*/11));
  Words(core_.Tick(At(70)));
  Words(core_.Tick(At(71)));
  // They gave up one after the other, because of the same one.
  EXPECT_THAT(std::string(Told(1).message()), HasSubstr("waits for rank 1;"));
  EXPECT_THAT(std::string(Told(2).message()), HasSubstr("waits for rank 1;"));
  Words(Step(1, 3, 1, /*at=*/72));
  Words(core_.Tick(At(132)));
  EXPECT_THAT(std::string(Told(3).message()), HasSubstr("waits for ranks 0, 2;"));
}

TEST_F(JobCoreTest, TheCallersOwnDeadlineCountsWhenItIsSooner) {
  Start();
  Words(core_.Step(At(0), 10, 1, At(3), kGeneration, 1, "h"));
  EXPECT_THAT(Words(core_.Tick(At(3))), ElementsAre("reply 1"));
}

TEST_F(JobCoreTest, AMissingRegistrationIsNamed) {
  Attach(0);
  Words(Register(0, 1));
  Words(core_.Tick(At(60)));
  EXPECT_THAT(std::string(Told(1).message()), HasSubstr("plan waits for rank 1"));
}

TEST_F(JobCoreTest, ADeadWorkersArrivalIsWithdrawnUntilItReturns) {
  Start();
  Apply(1);
  Words(Step(1, 3, 2));
  EXPECT_THAT(Words(core_.Gone(At(1), 11)), ElementsAre("reply 3", "drop 11"));
  EXPECT_THAT(Words(Step(0, 4, 2)), IsEmpty());
  EXPECT_THAT(core_.Describe(), HasSubstr("waiting for the return of rank 1"));
  ASSERT_TRUE(core_.Open(At(2), 1, 21).ok());
  EXPECT_THAT(Words(core_.Register(At(2), 21, 5, absl::InfiniteFuture(), "d")),
              ElementsAre("arena 21"));
  Words(core_.ArenaGiven(At(2), 21, absl::OkStatus()));
  EXPECT_THAT(Words(core_.Begin(At(2), 21, 6, absl::InfiniteFuture(), kGeneration, true)),
              ElementsAre("deliver 21", "reply 6"));
  EXPECT_THAT(
      Words(core_.Step(At(3), 21, 7, absl::InfiniteFuture(), kGeneration, 2, "h")),
      ElementsAre("run 2"));
}

TEST_F(JobCoreTest, AReturningWorkerMustBringItsRegistration) {
  Start();
  Words(core_.Gone(At(1), 11));
  ASSERT_TRUE(core_.Open(At(2), 1, 21).ok());
  Words(core_.Register(At(2), 21, 5, absl::InfiniteFuture(), "something else"));
  EXPECT_EQ(wire::ReasonOf(Told(5)), v1::ERROR_REASON_SPEC_MISMATCH);
}

TEST_F(JobCoreTest, ARefusedPlanReachesEveryWaitingRankAndMayBeTriedAgain) {
  for (uint32_t rank : {0U, 1U}) {
    Attach(rank);
    Words(Register(rank, 1 + rank));
  }
  EXPECT_THAT(Words(core_.PlanRefused(At(1), {0, 1}, wire::InvalidField("hole"))),
              ElementsAre("reply 1", "reply 2"));
  EXPECT_EQ(Told(2).message(), "hole");
  EXPECT_THAT(Words(Register(0, 3, "better")), ElementsAre("send 10"));
}

TEST_F(JobCoreTest, ARefusalLeavesTheRanksThatItDoesNotAnswerWaiting) {
  for (uint32_t rank : {0U, 1U}) {
    Attach(rank);
    Words(Register(rank, 1 + rank));
  }
  EXPECT_THAT(Words(core_.PlanRefused(At(1), {1}, wire::InvalidField("hole"))),
              ElementsAre("reply 2"));
  EXPECT_THAT(Words(Register(1, 3)), ElementsAre("send 11"));
  EXPECT_THAT(Words(Plan(2)), ElementsAre("arena 10", "arena 11"));
}

TEST_F(JobCoreTest, ARefusedRegistrationIsToldToItsRankOnly) {
  for (uint32_t rank : {0U, 1U}) {
    Attach(rank);
    Words(Register(rank, 1 + rank));
  }
  EXPECT_THAT(Words(core_.RegistrationAnswered(At(1), 10, wire::InvalidField("other shape"))),
              ElementsAre("reply 1"));
  EXPECT_EQ(Told(1).message(), "other shape");
}

TEST_F(JobCoreTest, ARegistrationThatThePlanDoesNotKnowIsRefusedWhenThePlanArrives) {
  for (uint32_t rank : {0U, 1U}) {
    Attach(rank);
    Words(Register(rank, 1 + rank));
    Words(core_.RegistrationAnswered(At(0), 10 + rank, absl::OkStatus()));
  }
  Words(core_.Gone(At(1), 10));
  ASSERT_TRUE(core_.Open(At(1), 0, 20).ok());
  Words(core_.Register(At(1), 20, 3, absl::InfiniteFuture(), "other boxes"));  // not yet sent
  EXPECT_THAT(Words(core_.PlanArrived(At(2), kGeneration, {0, 1})), ElementsAre("reply 3", "arena 11"));
  EXPECT_EQ(wire::ReasonOf(Told(3)), v1::ERROR_REASON_SPEC_MISMATCH);
  EXPECT_THAT(Words(core_.Register(At(3), 20, 4, absl::InfiniteFuture(), "d")),
              ElementsAre("arena 20"));
}

TEST_F(JobCoreTest, AFailedArenaIsToldToItsRankOnly) {
  for (uint32_t rank : {0U, 1U}) {
    Attach(rank);
    Words(Register(rank, 1 + rank));
  }
  Words(Plan(1));
  Words(core_.ArenaGiven(At(1), 10, absl::ResourceExhaustedError("full")));
  Words(core_.ArenaGiven(At(1), 11, absl::OkStatus()));
  EXPECT_EQ(Told(1).message(), "full");
  EXPECT_TRUE(Told(2).ok());
}

TEST_F(JobCoreTest, BeginAndStepOutOfOrderAreRefused) {
  Attach(0);
  Attach(1);
  Words(Register(0, 1));
  Words(Begin(0, 2));
  EXPECT_FALSE(Told(2).ok());
  Words(Register(1, 3));
  Words(Plan(1));
  Words(core_.ArenaGiven(At(1), 10, absl::OkStatus()));
  Words(Step(0, 4, 1));
  EXPECT_EQ(wire::ReasonOf(Told(4)), v1::ERROR_REASON_NOT_READY);
}

TEST_F(JobCoreTest, AWorkerThatCountsOnStateIsToldWhenThereIsNone) {
  Attach(0);
  Attach(1);
  Words(Register(0, 1));
  Words(Register(1, 2));
  Words(Plan(0));
  for (uint32_t rank : {0U, 1U}) Words(core_.ArenaGiven(At(0), 10 + rank, absl::OkStatus()));
  Words(core_.Begin(At(0), 10, 3, absl::InfiniteFuture(), kGeneration, true));
  EXPECT_EQ(wire::ReasonOf(Told(3)), v1::ERROR_REASON_STATE_LOST);
}

TEST_F(JobCoreTest, BadInitialParametersAreToldToAllAndMayBeCorrected) {
  Start();
  JobCore fresh({.job_id = "job", .world_size = 1});
  ASSERT_TRUE(fresh.Open(At(0), 0, 10).ok());
  Words(fresh.Register(At(0), 10, 1, absl::InfiniteFuture(), "d"));
  Words(fresh.RegistrationAnswered(At(0), 10, absl::OkStatus()));
  Words(fresh.PlanArrived(At(0), 1, {0}));
  Words(fresh.ArenaGiven(At(0), 10, absl::OkStatus()));
  Words(fresh.Begin(At(0), 10, 2, absl::InfiniteFuture(), 1, false));
  Words(fresh.Initialized(At(0), wire::InvalidField("NaN in 'w'")));
  EXPECT_EQ(Told(2).message(), "NaN in 'w'");
  EXPECT_THAT(Words(fresh.Begin(At(0), 10, 3, absl::InfiniteFuture(), 1, false)),
              ElementsAre("initialize"));
}

TEST_F(JobCoreTest, TheJobEndsWhenTheLastWorkerCloses) {
  Start();
  EXPECT_THAT(Words(core_.Close(At(1), 10, 8)), ElementsAre("reply 8", "drop 10"));
  EXPECT_THAT(Words(core_.Close(At(1), 11, 9)), ElementsAre("reply 9", "drop 11", "end"));
}

TEST_F(JobCoreTest, ReturningWorkersThatFailBeforeTheyAreReadyDoNotEndTheJob) {
  Start();
  Apply(1);
  Words(core_.Gone(At(1), 10));
  Words(core_.Gone(At(1), 11));
  for (uint32_t rank : {0U, 1U}) {
    ASSERT_TRUE(core_.Open(At(2), rank, 20 + rank).ok());
    Words(core_.Register(At(2), 20 + rank, 5, absl::InfiniteFuture(), "something else"));
  }
  for (uint32_t rank : {0U, 1U}) Words(core_.Close(At(3), 20 + rank, 6 + rank));
  EXPECT_THAT(core_.Describe(), HasSubstr("state of step 1"));
}

TEST_F(JobCoreTest, StateOutlivesDeadWorkersForTheOrphanTimeout) {
  Start();
  Apply(1);
  Words(core_.Gone(At(100), 10));
  EXPECT_THAT(Words(core_.Gone(At(100), 11)), ElementsAre("drop 11"));
  EXPECT_THAT(core_.Describe(), HasSubstr("no worker attached, state of step 1"));
  EXPECT_EQ(core_.next_deadline(), At(1100));
  EXPECT_THAT(Words(core_.Tick(At(1099))), IsEmpty());
  EXPECT_THAT(Words(core_.Tick(At(1100))), ElementsAre("end"));
}

TEST_F(JobCoreTest, AJobWithoutStateEndsWithItsLastWorker) {
  Attach(0);
  Words(Register(0, 1));
  EXPECT_THAT(Words(core_.Gone(At(1), 10)), ElementsAre("reply 1", "drop 10", "end"));
}

TEST_F(JobCoreTest, ANewerRequestReplacesTheOneThatWaits) {
  Start();
  Words(Step(0, 1, 1));
  EXPECT_THAT(Words(Step(0, 2, 1)), ElementsAre("reply 1"));
  EXPECT_EQ(Told(1).code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(Words(Step(1, 3, 1)), ElementsAre("run 1"));
}

TEST_F(JobCoreTest, UnknownSessionsAreTold) {
  Words(core_.Step(At(0), 77, 1, absl::InfiniteFuture(), kGeneration, 1, "h"));
  EXPECT_EQ(wire::ReasonOf(Told(1)), v1::ERROR_REASON_UNKNOWN_SESSION);
  Words(core_.Register(At(0), 77, 2, absl::InfiniteFuture(), "d"));
  EXPECT_EQ(wire::ReasonOf(Told(2)), v1::ERROR_REASON_UNKNOWN_SESSION);
  Words(core_.Close(At(0), 77, 3));
  EXPECT_EQ(wire::ReasonOf(Told(3)), v1::ERROR_REASON_UNKNOWN_SESSION);
}

}  // namespace
}  // namespace dmuon::node
