// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include "daemon/plan/cover.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/daemon/plan/job_builder.h"
#include "wire/error.h"

namespace dmuon::plan {
namespace {

using testing::AllOf;
using testing::HasSubstr;

void ExpectCovered(const v1::JobSpec& job, const Shards& shards) {
  const absl::Status status = ProveCoverage(job, shards);
  EXPECT_TRUE(status.ok()) << status;
}

template <typename Matcher>
void ExpectRefused(const v1::JobSpec& job, const Shards& shards, const Matcher& message) {
  const absl::Status status = ProveCoverage(job, shards);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(wire::ReasonOf(status), v1::ERROR_REASON_COVERAGE);
  EXPECT_THAT(std::string(status.message()), message);
}

TEST(CoverTest, RowsWithEmptyTailRanksCoverTheMatrix) {
  // cases rows 1 and 2: 18 rows on 8 ranks leave two ranks with none.
  JobBuilder builder(8);
  for (int i = 0; i < 32; ++i) builder.Matrix(absl::StrCat("w", i), 18, 2304);
  ExpectCovered(builder.Build(), FullyShard(builder.Build()));
}

TEST(CoverTest, ManyTensorsWithHalfOfTheRanksEmptyAreCovered) {
  // cases row 11
  JobBuilder builder(8);
  for (int i = 0; i < 64; ++i) builder.Elementwise(absl::StrCat("p", i), {4});
  ExpectCovered(builder.Build(), FullyShard(builder.Build()));
}

TEST(CoverTest, RowsNeedNotDivideByTheRanks) {
  // cases row 4: the same matrices on 8 and on 16 ranks.
  for (const uint32_t ranks : {8u, 16u}) {
    const v1::JobSpec job = JobBuilder(ranks).Matrix("a", 72, 32).Matrix("b", 48, 32).Build();
    ExpectCovered(job, FullyShard(job));
  }
}

TEST(CoverTest, GlobalShapeIsNeverGuessedFromLocalRows) {
  // cases row 12: shards of 3, 3, 3, 1 rows are 10 rows, not 12 and not 4.
  const Shards shards = FullyShard(JobBuilder(4).Matrix("w", 10, 2).Build());
  ExpectCovered(JobBuilder(4).Matrix("w", 10, 2).Build(), shards);
  ExpectRefused(JobBuilder(4).Matrix("w", 12, 2).Build(), shards,
                AllOf(HasSubstr("tensor 'w'"), HasSubstr("[10:12, 0:2]")));
}

TEST(CoverTest, ReplicasMayHoldTheSameBoxes) {
  const v1::JobSpec job = JobBuilder(3).Matrix("w", 5, 4).Elementwise("b", {4}).Build();
  ExpectCovered(job, Replicate(job));
  Shards unreduced = Replicate(job);
  for (auto& rank : unreduced) rank[0].reduced = false;
  ExpectCovered(job, unreduced);
}

TEST(CoverTest, HybridShardingIsReplicasOfRows) {
  const v1::JobSpec job = JobBuilder(4).Matrix("w", 5, 4).Build();
  Shards shards = Replicate(job);
  for (size_t rank = 0; rank < 4; ++rank) {
    const wire::Box rows =
        RowsOf(WholeTensor(job.tensors(0)), static_cast<int64_t>(rank % 2), 2);
    shards[rank][0] = {rows, rows, false};
  }
  ExpectCovered(job, shards);
}

TEST(CoverTest, TilesOfTwoDimensionsCoverTheMatrix) {
  const v1::JobSpec job = JobBuilder(4).Matrix("w", 6, 8).Build();
  Shards shards = Replicate(job);
  for (size_t rank = 0; rank < 4; ++rank) {
    wire::Box tile = RowsOf(WholeTensor(job.tensors(0)), static_cast<int64_t>(rank / 2), 2);
    tile.offset[1] = rank % 2 == 0 ? 0 : 4;
    tile.length[1] = 4;
    shards[rank][0] = {tile, tile, true};
  }
  ExpectCovered(job, shards);
  shards[3][0].grad.length[1] = 3;
  ExpectRefused(job, shards, HasSubstr("[3:6, 7:8] of [0:6, 0:8] is submitted by no worker"));
}

TEST(CoverTest, AMissingParameterRangeIsNamed) {
  const v1::JobSpec job = JobBuilder(2).Matrix("a", 6, 4).Matrix("blk.0.w", 6, 4).Build();
  Shards shards = FullyShard(job);
  shards[1][1].param.length[0] = 2;
  ExpectRefused(job, shards,
                AllOf(HasSubstr("tensor 'blk.0.w'"),
                      HasSubstr("[5:6, 0:4] of [0:6, 0:4] is wanted by no worker")));
}

TEST(CoverTest, ParametersMayOverlapAsTheyLike) {
  const v1::JobSpec job = JobBuilder(2).Matrix("w", 6, 4).Build();
  Shards shards = FullyShard(job);
  shards[0][0].param.length[0] = 5;  // rows 0..5 and 3..6
  ExpectCovered(job, shards);
}

TEST(CoverTest, GradientsMustNotOverlapInPart) {
  const v1::JobSpec job = JobBuilder(2).Matrix("w", 6, 4).Build();
  for (const bool reduced : {true, false}) {
    Shards shards = FullyShard(job);
    for (auto& rank : shards) rank[0].reduced = reduced;
    shards[0][0].grad.length[0] = 5;
    ExpectRefused(job, shards,
                  AllOf(HasSubstr("tensor 'w'"), HasSubstr("rank 0 [0:5, 0:4]"),
                        HasSubstr("rank 1 [3:6, 0:4]"), HasSubstr("share [3:5, 0:4]")));
  }
}

TEST(CoverTest, RanksMustAgreeOnReduced) {
  const v1::JobSpec job = JobBuilder(3).Matrix("w", 6, 4).Build();
  Shards shards = Replicate(job);
  shards[2][0].reduced = false;
  ExpectRefused(job, shards,
                HasSubstr("rank 0 says reduced=true, rank 2 says reduced=false"));
}

TEST(CoverTest, ARankThatSubmitsNothingNeedNotAgreeOnReduced) {
  const v1::JobSpec job = JobBuilder(4).Matrix("w", 3, 4).Build();
  Shards shards = FullyShard(job);
  shards[3][0].reduced = false;  // holds no row
  ExpectCovered(job, shards);
}

TEST(CoverTest, TensorsWithoutElementsNeedNoCover) {
  const v1::JobSpec job = JobBuilder(2).Elementwise("none", {0, 4}).Build();
  ExpectCovered(job, FullyShard(job));
}

TEST(CoverTest, AScalarIsCoveredByAnyWorkerThatHoldsIt) {
  const v1::JobSpec job = JobBuilder(2).Elementwise("temperature", {}).Build();
  ExpectCovered(job, Replicate(job));
}

TEST(CoverTest, OrderOfRanksDoesNotMatterToTheProof) {
  // cases row 70: pieces belong to their declared place, whoever holds them.
  const v1::JobSpec job = JobBuilder(4).Matrix("w", 10, 2).Build();
  Shards shards = FullyShard(job);
  std::swap(shards[0], shards[3]);
  std::swap(shards[1], shards[2]);
  ExpectCovered(job, shards);
}

}  // namespace
}  // namespace dmuon::plan
