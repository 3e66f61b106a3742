// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include "daemon/plan/routes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/plan/plan.h"
#include "tests/daemon/plan/job_builder.h"

namespace dmuon::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using wire::Box;

// Ranks 0..n-1, `per_node` on each node, one slot a node.
std::vector<NodeSlots> Cluster(uint32_t nodes, uint32_t per_node) {
  std::vector<NodeSlots> cluster;
  for (uint32_t n = 0; n < nodes; ++n) {
    NodeSlots node{absl::StrCat("node-", n), 1};
    for (uint32_t i = 0; i < per_node; ++i) node.ranks.push_back(n * per_node + i);
    cluster.push_back(node);
  }
  return cluster;
}

struct Routed {
  v1::Plan plan;
  std::vector<v1::Routes> routes;
};

Routed Route(const v1::JobSpec& job, const Shards& shards, const std::vector<NodeSlots>& nodes) {
  Routed routed;
  routed.plan = MakePlan(job, shards, nodes, 1, "test").value();
  routed.routes = MakeRoutes(shards, routed.plan);
  return routed;
}

// "unit box from->to xcopies"
std::vector<std::string> Words(
    const google::protobuf::RepeatedPtrField<v1::Transfer>& transfers) {
  std::vector<std::string> words;
  for (const v1::Transfer& t : transfers) {
    words.push_back(absl::StrCat(t.unit(), " ", wire::FromProto(t.box()).ToString(), " ", t.from(),
                                 "->", t.to(), " x", t.copies()));
  }
  return words;
}

Shards RowShards(const v1::JobSpec& job, int64_t parts, bool reduced) {
  Shards shards(job.world_size());
  for (uint32_t rank = 0; rank < job.world_size(); ++rank) {
    for (const v1::Tensor& tensor : job.tensors()) {
      const Box rows = RowsOf(WholeTensor(tensor), rank % parts, parts);
      shards[rank].push_back({rows, rows, reduced});
    }
  }
  return shards;
}

TEST(RoutesTest, OneNodeHasNone) {
  const v1::JobSpec job = JobBuilder(2).Matrix("w", 4, 4).Build();
  const Routed routed = Route(job, RowShards(job, 2, true), Cluster(1, 2));
  ASSERT_EQ(routed.routes.size(), 1U);
  EXPECT_EQ(routed.routes[0].ByteSizeLong(), 0U);
}

TEST(RoutesTest, ShardsOfOtherNodesGoToTheOwnerAndBack) {
  const v1::JobSpec job = JobBuilder(4).Matrix("w", 8, 4).Build();
  const Routed routed = Route(job, RowShards(job, 4, true), Cluster(2, 2));
  ASSERT_EQ(routed.plan.units(0).owners(0).node(), 0U);
  EXPECT_THAT(Words(routed.routes[0].gradients()),
              ElementsAre("0 [4:6, 0:4] 1->0 x1", "0 [6:8, 0:4] 1->0 x1"));
  EXPECT_THAT(Words(routed.routes[0].loads()),
              ElementsAre("0 [4:6, 0:4] 1->0 x1", "0 [6:8, 0:4] 1->0 x1"));
  EXPECT_THAT(Words(routed.routes[0].publications()),
              ElementsAre("0 [4:6, 0:4] 0->1 x1", "0 [6:8, 0:4] 0->1 x1"));
  EXPECT_EQ(routed.routes[1].SerializeAsString(), routed.routes[0].SerializeAsString());
}

TEST(RoutesTest, AReducedGradientStaysAtHomeWhereTheOwnersNodeHasIt) {
  // Two replicas, one a node: each node has everything.
  const v1::JobSpec job = JobBuilder(4).Matrix("w", 8, 4).Build();
  const Routed routed = Route(job, RowShards(job, 2, true), Cluster(2, 2));
  EXPECT_THAT(Words(routed.routes[0].gradients()), IsEmpty());
  EXPECT_THAT(Words(routed.routes[0].publications()),
              ElementsAre("0 [0:4, 0:4] 0->1 x1", "0 [4:8, 0:4] 0->1 x1"));
}

