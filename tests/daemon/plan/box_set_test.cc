// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "daemon/plan/box_set.h"

namespace dmuon::plan {
namespace {

using wire::Box;

// The dumb second opinion: counts every element by hand.
class Canvas {
 public:
  explicit Canvas(const Box& whole)
      : whole_(whole), paint_(static_cast<size_t>(whole.elements())) {}

  void Paint(const Box& box) {
    for (size_t i = 0; i < paint_.size(); ++i) {
      if (Contains(box, i)) ++paint_[i];
    }
  }
  [[nodiscard]] int Min() const { return *std::min_element(paint_.begin(), paint_.end()); }
  [[nodiscard]] int Max() const { return *std::max_element(paint_.begin(), paint_.end()); }
  [[nodiscard]] int MaxWithin(const Box& box) const {
    int most = 0;
    for (size_t i = 0; i < paint_.size(); ++i) {
      if (Contains(box, i)) most = std::max(most, paint_[i]);
    }
    return most;
  }

 private:
  [[nodiscard]] bool Contains(const Box& box, size_t index) const {
    int64_t rest = static_cast<int64_t>(index);
    for (int d = whole_.ndim - 1; d >= 0; --d) {
      const auto u = static_cast<size_t>(d);
      const int64_t at = rest % whole_.length[u];
      rest /= whole_.length[u];
      if (at < box.offset[u] || at >= box.offset[u] + box.length[u]) return false;
    }
    return true;
  }

  Box whole_;
  std::vector<int> paint_;
};

class Dice {
 public:
  explicit Dice(uint32_t seed) : engine_(seed) {}
  int64_t Roll(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(engine_() % static_cast<uint64_t>(high - low + 1));
  }
  Box Whole() {
    Box whole;
    whole.ndim = static_cast<int>(Roll(1, 3));
    for (size_t d = 0; d < static_cast<size_t>(whole.ndim); ++d) whole.length[d] = Roll(1, 6);
    return whole;
  }
  Box Inside(const Box& whole) {
    Box box = whole;
    for (size_t d = 0; d < static_cast<size_t>(whole.ndim); ++d) {
      box.offset[d] = Roll(0, whole.length[d]);
      box.length[d] = Roll(0, whole.length[d] - box.offset[d]);
    }
    return box;
  }
  // Cuts `whole` at random until there are about `pieces` disjoint boxes.
  std::vector<Box> Tiles(const Box& whole, size_t pieces) {
    std::vector<Box> tiles = {whole};
    for (size_t tries = 0; tiles.size() < pieces && tries < 50; ++tries) {
      const auto which = static_cast<size_t>(Roll(0, static_cast<int64_t>(tiles.size()) - 1));
      const auto d = static_cast<size_t>(Roll(0, whole.ndim - 1));
      if (tiles[which].length[d] < 2) continue;
      const int64_t at = Roll(1, tiles[which].length[d] - 1);
      Box upper = tiles[which];
      upper.offset[d] += at;
      upper.length[d] -= at;
      tiles[which].length[d] = at;
      tiles.push_back(upper);
    }
    return tiles;
  }

