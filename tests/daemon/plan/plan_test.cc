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

v1::Plan PlanOf(const v1::JobSpec& job, const Shards& shards, std::vector<NodeSlots> nodes,
                uint64_t generation = 1, const std::string& reason = "test") {
  auto plan = MakePlan(job, shards, nodes, generation, reason);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : v1::Plan();
}

TEST(CostTest, DependsOnTheShorterSideAndGrowsWithEverySide) {
  const v1::JobSpec job = JobBuilder(1).Build();
  const v1::Group& muon = job.groups(kMuonGroup);
  const v1::Group& adamw = job.groups(kAdamwGroup);
  const auto price = [](const v1::Group& group, int64_t rows, int64_t cols) {
    return UnitSeconds(group, {{rows, cols}});
  };
  EXPECT_DOUBLE_EQ(price(muon, 64, 256), price(muon, 256, 64));
  EXPECT_GT(price(muon, 128, 256), price(muon, 64, 256));
  EXPECT_GT(price(muon, 512, 512), price(adamw, 512, 512));
  EXPECT_GT(price(adamw, 1, 1), 0.0);
}

TEST(CostTest, MatricesOfOneUnitArePricedOneByOne) {
  const v1::JobSpec job = JobBuilder(1).Build();
  const v1::Group& muon = job.groups(kMuonGroup);
  const auto price = [&](const std::vector<kernels::MatrixShape>& matrices) {
    return UnitSeconds(muon, matrices) - SlotSpeed().seconds_per_unit;
  };
  EXPECT_DOUBLE_EQ(price({{64, 32}, {16, 32}, {16, 32}}), price({{64, 32}}) + 2 * price({{16, 32}}));
  EXPECT_EQ(UnitBytes(muon, {{64, 32}, {16, 32}, {16, 32}}), UnitBytes(muon, {{96, 32}}));
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
    const v1::Tensor& tensor = job.tensors(static_cast<int>(unit.tensor()));
    int64_t& slot = bytes[unit.owners(0).slot()];
    slot += UnitBytes(job.groups(static_cast<int>(tensor.group())), MatricesOf(tensor, wire::FromProto(unit.box())));
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
  EXPECT_TRUE(MakePlan(job, shards, nodes, 1, "", {}, bytes).ok());
  const auto plan = MakePlan(job, shards, nodes, 1, "", {}, bytes - 1);
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(wire::ReasonOf(plan.status()), v1::ERROR_REASON_LIMIT);
  EXPECT_EQ(plan.status().message(), absl::StrCat("the plan of job 'job' has 4 units and ", bytes,
                                                  " bytes; at most ", bytes - 1));
}

// A job of `layers` matrices and a vector, and its plan on two slots of each of three nodes.
struct Drained {
  explicit Drained(int layers, v1::Replication replication = v1::REPLICATION_NONE) {
    JobBuilder builder(3);
    for (int i = 0; i < layers; ++i) builder.Matrix(absl::StrCat("w", i), 32 + 8 * (i % 3), 32);
    job = builder.Elementwise("b", {9}).Build();
    job.set_replication(replication);
    plan = PlanOf(job, FullyShard(job), nodes);
  }
  v1::Plan After(std::set<size_t> drained, const v1::Plan& former) const {
    std::vector<NodeSlots> now = nodes;
    for (const size_t node : drained) now[node].drained = true;
    auto successor = MakeSuccessor(job, FullyShard(job), former, now, former.generation() + 1, "drained");
    EXPECT_TRUE(successor.ok()) << successor.status();
    return successor.ok() ? *std::move(successor) : v1::Plan();
  }

  const std::vector<NodeSlots> nodes = {{"a", 2, {0}}, {"b", 2, {1}}, {"c", 2, {2}}};
  v1::JobSpec job;
  v1::Plan plan;
};

TEST(SuccessorTest, OnlyOwnersDiffer) {
  const Drained demo(12, v1::REPLICATION_SYNC);
  v1::Plan successor = demo.After({1}, demo.plan);
  EXPECT_TRUE(ValidateSuccessor(demo.plan, successor).ok());
  EXPECT_TRUE(ValidatePlan(demo.job, successor, {}).ok());
  EXPECT_EQ(successor.generation(), 2U);
  EXPECT_EQ(successor.former_generation(), 1U);
  EXPECT_EQ(successor.drained_size(), 1);
  EXPECT_EQ(successor.digest(), Digest(demo.job, successor));
  EXPECT_NE(successor.digest(), demo.plan.digest());
  EXPECT_GE(successor.makespan_seconds(), demo.plan.makespan_seconds());
  for (int i = 0; i < successor.units_size(); ++i) {
    v1::Unit unit = successor.units(i);
    *unit.mutable_owners() = demo.plan.units(i).owners();
    EXPECT_EQ(unit.SerializeAsString(), demo.plan.units(i).SerializeAsString());  // methods and prices among it
  }
  successor.mutable_units(0)->set_bucket(7);
  EXPECT_EQ(wire::ReasonOf(ValidateSuccessor(demo.plan, successor)), v1::ERROR_REASON_INVALID_FIELD);
}

TEST(SuccessorTest, ADrainedNodeOwnsNothingAndOnlyItsUnitsMove) {
  const Drained demo(24);
  const std::vector<uint64_t> before = UnitsByNode(demo.plan);
  const v1::Plan successor = demo.After({1}, demo.plan);
  const std::vector<uint64_t> after = UnitsByNode(successor);
  EXPECT_GT(before[1], 0U);
  EXPECT_EQ(after[1], 0U);
  EXPECT_EQ(after[0] + after[2], before[0] + before[1] + before[2]);
  EXPECT_LE(MovedUnits(demo.plan, successor), before[1] + 2);  // and a few that even the load out
  EXPECT_GE(MovedUnits(demo.plan, successor), before[1]);
}

TEST(SuccessorTest, ANodeThatIsDrainedNoMoreGetsItsPart) {
  const Drained demo(24);
  const v1::Plan drained = demo.After({1}, demo.plan);
  const v1::Plan back = demo.After({}, drained);
  EXPECT_EQ(back.drained_size(), 0);
  EXPECT_GT(UnitsByNode(back)[1], 0U);
  EXPECT_LE(back.makespan_seconds(), 1.03 * demo.plan.makespan_seconds());
  EXPECT_LE(MovedUnits(drained, back), UnitsByNode(back)[1] + 6);
}

TEST(SuccessorTest, WhereAllNodesAreDrainedThereIsNone) {
  const Drained demo(2);
  std::vector<NodeSlots> nodes = demo.nodes;
  for (NodeSlots& node : nodes) node.drained = true;
  const auto successor = MakeSuccessor(demo.job, FullyShard(demo.job), demo.plan, nodes, 2, "");
  EXPECT_EQ(wire::ReasonOf(successor.status()), v1::ERROR_REASON_NOT_READY);
}

}  // namespace
}  // namespace dmuon::plan
