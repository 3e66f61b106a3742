// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/array_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/transport/local_transport.h"
#include "tests/daemon/transport/nodes.h"

namespace dmuon::node {
namespace {

using Taken = std::map<ArrayRef, std::vector<float>>;

std::vector<float> ValuesOf(const ArrayRef& array, uint64_t elements) {
  std::vector<float> values(elements);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(1000 * array.source + 100 * array.index + i);
  return values;
}

// One node's end: values of a function, and a meeting by messages of its own.
class Node {
 public:
  Node(transport::Switchboard& switchboard, uint32_t nodes, uint32_t self)
      : nodes_(nodes), self_(self), transport_(switchboard.Connect(transport::MeshOf(nodes, self)).value()) {}

  ExchangeEnd End() {
    ExchangeEnd end;
    end.read = [this](const ArrayRef& array, std::span<float> to) {
      ++reads;
      if (damaged == array) return absl::DataLossError(absl::StrCat("damaged on node ", self_));
      const std::vector<float> values = ValuesOf(array, to.size());
      std::copy(values.begin(), values.end(), to.begin());
      return absl::OkStatus();
    };
    end.take = [this](const ArrayRef& array, std::span<const float> values) {
      EXPECT_TRUE(taken.emplace(array, std::vector<float>(values.begin(), values.end())).second);
    };
    end.agree = [this](const absl::Status& mine) { return Agree(mine); };
    end.move = [this](std::vector<transport::Outgoing> out, std::vector<transport::Incoming> in) {
      for (const transport::Outgoing& message : out) longest = std::max(longest, message.bytes.size());
      return transport::RunBatch(*transport_, {tag_++, std::move(out), std::move(in)}, transport::Patient());
    };
    return end;
  }

  void Leave() { transport_.reset(); }

  ArrayRef damaged{99, 99};
  size_t reads = 0;
  size_t longest = 0;  // message
  Taken taken;

 private:
  using Word = std::array<char, 64>;
  absl::Status Agree(const absl::Status& mine) {
    std::vector<Word> words(nodes_, Word{});
    std::copy_n(mine.message().begin(), mine.message().size(), words[self_].begin());
    transport::Batch batch{tag_++, {}, {}};
    for (uint32_t node = 0; node < nodes_; ++node) {
      if (node == self_) continue;
      batch.out.push_back({node, std::as_bytes(std::span(words[self_]))});
      batch.in.push_back({node, std::as_writable_bytes(std::span(words[node]))});
    }
    if (absl::Status met = transport::RunBatch(*transport_, batch, transport::Patient()); !met.ok()) return met;
    for (const Word& word : words) {
      if (word[0] != 0) return absl::DataLossError(word.data());
    }
    return absl::OkStatus();
  }

  const uint32_t nodes_;
  const uint32_t self_;
  std::unique_ptr<transport::Transport> transport_;
  uint64_t tag_ = 0;
};

// Node 0 has source 0, node 1 source 1; node 2 needs much of both, the others what the other one has.
const std::vector<std::vector<NeededArray>> kNeeds = {
    {{{0, 0}, 5}, {{1, 0}, 40}}, {{{0, 0}, 5}, {{0, 1}, 17}}, {{{0, 0}, 5}, {{0, 1}, 17}, {{1, 0}, 40}, {{1, 1}, 3}}};
const std::vector<std::vector<uint32_t>> kHolders = {{0}, {1}};

struct Outcome {
  std::vector<absl::Status> statuses;
  std::vector<uint64_t> received;
};

class ArrayExchangeTest : public ::testing::Test {
 protected:
  ArrayExchangeTest() {
    for (uint32_t self = 0; self < 3; ++self) nodes_.push_back(std::make_unique<Node>(switchboard_, 3, self));
  }
  Outcome Run(uint64_t round_bytes) {
    Outcome outcome{std::vector<absl::Status>(3), std::vector<uint64_t>(3)};
    transport::SideBySide(3, [&](uint32_t self) {
      ArrayExchange exchange(transfers_, 3, self, nodes_[self]->End(), round_bytes);
      outcome.statuses[self] = exchange.Run();
      outcome.received[self] = exchange.received_bytes();
      if (!outcome.statuses[self].ok()) nodes_[self]->Leave();  // as the pipeline closes what is broken
    });
    return outcome;
  }

