// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include "daemon/plan/units.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/plan/plan.h"
#include "tests/daemon/plan/job_builder.h"

namespace dmuon::plan {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> UnitTexts(const v1::JobSpec& job, const Shards& shards) {
  std::vector<std::string> texts;
  for (const Unit& unit : MakeUnits(job, shards)) {
    texts.push_back(job.tensors(static_cast<int>(unit.tensor)).name() + unit.box.ToString());
  }
  return texts;
}

// "16x6", of all units, one after the other.
std::vector<std::string> MatrixTexts(const v1::JobSpec& job) {
  std::vector<std::string> texts;
  for (const Unit& unit : MakeUnits(job, Replicate(job))) {
    for (const auto& [rows, cols] : MatricesOf(job.tensors(static_cast<int>(unit.tensor)), unit.box)) {
      texts.push_back(absl::StrCat(rows, "x", cols));
    }
  }
  return texts;
}

TEST(UnitsTest, AMatrixIsOneUnitHoweverItIsSharded) {
  // cases row 3: a single matrix of its shape on 4 ranks; no work is made up to fill the ranks.
  const v1::JobSpec job = JobBuilder(4).Matrix("w", 96, 64).Build();
  EXPECT_THAT(UnitTexts(job, FullyShard(job)), ElementsAre("w[0:96, 0:64]"));
  EXPECT_THAT(UnitTexts(job, Replicate(job)), ElementsAre("w[0:96, 0:64]"));
}

TEST(UnitsTest, AFusedMatrixIsOneUnitARowBlock) {
  const v1::JobSpec job = JobBuilder(1).Matrix("qkv", 12, 4, {8, 2, 2}).Build();
  EXPECT_THAT(UnitTexts(job, Replicate(job)),
              ElementsAre("qkv[0:8, 0:4]", "qkv[8:10, 0:4]", "qkv[10:12, 0:4]"));
}

TEST(UnitsTest, RowBlocksThatDoNotSumToTheRowsAreRefusedAtRegistration) {
  // cases row 54: gated attention has four blocks, three were declared.
  const v1::JobSpec job = JobBuilder(1).Matrix("qkvg", 4608, 8, {2048, 256, 256}).Build();
  const absl::Status status = wire::ValidateJobSpec(job);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("2560"));
}

TEST(UnitsTest, RowBlocksAreTheSameForAnySharding) {
  // cases row 55: the split is the specification's, never the local rows'.
  std::vector<std::string> first;
  for (const uint32_t ranks : {1u, 64u}) {
    const v1::JobSpec job = JobBuilder(ranks).Matrix("qkv", 6528, 8, {4352, 1088, 1088}).Build();
    if (first.empty()) first = UnitTexts(job, FullyShard(job));
    EXPECT_EQ(UnitTexts(job, FullyShard(job)), first);
  }
  EXPECT_EQ(first.size(), 3u);
}

TEST(UnitsTest, ElementwiseUnitsAreTheWorkersBoxesAndEmptyOnesHaveNone) {
  // cases row 11: nothing is owned of an empty shard.
  const v1::JobSpec job = JobBuilder(8).Elementwise("p", {4}).Build();
  EXPECT_THAT(UnitTexts(job, FullyShard(job)), ElementsAre("p[0:1]", "p[1:2]", "p[2:3]", "p[3:4]"));
}

TEST(UnitsTest, OverlappingElementwiseBoxesMakeOneUnit) {
  const v1::JobSpec job = JobBuilder(2).Elementwise("p", {6}).Build();
  Shards shards = FullyShard(job);
  shards[0][0].param.length[0] = 4;
  EXPECT_THAT(UnitTexts(job, shards), ElementsAre("p[0:6]"));
}

TEST(UnitsTest, TensorsWithoutElementsHaveNoUnit) {
  const v1::JobSpec job = JobBuilder(2).Elementwise("p", {0}).Matrix("w", 0, 4).Build();
  EXPECT_TRUE(MakeUnits(job, FullyShard(job)).empty());
}

TEST(UnitsTest, AFlattenedKernelIsOneMatrixOfRowsAgainstTheRest) {
  // cases rows 50 and 51
  const v1::JobSpec job = JobBuilder(1)
                              .Stack("c2", {256, 16, 3, 3}, v1::VIEW_FLATTEN)
                              .Stack("c2b", {64, 32, 3, 3}, v1::VIEW_FLATTEN)
                              .Stack("c1", {8, 4, 5}, v1::VIEW_FLATTEN)
                              .Stack("c3", {2, 3, 4, 5, 6}, v1::VIEW_FLATTEN)
                              .Build();
  EXPECT_THAT(MatrixTexts(job), ElementsAre("256x144", "64x288", "8x20", "2x360"));
}

