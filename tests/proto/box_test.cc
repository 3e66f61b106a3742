// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "wire/box.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

#include "wire/error.h"

namespace dmuon::wire {
namespace {

using ::testing::HasSubstr;

Box MakeBox(std::vector<int64_t> offset, std::vector<int64_t> length) {
  Box box;
  box.ndim = static_cast<int>(offset.size());
  for (size_t d = 0; d < offset.size(); ++d) {
    box.offset[d] = offset[d];
    box.length[d] = length[d];
  }
  return box;
}

TEST(BoxTest, EmptyTailShardIsAValidBox) {
  const std::vector<int64_t> shape = {18, 4};
  const absl::StatusOr<Box> box = ParseBox(ToProto(MakeBox({18, 0}, {0, 4})), shape, "x");
  ASSERT_TRUE(box.ok()) << box.status();
  EXPECT_TRUE(box->empty());
}

TEST(BoxTest, ReachingPastTheShapeIsRefusedWithNumbers) {
  const std::vector<int64_t> shape = {6, 4};
  const absl::StatusOr<Box> box = ParseBox(ToProto(MakeBox({4, 0}, {3, 4})), shape, "tensor 'w'");
  EXPECT_EQ(box.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(box.status().message()),
              HasSubstr("tensor 'w': offset 4 and length 3 in dimension 0 reach outside 0..6"));
}

TEST(BoxTest, OverflowingOffsetsAreRefused) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  const std::vector<int64_t> shape = {6};
  EXPECT_FALSE(ParseBox(ToProto(MakeBox({kMax}, {kMax})), shape, "x").ok());
  EXPECT_FALSE(ParseBox(ToProto(MakeBox({-1}, {2})), shape, "x").ok());
  EXPECT_FALSE(ParseBox(ToProto(MakeBox({1}, {-1})), shape, "x").ok());
}

TEST(BoxTest, WrongNumberOfDimensionsIsRefused) {
  const std::vector<int64_t> shape = {6, 2};
  const absl::StatusOr<Box> box = ParseBox(ToProto(MakeBox({0}, {6})), shape, "x");
  EXPECT_THAT(std::string(box.status().message()), HasSubstr("2 dimensions"));
}

TEST(BoxTest, ProductsThatOverflowAreRefused) {
  const std::vector<int64_t> factors = {int64_t{1} << 31, int64_t{1} << 31, 4};
  EXPECT_THAT(std::string(CheckedProduct(factors, "tensor 'w'").status().message()),
              HasSubstr("tensor 'w': 2147483648 x 2147483648 x 4 does not fit"));
}

TEST(BoxTest, WholeRowsOfEqualWidthAreOneRun) {
  std::vector<wire::Run> runs;
  ForEachRun(MakeBox({0, 0}, {8, 5}), MakeBox({2, 0}, {3, 5}),
             [&](const wire::Run& run) { runs.push_back(run); });
  ASSERT_EQ(runs.size(), 1U);
  EXPECT_EQ(runs[0].a, 10);
  EXPECT_EQ(runs[0].b, 0);
  EXPECT_EQ(runs[0].count, 15);
}

TEST(BoxTest, ScalarsHaveOneElement) {
  std::vector<wire::Run> runs;
  const Box scalar = WholeBox({});
  EXPECT_EQ(scalar.elements(), 1);
  ForEachRun(scalar, scalar, [&](const wire::Run& run) { runs.push_back(run); });
  ASSERT_EQ(runs.size(), 1U);
  EXPECT_EQ(runs[0].count, 1);
}

// Against a painter that visits every element.
TEST(BoxTest, RunsVisitExactlyTheSharedElements) {
  const unsigned seed = 20261129;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int round = 0; round < 2000; ++round) {
    const int ndim = static_cast<int>(pick(1, 4));
    Box a;
    Box b;
    a.ndim = b.ndim = ndim;
    std::vector<int64_t> shape;
    for (int d = 0; d < ndim; ++d) {
      shape.push_back(pick(1, 5));
      for (Box* box : {&a, &b}) {
        const auto dim = static_cast<size_t>(d);
        box->offset[dim] = pick(0, shape.back());
        box->length[dim] = pick(0, shape.back() - box->offset[dim]);
      }
    }
    // A buffer of box b that holds each element's index in the tensor; copied into one of box a.
    const auto global = [&](const Box& box, int64_t index) {
      int64_t result = 0;
      int64_t scale = 1;
      for (int d = ndim - 1; d >= 0; --d) {
        const auto dim = static_cast<size_t>(d);
        result += (box.offset[dim] + index % box.length[dim]) * scale;
        index /= box.length[dim];
        scale *= shape[dim];
      }
      return result;
    };
    std::vector<int64_t> from_b(static_cast<size_t>(a.elements()), -1);
    ForEachRun(a, b, [&](const wire::Run& run) {
      for (int64_t i = 0; i < run.count; ++i) {
        from_b[static_cast<size_t>(run.a + i)] = global(b, run.b + i);
      }
    });
    int64_t shared = 0;
    for (int64_t i = 0; i < a.elements(); ++i) {
      const int64_t got = from_b[static_cast<size_t>(i)];
      if (got < 0) continue;
      ++shared;
      ASSERT_EQ(got, global(a, i)) << "round " << round;
    }
    ASSERT_EQ(shared, Intersect(a, b).elements()) << "round " << round;
  }
}

}  // namespace
}  // namespace dmuon::wire
