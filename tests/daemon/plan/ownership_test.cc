// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include "daemon/plan/ownership.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <vector>

namespace dmuon::plan {
namespace {

std::vector<double> LoadsOf(const std::vector<double>& costs, const std::vector<size_t>& slot_of,
                            size_t slots) {
  std::vector<double> loads(slots, 0.0);
  for (size_t i = 0; i < costs.size(); ++i) loads.at(slot_of[i]) += costs[i];
  return loads;
}

double MaxLoad(const std::vector<double>& costs, const std::vector<size_t>& slot_of, size_t slots) {
  const std::vector<double> loads = LoadsOf(costs, slot_of, slots);
  return *std::max_element(loads.begin(), loads.end());
}

// Tries every assignment.
double BestByBruteForce(const std::vector<double>& costs, size_t slots) {
  std::vector<size_t> slot_of(costs.size(), 0);
  double best = std::numeric_limits<double>::infinity();
  while (true) {
    best = std::min(best, MaxLoad(costs, slot_of, slots));
    size_t digit = 0;
    while (digit < slot_of.size() && ++slot_of[digit] == slots) slot_of[digit++] = 0;
    if (digit == slot_of.size()) return best;
  }
}

TEST(OwnershipTest, MakespanIsWithinFourThirdsOfTheBestAndReportedTruly) {
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(round);
    const size_t slots = 1 + random() % 3;
    std::vector<double> costs(random() % 9);
    for (double& cost : costs) cost = static_cast<double>(random() % 20);
    const Assignment found = Assign(costs, slots);
    const double best = BestByBruteForce(costs, slots);
    EXPECT_DOUBLE_EQ(found.makespan, MaxLoad(costs, found.slot_of, slots));
    EXPECT_LE(found.makespan, 4.0 / 3.0 * best + 1e-9);
    EXPECT_LE(found.lower_bound, best + 1e-9);
  }
}

TEST(OwnershipTest, LocalSearchRepairsTheWorstCaseOfLongestFirst) {
  // Longest first alone gives 7 here (3+2+2 against 3+2); two swaps' worth of search gives 6.
  const Assignment found = Assign(std::vector<double>{3, 3, 2, 2, 2}, 2);
  EXPECT_DOUBLE_EQ(found.makespan, 6.0);
  EXPECT_DOUBLE_EQ(found.lower_bound, 6.0);
}

TEST(OwnershipTest, SeventyTwoEqualUnitsOnSevenSlotsAreEachOwnedOnceAndEvenly) {
  // cases row 68: a count that the slots do not divide needs no padding.
  const std::vector<double> costs(72, 1.0);
  const Assignment found = Assign(costs, 7);
  ASSERT_EQ(found.slot_of.size(), 72u);
  std::vector<int> units(7, 0);
  for (const size_t slot : found.slot_of) ++units.at(slot);
  std::sort(units.begin(), units.end());
  EXPECT_EQ(units, (std::vector<int>{10, 10, 10, 10, 10, 11, 11}));
}

TEST(OwnershipTest, OneUnitOnSevenSlotsLeavesSixIdle) {
  // cases row 68, second half
  const Assignment found = Assign(std::vector<double>{2.5}, 7);
  EXPECT_EQ(found.slot_of, (std::vector<size_t>{0}));
  EXPECT_DOUBLE_EQ(found.makespan, 2.5);
  EXPECT_DOUBLE_EQ(found.lower_bound, 2.5);
}

TEST(OwnershipTest, NoUnitsIsNoWork) {
  const Assignment found = Assign({}, 3);
  EXPECT_TRUE(found.slot_of.empty());
  EXPECT_DOUBLE_EQ(found.makespan, 0.0);
}

TEST(OwnershipTest, EqualInputsGiveEqualOwners) {
  std::mt19937 random(12);
  std::vector<double> costs(500);
  for (double& cost : costs) cost = 1e-3 * static_cast<double>(random() % 1'000);
  const Assignment first = Assign(costs, 9);
  const Assignment second = Assign(costs, 9);
  EXPECT_EQ(first.slot_of, second.slot_of);
  EXPECT_EQ(first.makespan, second.makespan);
}

TEST(OwnershipTest, ManyUnitsComeCloseToTheLowerBound) {
  std::mt19937 random(13);
  std::vector<double> costs(100'000);
  for (double& cost : costs) cost = 1e-6 * static_cast<double>(1 + random() % 1'000);
  const Assignment found = Assign(costs, 64);
  EXPECT_LE(found.makespan, 1.001 * found.lower_bound);
  EXPECT_GE(found.makespan, found.lower_bound * (1 - 1e-12));
}

TEST(OwnershipTest, ZeroCostsEndTheSearch) {
  const Assignment found = Assign(std::vector<double>(20, 0.0), 4);
  EXPECT_DOUBLE_EQ(found.makespan, 0.0);
}

}  // namespace
}  // namespace dmuon::plan
