// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/array_transfers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace dmuon::node {
namespace {

using ::testing::ElementsAre;

using Needs = std::vector<std::vector<NeededArray>>;
using Holders = std::vector<std::vector<uint32_t>>;

struct Situation {
  Needs needs;      // by node
  Holders holders;  // by source
  uint64_t most = 1;
};

// Some nodes, each of which needs some arrays of any length, and has some sources; somebody has each.
Situation SomeSituation(unsigned seed) {
  std::mt19937 random(seed);
  const auto below = [&](unsigned n) { return static_cast<uint32_t>(random() % n); };
  const uint32_t nodes = 1 + below(6);
  const uint32_t sources = 1 + below(6);
  Situation made;
  made.most = 1 + below(50);
  for (uint32_t s = 0; s < sources; ++s) {
    std::set<uint32_t> have = {below(nodes)};
    for (uint32_t more = below(3); more > 0; --more) have.insert(below(nodes));
    made.holders.emplace_back(have.begin(), have.end());
  }
  std::map<ArrayRef, uint64_t> elements;
  for (uint32_t s = 0; s < sources; ++s) {
    for (uint32_t i = below(8); i > 0; --i) elements[{s, i}] = 1 + below(120);
  }
  for (uint32_t node = 0; node < nodes; ++node) {
    auto& mine = made.needs.emplace_back();
    for (const auto& [array, length] : elements) {
      if (below(3) > 0) mine.push_back({array, length});
    }
  }
  return made;
}

bool Has(const Situation& of, uint32_t node, size_t source) {
  const std::vector<uint32_t>& have = of.holders[source];
  return std::find(have.begin(), have.end(), node) != have.end();
}

struct Case {
  explicit Case(unsigned seed) : at(SomeSituation(seed)), transfers(TransfersOf(at.needs, at.holders)) {}
  [[nodiscard]] std::vector<TransferRound> Rounds() const { return RoundsOf(transfers, at.needs.size(), at.most); }
  const Situation at;
  const std::vector<ArrayTransfer> transfers;
};

class TransfersTest : public ::testing::Test {
 protected:
  // Checks some hundred situations; a failure names the seed.
  template <typename Fn>
  static void ForManySituations(Fn&& check) {
    for (unsigned seed = 0; seed < 400 && !HasFailure(); ++seed) {
      SCOPED_TRACE(absl::StrCat("seed ", seed));
      check(Case(seed));
    }
  }
};

TEST_F(TransfersTest, EveryNodeGetsEachArrayThatItNeedsOnce) {
  ForManySituations([](const Case& c) {
    Needs got(c.at.needs.size());
    for (const ArrayTransfer& transfer : c.transfers) got[transfer.to].push_back(transfer.needed);
    EXPECT_EQ(got, c.at.needs);
  });
}

TEST_F(TransfersTest, ANodeTakesItsOwnElseThatOfTheFirstWhoHasIt) {
  ForManySituations([](const Case& c) {
    for (const ArrayTransfer& transfer : c.transfers) {
      const size_t source = transfer.needed.array.source;
      EXPECT_TRUE(Has(c.at, transfer.from, source));
      EXPECT_EQ(transfer.from == transfer.to, Has(c.at, transfer.to, source));
      for (uint32_t before = 0; before < transfer.from && transfer.from != transfer.to; ++before) {
        EXPECT_FALSE(Has(c.at, before, source));
      }
    }
  });
}

TEST_F(TransfersTest, RoundsMoveEveryElementOnceAndInOrder) {
  ForManySituations([](const Case& c) {
    std::vector<uint64_t> sent(c.transfers.size());
    for (const TransferRound& round : c.Rounds()) {
      EXPECT_FALSE(round.empty());
      for (const ArrayPiece& piece : round) {
        EXPECT_EQ(piece.first, sent[piece.transfer]);
        EXPECT_GT(piece.count, 0U);
        sent[piece.transfer] += piece.count;
      }
    }
    for (size_t i = 0; i < c.transfers.size(); ++i) {
      const bool moves = c.transfers[i].from != c.transfers[i].to;
      EXPECT_EQ(sent[i], moves ? c.transfers[i].needed.elements : 0);
    }
  });
}

TEST_F(TransfersTest, NoRoundIsLargerThanItMayBeOnAnyNode) {
  ForManySituations([](const Case& c) {
    for (const TransferRound& round : c.Rounds()) {
      std::map<uint32_t, uint64_t> out;
      std::map<uint32_t, uint64_t> in;
      for (const ArrayPiece& piece : round) {
        EXPECT_LE(out[c.transfers[piece.transfer].from] += piece.count, c.at.most);
        EXPECT_LE(in[c.transfers[piece.transfer].to] += piece.count, c.at.most);
      }
    }
  });
}

TEST_F(TransfersTest, OnlyWhatDoesNotFitARoundIsSplitAndOneAtATime) {
  ForManySituations([](const Case& c) {
    std::map<uint32_t, size_t> sending;  // what a node is in the midst of
    std::map<uint32_t, size_t> receiving;
    for (const TransferRound& round : c.Rounds()) {
      for (const ArrayPiece& piece : round) {
        const ArrayTransfer& transfer = c.transfers[piece.transfer];
        if (piece.count == transfer.needed.elements) continue;
        EXPECT_GT(transfer.needed.elements, c.at.most);
        EXPECT_EQ(sending.try_emplace(transfer.from, piece.transfer).first->second, piece.transfer);
        EXPECT_EQ(receiving.try_emplace(transfer.to, piece.transfer).first->second, piece.transfer);
        if (piece.first + piece.count < transfer.needed.elements) continue;
        sending.erase(transfer.from);
        receiving.erase(transfer.to);
      }
    }
    EXPECT_TRUE(sending.empty());
  });
}

TEST(TransferListTest, WhatAllCanReadMovesNothing) {
  const Needs needs = {{{{0, 0}, 7}, {{1, 0}, 5}}, {{{0, 1}, 9}}};
  const std::vector<ArrayTransfer> transfers = TransfersOf(needs, Holders{{0, 1}, {0, 1}});
  EXPECT_EQ(transfers.size(), 3U);
  EXPECT_TRUE(RoundsOf(transfers, 2, 100).empty());
}

TEST(TransferListTest, ALongArrayGoesInPiecesAndShortOnesFillTheRest) {
  const Needs needs = {{}, {{{0, 0}, 25}, {{0, 1}, 3}, {{0, 2}, 4}}};
  const std::vector<ArrayTransfer> transfers = TransfersOf(needs, Holders{{0}});
  EXPECT_THAT(RoundsOf(transfers, 2, 10),
              ElementsAre(ElementsAre(ArrayPiece{0, 0, 10}), ElementsAre(ArrayPiece{0, 10, 10}),
                          ElementsAre(ArrayPiece{0, 20, 5}, ArrayPiece{1, 0, 3}), ElementsAre(ArrayPiece{2, 0, 4})));
}

TEST(TransferListTest, PairsThatShareNoNodeMoveInTheSameRound) {
  const Needs needs = {{}, {{{0, 0}, 10}}, {}, {{{1, 0}, 10}}};
  const std::vector<ArrayTransfer> transfers = TransfersOf(needs, Holders{{0}, {2}});
  EXPECT_EQ(RoundsOf(transfers, 4, 10).size(), 1U);
}

}  // namespace
}  // namespace dmuon::node
