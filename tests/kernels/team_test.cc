// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/team.h"

#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace dmuon::kernels {
namespace {

TEST(TeamTest, EveryIndexIsWorkedOnOnceByATeamOfAnySize) {
  for (const int threads : {1, 2, 3, 7}) {
    BindTeam(threads);
    for (const size_t count : {size_t{0}, size_t{1}, size_t{2}, size_t{1000}}) {
      std::vector<int> calls(count);
      ForEach(count, [&](size_t i) { ++calls[i]; });
      EXPECT_EQ(calls, std::vector<int>(count, 1)) << threads;
    }
  }
  BindTeam(1);
}

TEST(TeamTest, ATeamBelongsToItsThreadAndIsNeverEmpty) {
  BindTeam(3);
  std::thread([] {
    EXPECT_EQ(TeamSize(), 1);
    BindTeam(-5);
    EXPECT_EQ(TeamSize(), 1);
  }).join();
  EXPECT_EQ(TeamSize(), 3);
  BindTeam(1);
}

TEST(TeamTest, WhatTheTeamWroteIsThereWhenItReturns) {
  BindTeam(4);
  std::vector<double> values(64);
  double sum = 0.0;
  for (int round = 0; round < 200; ++round) {
    ForEach(values.size(), [&](size_t i) { values[i] += 1.0; });
    for (const double value : values) sum += value;
  }
  BindTeam(1);
  EXPECT_EQ(sum, 64.0 * 200.0 * 201.0 / 2.0);
}

}  // namespace
}  // namespace dmuon::kernels