TEST(UnitsTest, EveryMatrixOfAStackIsAUnitOfItsOwn) {
  const v1::JobSpec job = JobBuilder(2).Stack("e", {3, 4, 5}, v1::VIEW_EXPERTS).Build();
  EXPECT_THAT(UnitTexts(job, FullyShard(job)), ElementsAre("e[0:1, 0:4, 0:5]", "e[1:2, 0:4, 0:5]", "e[2:3, 0:4, 0:5]"));
  EXPECT_THAT(MatrixTexts(job), ElementsAre("4x5", "4x5", "4x5"));
  const v1::JobSpec deep = JobBuilder(1).Stack("e", {2, 1, 2, 3, 4}, v1::VIEW_EXPERTS).Build();
  EXPECT_THAT(UnitTexts(deep, Replicate(deep)), ElementsAre("e[0:1, 0:1, 0:1, 0:3, 0:4]", "e[0:1, 0:1, 1:2, 0:3, 0:4]",
                                                            "e[1:2, 0:1, 0:1, 0:3, 0:4]", "e[1:2, 0:1, 1:2, 0:3, 0:4]"));
  EXPECT_THAT(MatrixTexts(deep), ElementsAre("3x4", "3x4", "3x4", "3x4"));
}

TEST(UnitsTest, RowBlocksCutEveryMatrixOfAStack) {
  const v1::JobSpec job = JobBuilder(1).Stack("e", {2, 6, 5}, v1::VIEW_EXPERTS, {4, 2}).Build();
  EXPECT_THAT(UnitTexts(job, Replicate(job)), ElementsAre("e[0:1, 0:4, 0:5]", "e[0:1, 4:6, 0:5]", "e[1:2, 0:4, 0:5]",
                                                          "e[1:2, 4:6, 0:5]"));
}

TEST(UnitsTest, InterleavedBlocksAreOneUnitOfSeveralMatrices) {
  const v1::JobSpec job = JobBuilder(4).Matrix("qkv", 24, 5, {4, 1, 1}, 4).Build();
  EXPECT_THAT(UnitTexts(job, FullyShard(job)), ElementsAre("qkv[0:24, 0:5]"));
  EXPECT_THAT(MatrixTexts(job), ElementsAre("16x5", "4x5", "4x5"));
  const v1::JobSpec stack = JobBuilder(1).Stack("e", {2, 6, 5}, v1::VIEW_EXPERTS, {1, 1}, 3).Build();
  EXPECT_THAT(UnitTexts(stack, Replicate(stack)), ElementsAre("e[0:1, 0:6, 0:5]", "e[1:2, 0:6, 0:5]"));
  EXPECT_THAT(MatrixTexts(stack), ElementsAre("3x5", "3x5", "3x5", "3x5"));
  const v1::JobSpec one = JobBuilder(1).Matrix("w", 12, 5, {4}, 3).Build();
  EXPECT_THAT(UnitTexts(one, Replicate(one)), ElementsAre("w[0:12, 0:5]"));
  EXPECT_THAT(MatrixTexts(one), ElementsAre("12x5"));
}

TEST(UnitsTest, ExpertsSpreadOverOwnersAndEveryMatrixHasAMethod) {
  const v1::JobSpec job =
      JobBuilder(1).Stack("e", {8, 16, 16}, v1::VIEW_EXPERTS).Matrix("qkv", 96, 16, {64, 16, 16}, 1).Build();
  const auto plan = MakePlan(job, Replicate(job), std::vector<NodeSlots>{{"a", 4, {0}}}, 1, "test");
  ASSERT_TRUE(plan.ok()) << plan.status();
  std::set<uint32_t> slots;
  for (int e = 0; e < 8; ++e) slots.insert(plan->units(e).owners(0).slot());
  EXPECT_EQ(slots.size(), 4U);
  const v1::JobSpec fused = JobBuilder(1).Matrix("qkv", 96, 32, {4, 1, 1}, 16).Build();
  auto one = MakePlan(fused, Replicate(fused), std::vector<NodeSlots>{{"a", 4, {0}}}, 1, "test");
  ASSERT_TRUE(one.ok());
  ASSERT_EQ(one->units(0).methods_size(), 3);
  EXPECT_EQ(one->units(0).methods(0).form(), v1::FORM_GRAM);  // 64 x 32
  EXPECT_TRUE(ValidatePlan(fused, *one, {}).ok());
  // A plan of another process whose unit is not what the tensor says would reach outside its buffers.
  one->mutable_units(0)->mutable_box()->set_length(0, 95);
  EXPECT_THAT(std::string(ValidatePlan(fused, *one, {}).message()), HasSubstr("unit 0 of tensor 'qkv' has 3 methods"));
  one->mutable_units(0)->mutable_box()->set_length(0, 96);
  one->mutable_units(0)->mutable_methods()->RemoveLast();
  EXPECT_THAT(std::string(ValidatePlan(fused, *one, {}).message()), HasSubstr("has 2 methods"));
}

}  // namespace
}  // namespace dmuon::plan
