// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// How tensors are seen as matrices: whatever a matrix is fused with, wherever its rows lie and however the tensor
// is sharded, its bits are those of the matrix alone.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/daemon/node/exact_run.h"
#include "tests/daemon/node/test_node.h"

namespace dmuon::node {
namespace {

constexpr uint64_t kSteps = 3;

// An element's matrix, by number over the job, and its place in that.
using Place = std::pair<int64_t, int64_t>;

// By tensor and element: found row by row, as tensor.proto says it.
std::vector<std::vector<Place>> PlacesOf(const TestJob& job) {
  std::vector<std::vector<Place>> places;
  int64_t matrices = 0;
  for (const v1::Tensor& tensor : job.spec.tensors()) {
    const int rows_at = tensor.view() == v1::VIEW_EXPERTS ? tensor.shape_size() - 2 : 0;
    int64_t stack = 1;
    int64_t cols = 1;
    for (int d = 0; d < rows_at; ++d) stack *= tensor.shape(d);
    for (int d = rows_at + 1; d < tensor.shape_size(); ++d) cols *= tensor.shape(d);
    std::vector<int64_t> blocks(tensor.row_blocks().begin(), tensor.row_blocks().end());
    if (blocks.empty()) blocks.push_back(tensor.shape(rows_at));
    std::vector<Place>& mine = places.emplace_back();
    for (int64_t s = 0; s < stack; ++s, matrices += static_cast<int64_t>(blocks.size())) {
      std::vector<int64_t> next(blocks.size(), 0);  // element, by block
      for (int64_t row = 0; row < tensor.shape(rows_at);) {
        for (size_t block = 0; block < blocks.size(); ++block) {
          for (int64_t i = 0; i < blocks[block] * cols; ++i) {
            mine.emplace_back(matrices + static_cast<int64_t>(block), next[block]++);
          }
          row += blocks[block];
        }
      }
    }
  }
  return places;
}

// Matrix 1 never has a gradient.
float GradientAt(const Place& place, uint64_t step) {
  return place.first == 1 ? 0.0F : Exact(static_cast<size_t>(place.first), place.second, step);
}

using Columns = std::vector<std::vector<float>>;  // elements by matrix

// The workers' parameters, matrix by matrix.
Columns MatricesOf(TestRun& run, const TestJob& job, const Shards& shards) {
  std::map<Place, float> values;
  const auto places = PlacesOf(job);
  for (size_t rank = 0; rank < run.size(); ++rank) {
    for (size_t t = 0; t < places.size(); ++t) {
      const std::span<float> piece = run[rank].param(t);
      wire::ForEachRun(Whole(job.spec.tensors(static_cast<int>(t))), shards[rank][t].param, [&](const wire::Run& r) {
        for (int64_t i = 0; i < r.count; ++i) {
          values[places[t][static_cast<size_t>(r.a + i)]] = piece[static_cast<size_t>(r.b + i)];
        }
      });
    }
  }
  Columns matrices;
  for (const auto& [place, value] : values) {
    matrices.resize(static_cast<size_t>(place.first) + 1);
    matrices.back().push_back(value);
  }
  return matrices;
}

struct Outcome {
  Columns matrices;
  uint64_t calls = 0;  // of all nodes
};

Outcome Train(std::vector<Engine*> engines, const TestJob& job, const Shards& shards) {
  const auto places = PlacesOf(job);
  TestRun run(engines, job);
  EXPECT_TRUE(run.Start(shards, [&](size_t t, int64_t i) {
    const Place& place = places[t][static_cast<size_t>(i)];
    return TestRun::Param(static_cast<size_t>(place.first), place.second);
  }).ok());
  Outcome outcome;
  for (uint64_t step = 1; step <= kSteps; ++step) {
    for (size_t rank = 0; rank < run.size(); ++rank) {
      run[rank].FillAndSubmit(step, [&](size_t t, int64_t i, uint64_t s) {
        return GradientAt(places[t][static_cast<size_t>(i)], s);
      });
    }
    std::map<Engine*, uint64_t> calls;
    const auto answers = run.StepAsSubmitted(step);
    for (size_t rank = 0; rank < answers.size(); ++rank) {
      EXPECT_TRUE(answers[rank].ok()) << answers[rank].status();
      if (answers[rank].ok()) calls[engines[rank]] = answers[rank]->newton_schulz_calls();
    }
    outcome.calls = 0;
    for (const auto& [engine, count] : calls) outcome.calls += count;
  }
  outcome.matrices = MatricesOf(run, job, shards);
  return outcome;
}

Outcome Train(const TestJob& job, const Shards& shards) {
  TestNode node(TwoSlots());
  return Train(std::vector<Engine*>(job.spec.world_size(), &node.engine()), job, shards);
}
Outcome Train(const TestJob& job) { return Train(job, Rows(job, job.spec.world_size(), true)); }

void AddView(TestJob& job, const std::vector<int64_t>& shape, v1::View view,
                    const std::vector<int64_t>& blocks = {}, int64_t repeats = 1) {
  v1::Tensor* tensor = job.Add(absl::StrCat("t", job.spec.tensors_size()), shape);
  tensor->set_view(view);
  tensor->mutable_row_blocks()->Assign(blocks.begin(), blocks.end());
  tensor->set_row_repeats(repeats);
}

TestJob JobOf(v1::Variant variant, uint32_t world_size = 1) {
  TestJob job("views", world_size);
  *job.spec.mutable_groups(0)->mutable_muon() = {};
  job.spec.mutable_groups(0)->mutable_muon()->set_variant(variant);
  job.spec.set_max_grad_norm(1.0);
  return job;
}

class ViewsTest : public testing::TestWithParam<v1::Variant> {};

// cases row 59: grouped query attention of 8 query heads, 2 key and value heads, 16 rows each.
TEST_P(ViewsTest, InterleavedBlocksHaveTheBitsOfSectionedOnes) {
  TestJob sectioned = JobOf(GetParam());
  AddView(sectioned, {192, 20}, v1::VIEW_UNSPECIFIED, {128, 32, 32});
  TestJob interleaved = JobOf(GetParam());
  AddView(interleaved, {192, 20}, v1::VIEW_UNSPECIFIED, {64, 16, 16}, 2);
  const Outcome expected = Train(sectioned);
  const Outcome outcome = Train(interleaved);
  EXPECT_EQ(outcome.matrices, expected.matrices);
  EXPECT_EQ(outcome.calls, 3 * kSteps);
  EXPECT_EQ(expected.calls, 3 * kSteps);
}

TEST_P(ViewsTest, AStackIsItsMatricesOneByOne) {
  TestJob stack = JobOf(GetParam());
  AddView(stack, {3, 5, 8}, v1::VIEW_EXPERTS);
  AddView(stack, {2, 1, 9, 4}, v1::VIEW_EXPERTS);
  AddView(stack, {2, 6, 7}, v1::VIEW_EXPERTS, {1, 1}, 3);  // gate and up, row by row
  TestJob one_by_one = JobOf(GetParam());
  for (int i = 0; i < 3; ++i) AddView(one_by_one, {5, 8}, v1::VIEW_UNSPECIFIED);
  for (int i = 0; i < 2; ++i) AddView(one_by_one, {9, 4}, v1::VIEW_UNSPECIFIED);
  for (int i = 0; i < 4; ++i) AddView(one_by_one, {3, 7}, v1::VIEW_UNSPECIFIED);
  const Outcome outcome = Train(stack);
  EXPECT_EQ(outcome.matrices, Train(one_by_one).matrices);
  EXPECT_EQ(outcome.calls, 9 * kSteps);
}

std::vector<v1::Variant> Variants() {
  std::vector<v1::Variant> variants;
  for (int i = v1::Variant_MIN + 1; i <= v1::Variant_MAX; ++i) {
    if (v1::Variant_IsValid(i)) variants.push_back(static_cast<v1::Variant>(i));
  }
  return variants;
}
INSTANTIATE_TEST_SUITE_P(Family, ViewsTest, testing::ValuesIn(Variants()),
                         [](const auto& variant) { return v1::Variant_Name(variant.param); });

// All views in one job.
TestJob AllViews(uint32_t world_size) {
  TestJob job = JobOf(v1::VARIANT_NORMUON, world_size);
  AddView(job, {24, 6}, v1::VIEW_UNSPECIFIED, {4, 1, 1}, 4);
  AddView(job, {14, 6}, v1::VIEW_UNSPECIFIED, {1, 1}, 7);
  AddView(job, {10, 6}, v1::VIEW_UNSPECIFIED, {6, 2, 2});
  AddView(job, {5, 6, 4}, v1::VIEW_EXPERTS);
  AddView(job, {3, 6, 4}, v1::VIEW_EXPERTS, {2, 1}, 2);
  AddView(job, {6, 4, 3}, v1::VIEW_FLATTEN);
  return job;
}

Shards ColumnsOf(const TestJob& job) {
  Shards shards = Rows(job, 1, true);
  const auto parts = static_cast<int64_t>(shards.size());
  for (int64_t rank = 0; rank < parts; ++rank) {
    for (wire::ShardBoxes& shard : shards[static_cast<size_t>(rank)]) {
      const int64_t length = shard.grad.length[1];
      shard.grad.offset[1] = length * rank / parts;
      shard.grad.length[1] = length * (rank + 1) / parts - shard.grad.offset[1];
      shard.param = shard.grad;
    }
  }
  return shards;
}

// cases row 55
TEST(ViewsShardingTest, TheUpdateIsTheSameForAnySharding) {
  const Columns expected = Train(AllViews(1)).matrices;
  for (const uint32_t workers : {2U, 4U, 16U}) EXPECT_EQ(Train(AllViews(workers)).matrices, expected) << workers;
  for (const uint32_t workers : {2U, 5U}) {
    const TestJob job = AllViews(workers);
    EXPECT_EQ(Train(job, ColumnsOf(job)).matrices, expected) << workers << " columns";
  }
}

TEST(ViewsShardingTest, UnreducedGradientsOfReplicasAreAveragedInPlace) {
  // All replicas submit the same, so that the mean of 2 is exact.
  const TestJob job = AllViews(4);
  EXPECT_EQ(Train(job, Rows(job, 2, false)).matrices, Train(AllViews(1)).matrices);
}

TEST(ViewsShardingTest, NodesExchangeWhatIsInterleavedAsAnythingElse) {
  const Outcome expected = Train(AllViews(1));
  for (const bool reduced : {true, false}) {
    TestCluster cluster(2, TwoSlots());
    const TestJob job = AllViews(4);
    const Outcome outcome = Train({&cluster.engine(0), &cluster.engine(0), &cluster.engine(1), &cluster.engine(1)}, job,
                                  Rows(job, reduced ? 4 : 2, reduced));
    EXPECT_EQ(outcome.matrices, expected.matrices);
    EXPECT_EQ(outcome.calls, expected.calls);
  }
}

TEST(ViewsShardingTest, AnExpertWithoutTokensOnlyDecays) {
  TestJob job = JobOf(v1::VARIANT_MUON);
  AddView(job, {3, 4, 6}, v1::VIEW_EXPERTS);
  const Columns matrices = Train(job).matrices;
  for (size_t i = 0; i < 24; ++i) {
    const float before = TestRun::Param(1, static_cast<int64_t>(i));
    EXPECT_FLOAT_EQ(matrices[1][i], before * std::pow(1.0F - 0.1F * 0.1F, static_cast<float>(kSteps)));
    EXPECT_TRUE(std::isfinite(matrices[0][i]) && std::isfinite(matrices[2][i]));
  }
}

}  // namespace
}  // namespace dmuon::node
