// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include "daemon/plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/plan/cost.h"
#include "daemon/plan/units.h"
#include "tests/daemon/plan/job_builder.h"
#include "tests/support/many_tensors.h"
#include "wire/error.h"

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

v1::Plan PlanOf(const v1::JobSpec& job, const Shards& shards, std::vector<NodeSlots> nodes,
                uint64_t generation = 1, const std::string& reason = "test") {
  auto plan = MakePlan(job, shards, nodes, generation, reason);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : v1::Plan();
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

TEST(CostTest, DependsOnTheShorterSideAndGrowsWithEverySide) {
  const v1::JobSpec job = JobBuilder(1).Build();
  const v1::Group& muon = job.groups(kMuonGroup);
  const v1::Group& adamw = job.groups(kAdamwGroup);
  const auto price = [](const v1::Group& group, int64_t rows, int64_t cols) {
    return UnitSeconds(group, wire::Box{2, {}, {rows, cols}});
  };
  EXPECT_DOUBLE_EQ(price(muon, 64, 256), price(muon, 256, 64));
  EXPECT_GT(price(muon, 128, 256), price(muon, 64, 256));
  EXPECT_GT(price(muon, 512, 512), price(adamw, 512, 512));
  EXPECT_GT(price(adamw, 1, 1), 0.0);
}

TEST(CostTest, AConvolutionKernelIsPricedFlattened) {
  // cases rows 50 and 51: rows x everything else, not the kernel's own dimensions.
  const v1::JobSpec job = JobBuilder(1).Build();
  EXPECT_DOUBLE_EQ(UnitSeconds(job.groups(kMuonGroup), wire::Box{4, {}, {256, 16, 3, 3}}),
                   UnitSeconds(job.groups(kMuonGroup), wire::Box{2, {}, {256, 144}}));
}

TEST(PlanTest, EveryUnitHasExactlyOneOwnerAmongTheSlots) {
  // cases row 68: 72 matrices on 7 slots.
  JobBuilder builder(7);
  for (int i = 0; i < 72; ++i) builder.Matrix(absl::StrCat("w", i), 16, 16);
  const v1::JobSpec job = builder.Build();
  const v1::Plan plan = PlanOf(job, FullyShard(job), {{"a", 3, {0, 1, 2}}, {"b", 4, {3, 4, 5, 6}}});
  ASSERT_EQ(plan.units_size(), 72);
  std::set<std::tuple<uint32_t, uint32_t>> used;
  for (int i = 0; i < plan.units_size(); ++i) {
    EXPECT_EQ(plan.units(i).tensor(), static_cast<uint32_t>(i));
    ASSERT_EQ(plan.units(i).owners_size(), 1);
    const v1::Slot& owner = plan.units(i).owners(0);
    ASSERT_LT(owner.node(), 2u);
    ASSERT_LT(owner.slot(), plan.slots(static_cast<int>(owner.node())));
    used.emplace(owner.node(), owner.slot());
  }
  EXPECT_EQ(used.size(), 7u);
}

// Seconds and bytes part ways: the matrix is dear to compute, the embeddings are dear to hold.
v1::JobSpec MatrixAndEmbeddings() {
  JobBuilder builder(1);
  builder.Matrix("w", 1024, 1024);
  for (int i = 0; i < 8; ++i) builder.Elementwise(absl::StrCat("embedding", i), {1024, 512});
  return builder.Build();
}

int64_t LargestSlotBytes(const v1::JobSpec& job, const v1::Plan& plan) {
  std::map<uint32_t, int64_t> bytes;  // by slot
  int64_t largest = 0;
  for (const v1::Unit& unit : plan.units()) {
    const uint32_t group = job.tensors(static_cast<int>(unit.tensor())).group();
    int64_t& slot = bytes[unit.owners(0).slot()];
    slot += UnitBytes(job.groups(static_cast<int>(group)), wire::FromProto(unit.box()));
    largest = std::max(largest, slot);
  }
  return largest;
}

TEST(PlanTest, NoSlotHoldsMoreThanItsPartOfTheNodesMemory) {
  const v1::JobSpec job = MatrixAndEmbeddings();
  const Shards shards = Replicate(job);
  constexpr int64_t kMatrix = 12 << 20;  // 2^20 elements: weight, gradient, momentum
  constexpr int64_t kEmbedding = 8 << 20;
  constexpr uint64_t kArena = 8 * 5 << 20;
  const auto largest = [&](int64_t slot_bytes) {
    const uint64_t memory = kArena + 2 * static_cast<uint64_t>(slot_bytes);
    return LargestSlotBytes(job, PlanOf(job, shards, {{"a", 2, {0}, memory}}));
  };
  const int64_t free = LargestSlotBytes(job, PlanOf(job, shards, {{"a", 2, {0}}}));
  EXPECT_EQ(free, 8 * kEmbedding);
  EXPECT_EQ(largest(free), free);
  EXPECT_EQ(largest(free - 1), 7 * kEmbedding);
  EXPECT_EQ(largest(5 * kEmbedding), 5 * kEmbedding);
  // No plan keeps such a cap: the node judges by what it has altogether.
  EXPECT_EQ(largest(kMatrix - 1), free);
  EXPECT_EQ(LargestSlotBytes(job, PlanOf(job, shards, {{"a", 2, {0}, kArena / 2}})), free);
}

TEST(PlanTest, AJobOfVectorsOnlyIsPlanned) {
  // cases row 71
  const v1::JobSpec job = JobBuilder(2).Elementwise("norm", {8}).Elementwise("bias", {3}).Build();
  EXPECT_EQ(PlanOf(job, FullyShard(job), {{"a", 2}}).units_size(), 4);
}

TEST(PlanTest, OnlyMatricesWithNewtonSchulzHaveAMethodOfIt) {
  v1::JobSpec job = JobBuilder(1).Matrix("w", 64, 96).Elementwise("norm", {8}).Build();
  const v1::Plan plan = PlanOf(job, Replicate(job), {{"a", 1}});
  EXPECT_TRUE(plan.units(0).has_method());
  EXPECT_FALSE(plan.units(1).has_method());
  for (v1::Group& group : *job.mutable_groups()) {
    if (group.has_muon()) group.mutable_muon()->set_variant(v1::VARIANT_NUMUON);
  }
  EXPECT_FALSE(PlanOf(job, Replicate(job), {{"a", 1}}).units(0).has_method());
}

TEST(PlanTest, MakespanIsTheLargestSumOfPricesAndNotBelowTheBound) {
  const v1::JobSpec job = JobBuilder(1)
                              .Matrix("a", 64, 64)
                              .Matrix("b", 32, 128)
                              .Matrix("c", 16, 16)
                              .Elementwise("d", {1000})
                              .Build();
  const v1::Plan plan = PlanOf(job, Replicate(job), {{"a", 2}});
  std::vector<double> loads(2, 0.0);
  for (const v1::Unit& unit : plan.units()) loads.at(unit.owners(0).slot()) += unit.cost_seconds();
  EXPECT_DOUBLE_EQ(plan.makespan_seconds(), std::max(loads[0], loads[1]));
  EXPECT_GE(plan.makespan_seconds(), plan.lower_bound_seconds());
  EXPECT_GT(plan.lower_bound_seconds(), 0.0);
}

TEST(PlanTest, EqualInputsGiveEqualPlansAndDigests) {
  const v1::JobSpec job = JobBuilder(3).Matrix("w", 10, 4).Elementwise("b", {5}).Build();
  const v1::Plan first = PlanOf(job, FullyShard(job), {{"a", 2}});
  const v1::Plan second = PlanOf(job, FullyShard(job), {{"a", 2}});
  EXPECT_EQ(first.SerializeAsString(), second.SerializeAsString());
  EXPECT_EQ(first.digest().size(), 64u);
  EXPECT_EQ(Digest(job, first), first.digest());
}

TEST(PlanTest, DigestLeavesGenerationAndReasonOut) {
  const v1::JobSpec job = JobBuilder(1).Matrix("w", 10, 4).Build();
  const v1::Plan first = PlanOf(job, Replicate(job), {{"a", 2}}, 1, "first");
  const v1::Plan second = PlanOf(job, Replicate(job), {{"a", 2}}, 9, "again");
  EXPECT_EQ(first.digest(), second.digest());
  EXPECT_EQ(second.generation(), 9u);
  EXPECT_EQ(second.reason(), "again");
}

TEST(PlanTest, DigestChangesWithJobNodesSlotsAndUnits) {
  const v1::JobSpec job = JobBuilder(2).Matrix("w", 10, 4).Elementwise("b", {4}).Build();
  v1::JobSpec clipped = job;
  clipped.set_max_grad_norm(1.0);
  std::set<std::string> digests = {
      PlanOf(job, FullyShard(job), {{"a", 2}}).digest(),
      PlanOf(clipped, FullyShard(clipped), {{"a", 2}}).digest(),
      PlanOf(job, FullyShard(job), {{"b", 2}}).digest(),
      PlanOf(job, FullyShard(job), {{"a", 1}}).digest(),
      PlanOf(job, Replicate(job), {{"a", 2}}).digest(),
  };
  EXPECT_EQ(digests.size(), 5u);
}

TEST(PlanTest, AHoleIsRefusedBeforeAnythingIsPlanned) {
  const v1::JobSpec job = JobBuilder(2).Matrix("w", 10, 4).Build();
  Shards shards = FullyShard(job);
  shards[1][0].param.length[0] = 1;
  const auto plan = MakePlan(job, shards, std::vector<NodeSlots>{{"a", 1}}, 1, "");
  EXPECT_EQ(wire::ReasonOf(plan.status()), v1::ERROR_REASON_COVERAGE);
}

TEST(PlanTest, NoSlotIsAnErrorThatCounts) {
  const v1::JobSpec job = JobBuilder(1).Matrix("w", 10, 4).Build();
  const auto plan = MakePlan(job, Replicate(job), {}, 1, "");
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(plan.status().message(),
            "cannot place 1 units of job 'job' on 0 slots; need at least 1");
}

TEST(PlanTest, AHundredThousandTensorsOnEightRanksArePlanned) {
  JobBuilder builder(8);
  for (int i = 0; i < kManyTensors; ++i) builder.Elementwise(absl::StrCat("t", i), {64, 2});
  const v1::JobSpec job = builder.Build();
  const v1::Plan plan = PlanOf(job, FullyShard(job), {{"a", 4}});
  EXPECT_EQ(plan.units_size(), 8 * kManyTensors);
  EXPECT_LE(plan.makespan_seconds(), 1.001 * plan.lower_bound_seconds());
}

TEST(PlanTest, APlanTooLargeForAMessageIsRefusedNamingBothSizes) {
  const v1::JobSpec job = JobBuilder(4).Elementwise("t", {64}).Build();
  const Shards shards = FullyShard(job);
  const std::vector<NodeSlots> nodes = {{"a", 4}};
  const size_t bytes = PlanOf(job, shards, nodes, 1, "").ByteSizeLong();
  EXPECT_TRUE(MakePlan(job, shards, nodes, 1, "", bytes).ok());
  const auto plan = MakePlan(job, shards, nodes, 1, "", bytes - 1);
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(wire::ReasonOf(plan.status()), v1::ERROR_REASON_LIMIT);
  EXPECT_EQ(plan.status().message(), absl::StrCat("the plan of job 'job' has 4 units and ", bytes,
                                                  " bytes; at most ", bytes - 1));
}

}  // namespace
}  // namespace dmuon::plan