TEST(RoutesTest, AGradientThatIsNotReducedIsSummedOnEachNodeFirst) {
  // Every worker has the whole gradient: data parallel without an all-reduce.
  const v1::JobSpec job = JobBuilder(4).Matrix("w", 8, 4).Build();
  const Routed routed = Route(job, RowShards(job, 1, false), Cluster(2, 2));
  EXPECT_THAT(Words(routed.routes[0].gradients()), ElementsAre("0 [0:8, 0:4] 1->0 x2"));
  EXPECT_THAT(Words(routed.routes[0].publications()), ElementsAre("0 [0:8, 0:4] 0->1 x1"));
}

TEST(RoutesTest, ReplicasTakeTurnsToSendReducedGradients) {
  // Three replicas on three nodes; the owner is on a fourth one that has no gradient.
  JobBuilder builder(4);
  for (int i = 0; i < 6; ++i) builder.Matrix(absl::StrCat("w", i), 4, 4);
  const v1::JobSpec job = builder.Build();
  Shards shards = RowShards(job, 1, true);
  for (wire::ShardBoxes& shard : shards[3]) shard.grad.length[0] = 0;
  const Routed routed = Route(job, shards, Cluster(4, 1));
  EXPECT_GT(routed.routes[3].gradients_size(), 0);
  for (const v1::Transfer& t : routed.routes[3].gradients()) {
    EXPECT_EQ(t.from(), t.unit() % 3);
    EXPECT_EQ(t.to(), 3U);
  }
}

TEST(RoutesTest, APieceInsideAnotherIsNotSentTwice) {
  const v1::JobSpec job = JobBuilder(3).Matrix("w", 8, 4).Build();
  Shards shards = RowShards(job, 1, false);
  shards[2][0].param.length[0] = 4;
  std::vector<NodeSlots> nodes = {{"a", 1, {0}}, {"b", 1, {1, 2}}};
  const Routed routed = Route(job, shards, nodes);
  EXPECT_THAT(Words(routed.routes[0].publications()), ElementsAre("0 [0:8, 0:4] 0->1 x1"));
}

// Every element of every unit reaches its owner exactly as often as it must, and every node gets
// every element that its workers want, once.
TEST(RoutesTest, RandomShardingsLoseAndDoubleNothing) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    const auto nodes = static_cast<uint32_t>(1 + random() % 4);
    const auto per_node = static_cast<uint32_t>(1 + random() % 3);
    JobBuilder builder(nodes * per_node);
    for (int t = 0; t < 5; ++t) {
      builder.Matrix(absl::StrCat("w", t), 1 + static_cast<int64_t>(random() % 9), 3);
    }
    builder.Elementwise("b", {7});
    const v1::JobSpec job = builder.Build();
    const bool reduced = random() % 2 == 0;
    const Shards shards =
        RowShards(job, 1 + static_cast<int64_t>(random() % (nodes * per_node)), reduced);
    const Routed routed = Route(job, shards, Cluster(nodes, per_node));
    ASSERT_TRUE(ValidatePlan(job, routed.plan, routed.routes[0]).ok());
    std::map<std::pair<uint32_t, uint32_t>, int64_t> wanted;  // (unit, node) -> elements
    for (uint32_t node = 0; node < nodes; ++node) {
      for (const v1::Transfer& t : routed.routes[node].publications()) {
        if (t.to() == node) wanted[{t.unit(), node}] += wire::FromProto(t.box()).elements();
      }
      for (int u = 0; u < routed.plan.units_size(); ++u) {
        const v1::Unit& unit = routed.plan.units(u);
        if (unit.owners(0).node() == node) continue;
        std::set<Box> mine;
        for (uint32_t r = node * per_node; r < (node + 1) * per_node; ++r) {
          const Box box =
              Intersect(shards[r][unit.tensor()].param, wire::FromProto(unit.box()));
          if (!box.empty()) mine.insert(box);
        }
        int64_t elements = 0;
        for (const Box& box : mine) elements += box.elements();
        EXPECT_EQ((wanted[{static_cast<uint32_t>(u), node}]), elements);
      }
    }
  }
}

