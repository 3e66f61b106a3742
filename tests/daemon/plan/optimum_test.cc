// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// How near assignments are to the best there is. Whole models are judged by the lower bound, small
// problems exactly; the exact judge judges the bound too.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "daemon/plan/bound.h"
#include "daemon/plan/ownership.h"
#include "tests/daemon/plan/few_sizes.h"
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

}  // namespace
}  // namespace dmuon::plan