  const std::vector<ArrayTransfer> transfers_ = TransfersOf(kNeeds, kHolders);
  transport::Switchboard switchboard_;
  std::vector<std::unique_ptr<Node>> nodes_;
};

class RoundSizeTest : public ArrayExchangeTest, public ::testing::WithParamInterface<uint64_t> {};

TEST_P(RoundSizeTest, EveryArrayArrivesWhole) {
  const Outcome outcome = Run(GetParam());
  for (uint32_t self = 0; self < 3; ++self) {
    EXPECT_TRUE(outcome.statuses[self].ok()) << outcome.statuses[self];
    Taken expected;
    uint64_t bytes = 0;
    for (const NeededArray& needed : kNeeds[self]) {
      if (needed.array.source == self) continue;
      expected[needed.array] = ValuesOf(needed.array, needed.elements);
      bytes += needed.elements * sizeof(float);
    }
    EXPECT_EQ(nodes_[self]->taken, expected) << "node " << self;
    EXPECT_EQ(outcome.received[self], bytes);
    EXPECT_LE(nodes_[self]->longest, GetParam());
  }
  // One reading for each node that needs it.
  EXPECT_EQ(nodes_[0]->reads, 4U);
  EXPECT_EQ(nodes_[2]->reads, 0U);
}

INSTANTIATE_TEST_SUITE_P(Bytes, RoundSizeTest, ::testing::Values(4, 12, 64, 100, 1 << 20));

TEST_F(ArrayExchangeTest, WhatOneNodeCannotReadEndsItOnAll) {
  nodes_[1]->damaged = {1, 0};
  const Outcome outcome = Run(64);
  for (uint32_t self = 0; self < 3; ++self) {
    EXPECT_EQ(outcome.statuses[self], absl::DataLossError("damaged on node 1")) << "node " << self;
    EXPECT_FALSE(nodes_[self]->taken.contains({1, 0}));
  }
}

TEST_F(ArrayExchangeTest, ANodeThatGoesAwayEndsItOnAll) {
  nodes_[1]->Leave();
  nodes_[1] = nullptr;
  std::vector<absl::Status> statuses(3);
  transport::SideBySide(3, [&](uint32_t self) {
    if (self == 1) return;
    statuses[self] = ArrayExchange(transfers_, 3, self, nodes_[self]->End(), 64).Run();
    nodes_[self]->Leave();
  });
  EXPECT_TRUE(absl::IsUnavailable(statuses[0])) << statuses[0];
  EXPECT_TRUE(absl::IsUnavailable(statuses[2])) << statuses[2];
}

TEST(ExchangeBytesTest, BuffersAreRoundsAndWhatDoesNotFitOne) {
  const std::vector<ArrayTransfer> transfers = TransfersOf(kNeeds, kHolders);
  EXPECT_EQ(ArrayExchange::BytesFor(transfers, 2, 1 << 20), 65 * sizeof(float));          // all that comes in
  EXPECT_EQ(ArrayExchange::BytesFor(transfers, 2, 40 * sizeof(float)), 40 * sizeof(float));  // a round
  EXPECT_EQ(ArrayExchange::BytesFor(transfers, 2, 10 * sizeof(float)), 50 * sizeof(float));  // and an array beside it
  EXPECT_EQ(ArrayExchange::BytesFor(TransfersOf(kNeeds, std::vector<std::vector<uint32_t>>{{0, 1, 2}, {0, 1, 2}}), 2), 0U);
}

}  // namespace
}  // namespace dmuon::node