// The price that ownership was chosen by is what the routes then move.
TEST(RoutesTest, LinksCarryWhatOwnershipWasPricedWith) {
  for (const bool reduced : {true, false}) {
    JobBuilder builder(6);
    for (int i = 0; i < 8; ++i) builder.Matrix(absl::StrCat("w", i), 12, 6);
    builder.Elementwise("b", {30});
    const v1::JobSpec job = builder.Build();
    const Shards shards = RowShards(job, 3, reduced);
    const Routed routed = Route(job, shards, Cluster(3, 2));
    std::vector<const v1::Routes*> routes;
    for (const v1::Routes& of_node : routed.routes) routes.push_back(&of_node);
    uint64_t moved = 0;
    for (const v1::LinkLoad& load : LinkLoads(job, routed.plan, routes)) {
      EXPECT_NE(load.from(), load.to());
      moved += load.gradient_bytes() + load.parameter_bytes();
    }
    int64_t priced = 0;
    const std::vector<uint32_t> rank_nodes(routed.plan.rank_nodes().begin(),
                                           routed.plan.rank_nodes().end());
    for (const v1::Unit& unit : routed.plan.units()) {
      const Unit made{unit.tensor(), wire::FromProto(unit.box())};
      priced += WireBytes(job, shards, rank_nodes, made, 3)[unit.owners(0).node()];
    }
    EXPECT_EQ(static_cast<int64_t>(moved), priced);
    EXPECT_GT(priced, 0);
  }
}

TEST(RoutesTest, BucketsFollowTheUnitsAndKeepTheirSize) {
  JobBuilder builder(1);
  for (int i = 0; i < 40; ++i) builder.Matrix(absl::StrCat("w", i), 1024, 1024);  // 4 MiB each
  builder.Matrix("large", 4096, 4096);                                            // 64 MiB
  const v1::JobSpec job = builder.Build();
  const v1::Plan plan = MakePlan(job, RowShards(job, 1, true), Cluster(1, 1), 1, "").value();
  std::map<uint32_t, int64_t> bytes;
  uint32_t last = 0;
  for (const v1::Unit& unit : plan.units()) {
    EXPECT_TRUE(unit.bucket() == last || unit.bucket() == last + 1);
    last = unit.bucket();
    bytes[last] += 4 * wire::FromProto(unit.box()).elements();
  }
  EXPECT_EQ(bytes.size(), 15U);  // a sixteenth of 224 MiB has room for three of 4 MiB
  for (const auto& [bucket, sum] : bytes) {
    EXPECT_TRUE(sum == int64_t{12} << 20 || bucket + 2 > last) << bucket;
  }
}

TEST(RoutesTest, APlanThatPointsOutsideIsRefusedBeforeItIsAdopted) {
  const v1::JobSpec job = JobBuilder(4).Matrix("w", 8, 4).Build();
  const Routed good = Route(job, RowShards(job, 4, true), Cluster(2, 2));
  EXPECT_TRUE(ValidatePlan(job, good.plan, good.routes[0]).ok());
  Routed bad = good;
  bad.plan.mutable_units(0)->set_tensor(1);
  EXPECT_FALSE(ValidatePlan(job, bad.plan, bad.routes[0]).ok());
  bad = good;
  bad.plan.mutable_units(0)->mutable_box()->set_length(0, 9);
  EXPECT_FALSE(ValidatePlan(job, bad.plan, bad.routes[0]).ok());
  bad = good;
  bad.plan.mutable_rank_nodes()->RemoveLast();
  EXPECT_FALSE(ValidatePlan(job, bad.plan, bad.routes[0]).ok());
  bad = good;
  bad.routes[0].mutable_gradients(0)->set_from(2);
  EXPECT_FALSE(ValidatePlan(job, bad.plan, bad.routes[0]).ok());
  bad = good;
  bad.routes[0].mutable_loads(0)->mutable_box()->set_length(0, 8);
  EXPECT_FALSE(ValidatePlan(job, bad.plan, bad.routes[0]).ok());
}

}  // namespace
}  // namespace dmuon::plan