 private:
  std::mt19937 engine_;
};

std::vector<HeldBox> Hold(const std::vector<Box>& boxes) {
  std::vector<HeldBox> held;
  for (uint32_t i = 0; i < boxes.size(); ++i) held.push_back({&boxes[i], i});
  KeepDistinct(held);
  return held;
}

// All answers about `boxes` agree with the canvas.
void ExpectAgreement(const Box& whole, const std::vector<Box>& boxes) {
  const std::vector<HeldBox> held = Hold(boxes);
  Canvas distinct(whole);
  for (const HeldBox& h : held) distinct.Paint(*h.box);

  EXPECT_EQ(FindOverlap(held).has_value(), distinct.Max() > 1);
  if (const auto overlap = FindOverlap(held)) {
    EXPECT_FALSE(
        wire::Intersect(*held[overlap->first].box, *held[overlap->second].box).empty());
  }
  const auto hole = FindHole(held, whole);
  ASSERT_TRUE(hole.ok()) << hole.status();
  EXPECT_EQ(hole->has_value(), distinct.Min() == 0);
  if (hole->has_value()) {
    EXPECT_GT((*hole)->elements(), 0);
    EXPECT_EQ(distinct.MaxWithin(**hole), 0) << (*hole)->ToString();
  }
  EXPECT_EQ(TileExactly(held, whole), distinct.Min() == 1 && distinct.Max() == 1);
}

TEST(BoxSetTest, RandomBoxesAgreeWithElementByElementPainting) {
  Dice dice(7);
  for (int round = 0; round < 3'000 && !testing::Test::HasFailure(); ++round) {
    SCOPED_TRACE(round);
    const Box whole = dice.Whole();
    std::vector<Box> boxes;
    for (int64_t n = dice.Roll(0, 6); n > 0; --n) boxes.push_back(dice.Inside(whole));
    ExpectAgreement(whole, boxes);
  }
}

TEST(BoxSetTest, RandomTilingsWithAndWithoutOneFaultAgreeWithPainting) {
  Dice dice(8);
  for (int round = 0; round < 3'000 && !testing::Test::HasFailure(); ++round) {
    SCOPED_TRACE(round);
    const Box whole = dice.Whole();
    std::vector<Box> tiles = dice.Tiles(whole, static_cast<size_t>(dice.Roll(1, 9)));
    const auto victim = static_cast<size_t>(dice.Roll(0, static_cast<int64_t>(tiles.size()) - 1));
    switch (dice.Roll(0, 3)) {
      case 0:
        break;
      case 1:
        tiles[victim].length[0] -= 1;
        break;
      case 2:
        tiles.push_back(dice.Inside(whole));
        break;
      default:
        tiles.push_back(tiles[victim]);  // a replica
    }
    ExpectAgreement(whole, tiles);
  }
}

TEST(BoxSetTest, OfEqualBoxesTheLowestRankIsNamed) {
  const Box whole{1, {}, {4}};
  const Box half{1, {}, {2}};
  const std::vector<HeldBox> held = Hold({whole, half, whole, half});
  ASSERT_EQ(held.size(), 2u);
  EXPECT_EQ(held[0].rank, 1u);  // [0:2] sorts before [0:4]
  EXPECT_EQ(held[1].rank, 0u);
}

TEST(BoxSetTest, EmptyBoxesAreIgnored) {
  EXPECT_TRUE(Hold({Box{1, {3}, {0}}, Box{2, {0, 0}, {0, 5}}}).empty());
}

TEST(BoxSetTest, AScalarIsOneElement) {
  const Box scalar{};
  EXPECT_TRUE(TileExactly(Hold({scalar, scalar}), scalar));
  EXPECT_TRUE(FindHole({}, scalar)->has_value());
}

TEST(BoxSetTest, ManySlabsOfOneTensorAreDecidedWithoutComparingAllPairs) {
  constexpr int64_t kSlabs = 50'000;
  const Box whole{2, {}, {4, kSlabs}};
  std::vector<Box> slabs;
  for (int64_t i = 0; i < kSlabs; ++i) slabs.push_back({2, {0, kSlabs - 1 - i}, {4, 1}});
  EXPECT_TRUE(TileExactly(Hold(slabs), whole));
  slabs[17].length[0] = 3;
  const auto hole = FindHole(Hold(slabs), whole);
  ASSERT_TRUE(hole.ok());
  EXPECT_EQ((*hole)->ToString(), "[3:4, 49982:49983]");
}

TEST(BoxSetTest, BoxesThatShatterTheTensorEndInAnErrorInsteadOfMemory) {
  // Every box takes a single element out of the middle of what is left.
  constexpr int64_t kSide = 256;
  const Box whole{2, {}, {kSide, kSide}};
  std::vector<Box> boxes;
  for (int64_t i = 1; i < kSide; i += 2) {
    for (int64_t j = 1; j < kSide; j += 2) boxes.push_back({2, {i, j}, {1, 1}});
  }
  const auto hole = FindHole(Hold(boxes), whole);
  EXPECT_EQ(hole.status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace dmuon::plan
