// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// How near assignments are to the best there is, in seconds and in moves. Whole models are judged by the lower bound
// where they are too large for the exact judges; the exact judge judges the bound too.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "daemon/plan/bound.h"
#include "daemon/plan/ownership.h"
#include "tests/daemon/plan/few_sizes.h"
#include "tests/daemon/plan/least_moves.h"
#include "tests/support/model_shapes.h"

namespace dmuon::plan {
namespace {

// The quality that is promised, as a factor on the smallest makespan there is.
constexpr double kPromised = 1.02;

Assignment Spread(const std::vector<double>& costs, uint32_t slots) {
  const auto found = Assign({.costs = costs, .slots_per_node = {&slots, 1}});
  EXPECT_TRUE(found.ok()) << found.status();
  return *found;
}

// Moves of the plan for `slots` made from one for other slots, and the fewest there can be.
struct Moves {
  size_t made, least;
};

Moves Move(const std::vector<double>& costs, std::vector<size_t> previous, uint32_t slots) {
  for (size_t& slot : previous) slot = slot < slots ? slot : kNoSlot;
  const auto found = Assign({.costs = costs, .slots_per_node = {&slots, 1}, .previous = previous});
  EXPECT_TRUE(found.ok()) << found.status();
  const double most = Spread(costs, slots).makespan * (1 + kStaySlack);
  EXPECT_LE(found->makespan, most);
  size_t made = 0;
  for (size_t i = 0; i < costs.size(); ++i) {
    made += previous[i] != kNoSlot && previous[i] != found->slot_of[i] ? 1 : 0;
  }
  const auto least = LeastMoves(costs, previous, slots).Of(most);
  EXPECT_TRUE(least.has_value());
  return {made, least.value_or(0)};
}

std::vector<double> CostsOf(const std::vector<Size>& sizes) {
  std::vector<double> costs;
  for (const Size& size : sizes) costs.insert(costs.end(), size.units, size.seconds);
  return costs;
}

TEST(OptimumTest, WholeMatricesOfPublicModelsAreWithinTwoPercentOfTheOptimum) {
  for (const ModelShapes& model : PublicModels()) {
    const std::vector<double> costs = MatrixSeconds(model);
    for (const uint32_t slots : {8u, 64u, 256u}) {
      SCOPED_TRACE(testing::Message() << model.name << " on " << slots << " slots");
      EXPECT_LE(Spread(costs, slots).makespan, kPromised * LowerBound(costs, slots));
    }
  }
}

TEST(OptimumTest, Gpt2OnEightSlotsIsOptimal) {
  // Longest first alone is 1.65 % above.
  const std::vector<double> costs = MatrixSeconds(PublicModels().front());
  ExactMakespan exact({{costs[0], 12}, {costs[1], 12}, {costs[2], 24}});
  EXPECT_NEAR(Spread(costs, 8).makespan / exact.Of(8), 1.0, 1e-3);
}

TEST(OptimumTest, FewSizesAreWithinTwoPercentOfTheOptimumAndTheBoundIsNoHigher) {
  std::mt19937 random(21);
  for (int round = 0; round < 1'000; ++round) {
    SCOPED_TRACE(testing::Message() << "seed 21, round " << round);
    std::vector<Size> sizes(2 + random() % 2);
    for (Size& size : sizes) {
      size = {1e-3 * static_cast<double>(100 + random() % 900), 1 + random() % 8};
    }
    const std::vector<double> costs = CostsOf(sizes);
    const auto slots = static_cast<uint32_t>(2 + random() % 7);
    const double best = ExactMakespan(sizes).Of(slots);
    EXPECT_LE(Spread(costs, slots).makespan, kPromised * best);
    EXPECT_LE(LowerBound(costs, slots), best * (1 + 1e-9));
  }
}

TEST(OptimumTest, TheBoundSeesThatUnitsAreWhole) {
  const std::vector<double> equal(72, 1.0);
  EXPECT_DOUBLE_EQ(LowerBound(equal, 64), 2.0);
  EXPECT_DOUBLE_EQ(LowerBound(equal, 72), 1.0);
  EXPECT_DOUBLE_EQ(LowerBound(std::vector<double>{3, 1}, 1), 4.0);
  EXPECT_DOUBLE_EQ(LowerBound({}, 5), 0.0);
}

constexpr int kChanges = 300;

// A slot comes or goes in problems of few sizes; before, units were where a plan had put them, or anywhere. Counts
// the changes by the units that move too many: none, one, ...
std::vector<int> ChangesByMovesTooMany(bool planned) {
  std::mt19937 random(22);
  std::vector<int> counts(32);
  for (int round = 0; round < kChanges; ++round) {
    SCOPED_TRACE(testing::Message() << "seed 22, round " << round);
    std::vector<double> costs;
    for (size_t k = 2 + random() % 2; k > 0; --k) {
      const size_t count = 1 + random() % 12;
      const double size = 1e-3 * static_cast<double>(100 + random() % 900);
      costs.insert(costs.end(), count, size);
    }
    std::shuffle(costs.begin(), costs.end(), random);
    const auto slots = static_cast<uint32_t>(2 + random() % 6);
    const uint32_t before = random() % 2 == 0 ? slots + 1 : slots - 1;
    std::vector<size_t> previous = Spread(costs, before).slot_of;
    if (!planned) {
      for (size_t& slot : previous) slot = random() % before;
    }
    const Moves moves = Move(costs, previous, slots);
    EXPECT_GE(moves.made, moves.least);
    ++counts.at(moves.made - moves.least);
  }
  return counts;
}

TEST(OptimumTest, ASlotMoreOrLessMovesTheFewestUnitsInNineteenCasesOfTwentyAndHardlyEverTwoTooMany) {
  const std::vector<int> changes = ChangesByMovesTooMany(true);
  EXPECT_GE(changes[0], kChanges * 95 / 100);
  EXPECT_GE(changes[0] + changes[1], kChanges * 99 / 100);
}

TEST(OptimumTest, SoItDoesFromAnywhereButForThreeTooMany) {
  const std::vector<int> changes = ChangesByMovesTooMany(false);
  EXPECT_GE(changes[0], kChanges * 95 / 100);
  EXPECT_GE(changes[0] + changes[1] + changes[2], kChanges * 99 / 100);
}

TEST(OptimumTest, ANodeMoreOrLessMovesAtMostOneMatrixOfAModelWithFewShapesTooMany) {
  for (const ModelShapes& model : PublicModels()) {
    if (model.layer.size() > 4) continue;  // for the exact judge
    const std::vector<double> costs = MatrixSeconds(model);
    for (const uint32_t slots : {1u, 8u, 32u}) {
      SCOPED_TRACE(testing::Message() << model.name << ", " << slots << " slots a node");
      const Moves left = Move(costs, Spread(costs, 8 * slots).slot_of, 7 * slots);
      EXPECT_LE(left.made, left.least + 1);
      const Moves joined = Move(costs, Spread(costs, 7 * slots).slot_of, 8 * slots);
      EXPECT_LE(joined.made, joined.least + 1);
    }
  }
}

TEST(OptimumTest, TheJudgeOfMovesCountsWhatLeavesItsSlot) {
  const std::vector<double> costs = {3, 3, 2, 2, 2};
  const auto least = [&costs](const std::vector<size_t>& previous, double most) {
    return LeastMoves(costs, previous, 2).Of(most);
  };
  EXPECT_EQ(least({0, 0, 1, 1, 1}, 6.0), 0u);
  EXPECT_EQ(least({0, 0, 0, 1, 1}, 6.0), 1u);
  EXPECT_EQ(least({0, 1, 0, 1, 1}, 6.0), 2u);
  EXPECT_EQ(least({0, 1, 0, 1, 1}, 7.0), 0u);
  EXPECT_EQ(least({kNoSlot, 0, 0, 1, 1}, 6.0), 1u);
  EXPECT_EQ(least({0, 0, 1, 1, 1}, 5.9), std::nullopt);
}

}  // namespace
}  // namespace dmuon::plan
