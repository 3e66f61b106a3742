// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Each invariant can fail: a fault of the program that is built into the model is found by the one that is meant to.

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/sim/plants.h"
#include "tests/sim/simulation.h"

namespace dmuon::sim {
namespace {

constexpr uint64_t kFirstSeed = 1;
constexpr uint64_t kSchedules = 2'000;  // at most, until it is found

// The first seed at which `plant` breaks its invariant; 0: none.
uint64_t SeedThatCatches(const PlantInfo& info) {
  SimOptions options;
  options.plant = info.plant;
  for (uint64_t seed = kFirstSeed; seed < kFirstSeed + kSchedules; ++seed) {
    const SimResult result = RunSchedule(seed, options);
    const bool caught = std::any_of(result.violations.begin(), result.violations.end(), [&](const Violation& violation) {
      return violation.invariant == info.invariant;
    });
    if (caught) return seed;
  }
  return 0;
}

uint64_t SeedThatCatches(absl::string_view name) {
  for (const PlantInfo& info : Plants()) {
    if (info.name == name) return SeedThatCatches(info);
  }
  ADD_FAILURE() << "no plant " << name;
  return 0;
}

TEST(PlantedFaultTest, AForgottenReachedStepIsCommittedTwice) { EXPECT_NE(SeedThatCatches("forgotten-reached"), 0U); }

TEST(PlantedFaultTest, AJumpedStepLeavesAGap) { EXPECT_NE(SeedThatCatches("jumped-step"), 0U); }

TEST(PlantedFaultTest, ALostFsyncReusesAGeneration) { EXPECT_NE(SeedThatCatches("lost-fsync"), 0U); }

TEST(PlantedFaultTest, AFormerProcessThatIsBelievedIsNotFenced) { EXPECT_NE(SeedThatCatches("stale-connection"), 0U); }

TEST(PlantedFaultTest, ANodeThatDecidesAloneTakesAMessageForAnother) { EXPECT_NE(SeedThatCatches("own-verdict"), 0U); }

TEST(PlantedFaultTest, AStaleDeliveryGivesWorkersDifferentWeights) { EXPECT_NE(SeedThatCatches("stale-delivery"), 0U); }

TEST(PlantedFaultTest, ASilentRestartLosesWhatWasAcknowledged) { EXPECT_NE(SeedThatCatches("silent-restart"), 0U); }

TEST(PlantedFaultTest, AnEagerUpdateChangesStateInAnAbortedStep) { EXPECT_NE(SeedThatCatches("eager-update"), 0U); }

TEST(PlantedFaultTest, TwoOwnersOfAUnitAreSeen) { EXPECT_NE(SeedThatCatches("two-owners"), 0U); }

TEST(PlantedFaultTest, AStepThatIsNeverAnsweredStaysUnknown) { EXPECT_NE(SeedThatCatches("unanswered-step"), 0U); }

TEST(PlantedFaultTest, ANodeThatDoesNotReconnectMakesNoProgress) { EXPECT_NE(SeedThatCatches("no-reconnect"), 0U); }

TEST(PlantedFaultTest, HalfACheckpointIsNone) { EXPECT_NE(SeedThatCatches("half-checkpoint"), 0U); }

TEST(PlantedFaultTest, ALeakedSessionIsLeftOver) { EXPECT_NE(SeedThatCatches("leaked-session"), 0U); }

TEST(PlantedFaultTest, ADoubledGradientIsNotWhatOneProcessComputes) {
  EXPECT_NE(SeedThatCatches("doubled-gradient"), 0U);
}

TEST(PlantedFaultTest, AnUnawaitedCopyUndoesWhatAWorkerWasToldOf) { EXPECT_NE(SeedThatCatches("unawaited-copy"), 0U); }

TEST(PlantedFaultTest, AnUnkeptCopyUndoesMoreThanOneStep) { EXPECT_NE(SeedThatCatches("unkept-copy"), 0U); }

TEST(PlantedFaultTest, ASilentRollbackIsHeardOfByNobody) { EXPECT_NE(SeedThatCatches("silent-rollback"), 0U); }

TEST(PlantedFaultTest, ANodeThatStaysAtItsStepIsNotWhereTheOthersAre) { EXPECT_NE(SeedThatCatches("own-step"), 0U); }

TEST(PlantedFaultTest, ForgottenCopiesLoseStateThatIsThere) { EXPECT_NE(SeedThatCatches("forgotten-copies"), 0U); }

TEST(PlantedFaultTest, AFreshStartMixesStates) { EXPECT_NE(SeedThatCatches("fresh-start"), 0U); }

TEST(PlantedFaultTest, AStaleCopyIsNotTheStateThatWasAgreedOn) { EXPECT_NE(SeedThatCatches("stale-copy"), 0U); }

TEST(PlantedFaultTest, ANodeThatRecoversOnceOnlyMakesNoProgress) { EXPECT_NE(SeedThatCatches("deaf-recovery"), 0U); }

TEST(PlantedFaultTest, ANodeThatIsNeverReadyKeepsWhatItIsToGiveAway) { EXPECT_NE(SeedThatCatches("unready-node"), 0U); }

TEST(PlantedFaultTest, WhoStaysDoesStepsUnderAnotherPlan) { EXPECT_NE(SeedThatCatches("kept-plan"), 0U); }

TEST(PlantedFaultTest, AValueThatIsLostOnItsWayIsNotTheFormerOwners) { EXPECT_NE(SeedThatCatches("lost-in-handover"), 0U); }

TEST(ScheduleTest, EveryPlantHasATest) { EXPECT_EQ(Plants().size(), 25U); }

TEST(ScheduleTest, ASeedIsASchedule) {
  for (const uint64_t seed : {3U, 17U, 404U}) {
    const SimResult first = RunSchedule(seed, {});
    const SimResult again = RunSchedule(seed, {});
    EXPECT_EQ(first.events, again.events) << "seed " << seed;
    EXPECT_EQ(first.time, again.time) << "seed " << seed;
    EXPECT_EQ(first.violations, again.violations) << "seed " << seed;
  }
}

TEST(ScheduleTest, WithoutFaultsAJobStartsOnceAndEndsInOrder) {
  SimOptions options;
  options.menu = *FaultMenu::Parse("none");
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    const SimResult result = RunSchedule(seed, options);
    EXPECT_TRUE(result.violations.empty()) << "seed " << seed << ": " << result.violations.front().what;
    EXPECT_EQ(result.starts, 1U) << "seed " << seed;
    EXPECT_LT(result.time, absl::Seconds(5)) << "seed " << seed;
  }
}

// Each was open once: see README.md, "Found by it".
TEST(ScheduleTest, WhatFreshSchedulesHaveFoundStaysMended) {
  const std::vector<uint64_t> seeds = {1686061101016441, 1686061101020224, 3219694394003040, 3219694394010936, 3219694394022070,
                                       3219694394022727, 352687126023312,  352687126038008,  777003422,        777004570,
                                       777005113,        3510456545000550, 2139492458039995};
  for (const uint64_t seed : seeds) {
    const SimResult result = RunSchedule(seed, {});
    EXPECT_TRUE(result.violations.empty()) << "seed " << seed << ": " << result.violations.front().what;
  }
}

TEST(FaultMenuTest, AnUnknownFaultIsNamed) {
  EXPECT_EQ(FaultMenu::Parse("loss,rain").status().message(),
            "--faults: \"rain\" is none of loss, delay, crash, freeze, partition, disk, drain, mistakes");
  const auto menu = FaultMenu::Parse("crash,disk");
  ASSERT_TRUE(menu.ok());
  EXPECT_TRUE(menu->crash && menu->disk);
  EXPECT_FALSE(menu->loss || menu->freeze || menu->partition);
}

}  // namespace
}  // namespace dmuon::sim
