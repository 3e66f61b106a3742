// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What every transport promises. A new one is a line at the end.
#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <ostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/transport/transport.h"
#include "tests/daemon/transport/nodes.h"

namespace dmuon::transport {
namespace {

using ::testing::HasSubstr;
using Transports = std::vector<std::unique_ptr<Transport>>;

size_t OpenDescriptors() {
  size_t count = 0;
  DIR* directory = ::opendir("/proc/self/fd");
  while (::readdir(directory) != nullptr) ++count;
  ::closedir(directory);
  return count;
}

struct Kind {
  const char* name;
  std::unique_ptr<Network> (*make)();
  friend std::ostream& operator<<(std::ostream& out, const Kind& kind) { return out << kind.name; }
};

class TransportTest : public ::testing::TestWithParam<Kind> {
 protected:
  // The transports of `size` nodes, connected.
  Transports Connect(uint32_t size, const std::string& prefix = "job/1/1", Options options = {}) {
    Transports transports(size);
    SideBySide(size, [&](uint32_t self) {
      auto made = network_->Connect(MeshOf(size, self, prefix), options, Patient());
      EXPECT_TRUE(made.ok()) << made.status();
      if (made.ok()) transports[self] = *std::move(made);
    });
    return transports;
  }

  // Node a waits for 8 bytes of node b until `deadline`.
  absl::Status AWaitsForB(Transport& a, absl::Time deadline = Patient(), uint64_t tag = 99) {
    return RunBatch(a, {tag, {}, {{1, buffer_}}}, deadline);
  }

  Bytes buffer_ = Bytes(8);
  std::unique_ptr<Network> network_ = GetParam().make();
};

TEST_P(TransportTest, EveryNodeGetsWhatEveryOtherSent) {
  const auto seed = std::random_device{}();
  RecordProperty("seed", std::to_string(seed));
  const std::vector<size_t> sizes = {0, 1, 2, 7, 63, 4'095, 65'537, 1 << 20};
  for (const uint32_t nodes : {1u, 2u, 3u, 5u, 8u}) {
    const Transports transports = Connect(nodes, absl::StrCat("job/1/", nodes));
    SideBySide(nodes, [&](uint32_t self) {
      for (uint64_t tag = 0; tag < 5; ++tag) {
        const absl::Status ran =
            AllToAll(nodes, self, tag, [&](uint32_t from, uint32_t to) {
              return sizes[std::minstd_rand(seed + tag * 64 + from * 8 + to)() % 8];
            }).Run(*transports[self]);
        EXPECT_TRUE(ran.ok()) << ran << "; " << nodes << " nodes, tag " << tag << ", seed " << seed;
      }
    });
  }
}

TEST_P(TransportTest, LargeMessagesGoBothWaysAtOnce) {
  const Transports transports = Connect(2);
  SideBySide(2, [&](uint32_t self) {
    const absl::Status ran =
        AllToAll(2, self, 1, [](uint32_t, uint32_t) { return 64 << 20; }).Run(*transports[self]);
    EXPECT_TRUE(ran.ok()) << ran;
  });
}

TEST_P(TransportTest, AQuarterGibibyteArrivesWhole) {
  const Transports transports = Connect(2);
  SideBySide(2, [&](uint32_t self) {
    const absl::Status ran = AllToAll(2, self, 1, [](uint32_t from, uint32_t) {
                               return from == 0 ? 256 << 20 : 0;
                             }).Run(*transports[self]);
    EXPECT_TRUE(ran.ok()) << ran;
  });
}

TEST_P(TransportTest, BatchesFinishInAnyOrder) {
  constexpr uint64_t kBatches = 16;
  const auto seed = std::random_device{}();
  const Transports transports = Connect(3);
  SideBySide(3, [&](uint32_t self) {
    std::minstd_rand random(seed + self);
    std::vector<std::unique_ptr<AllToAll>> batches;
    std::vector<std::unique_ptr<Exchange>> exchanges;
    std::vector<uint64_t> order;
    for (uint64_t tag = 0; tag < kBatches; ++tag) {
      // Equal sizes: only the tags tell them apart.
      batches.push_back(
          std::make_unique<AllToAll>(3, self, tag, [](uint32_t, uint32_t) { return 5'000; }));
      order.push_back(tag);
    }
    std::shuffle(order.begin(), order.end(), random);
    exchanges.resize(kBatches);
    for (const uint64_t tag : order) {
      auto started = transports[self]->Start(batches[tag]->batch());
      ASSERT_TRUE(started.ok()) << started.status();
      exchanges[tag] = *std::move(started);
    }
    std::shuffle(order.begin(), order.end(), random);
    for (const uint64_t tag : order) {
      const absl::Status waited = exchanges[tag]->Wait(Patient());
      EXPECT_TRUE(waited.ok()) << waited << "; seed " << seed;
      EXPECT_TRUE(exchanges[tag]->Wait(absl::InfinitePast()).ok()) << "a second wait";
      EXPECT_TRUE(batches[tag]->Check().ok()) << batches[tag]->Check() << "; seed " << seed;
    }
  });
}

TEST_P(TransportTest, ThreadsShareATransport) {
  const Transports transports = Connect(2);
  SideBySide(8, [&](uint32_t thread) {
    for (uint64_t round = 0; round < 50; ++round) {
      const absl::Status ran =
          AllToAll(2, thread % 2, round * 4 + thread / 2, [](uint32_t, uint32_t) {
            return 3'000;
          }).Run(*transports[thread % 2]);
      EXPECT_TRUE(ran.ok()) << ran;
    }
  });
}

TEST_P(TransportTest, MessagesOfNoBytesNeedNoPeer) {
  const Transports transports = Connect(2);
  EXPECT_TRUE(RunBatch(*transports[0], {1, {{1, {}}}, {{1, {}}}}, absl::InfinitePast()).ok());
  EXPECT_TRUE(RunBatch(*transports[0], {1, {}, {}}, absl::InfinitePast()).ok());
  EXPECT_EQ(transports[0]->traffic().peers[1], Traffic::Peer());
}

TEST_P(TransportTest, ASilentPeerIsNamedByTheDeadline) {
  const Transports transports = Connect(3);
  const absl::Time deadline = In(absl::Milliseconds(300));
  const absl::Status waited = AWaitsForB(*transports[0], deadline);
  EXPECT_EQ(waited.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(waited.message(), "job/1/1: node 'b' did not send the 8 B of batch 99 in time");
  EXPECT_GE(MonotonicNow(), deadline);
  EXPECT_LT(MonotonicNow(), deadline + absl::Seconds(10)) << "a wait that hung";
}

TEST_P(TransportTest, APeerThatDoesNotTakeIsNamed) {
  const Transports transports = Connect(2);
  const absl::Status waited =
      RunBatch(*transports[0], {7, {{1, buffer_}}, {}}, In(absl::Milliseconds(20)));
  EXPECT_EQ(waited.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(waited.message(), "job/1/1: node 'b' did not take the 8 B of batch 7 in time");
}

TEST_P(TransportTest, ADeadlineInThePastTakesWhatIsFinished) {
  const Transports transports = Connect(2);
  SideBySide(2, [&](uint32_t self) {
    const auto small = [](uint32_t, uint32_t) { return 100; };
    AllToAll first(2, self, 1, small);
    AllToAll second(2, self, 2, small);
    auto first_exchange = transports[self]->Start(first.batch());
    ASSERT_TRUE(first_exchange.ok());
    EXPECT_TRUE(
        second.Run(*transports[self]).ok());  // connections keep their order: the first is through
    const absl::Status waited = (*first_exchange)->Wait(absl::InfinitePast());
    EXPECT_TRUE(waited.ok()) << waited;
    EXPECT_TRUE(first.Check().ok());
  });
  EXPECT_EQ(AWaitsForB(*transports[0], absl::InfinitePast()).code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_P(TransportTest, SizesThatDifferNeverMeet) {
  const Transports transports = Connect(2);
  const Bytes sent(100, std::byte{1});
  Bytes received(101, std::byte{2});
  const absl::Time deadline = In(absl::Milliseconds(100));
  auto out = transports[0]->Start({1, {{1, sent}}, {}});
  auto in = transports[1]->Start({1, {}, {{0, received}}});
  ASSERT_TRUE(out.ok() && in.ok());
  EXPECT_EQ((*in)->Wait(deadline).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE((*out)->Wait(deadline).ok());
  EXPECT_EQ(received, Bytes(101, std::byte{2}));
}

TEST_P(TransportTest, AClosedPeerIsNamedWhileOthersAreAwaited) {
  Transports transports = Connect(3);
  Bytes from_b(10);
  Bytes from_c(10);
  auto exchange = transports[0]->Start({1, {}, {{1, from_b}, {2, from_c}}});
  ASSERT_TRUE(exchange.ok());
  transports[2].reset();
  const absl::Status waited = (*exchange)->Wait(Patient());
  EXPECT_EQ(waited.code(), absl::StatusCode::kUnavailable) << waited;
  EXPECT_THAT(std::string(waited.message()), HasSubstr("job/1/1: node 'c'"));
}

TEST_P(TransportTest, WhatWasThroughBeforeItsPeerClosedCounts) {
  Transports transports = Connect(3);
  Bytes from_b(10);
  Bytes from_c(10);
  auto exchange = transports[0]->Start({1, {}, {{1, from_b}, {2, from_c}}});
  ASSERT_TRUE(exchange.ok());
  const Bytes said(10, std::byte{3});
  EXPECT_TRUE(RunBatch(*transports[2], {1, {{0, said}}, {}}).ok());
  transports[2].reset();
  std::thread b_is_slow([&] {
    absl::SleepFor(absl::Milliseconds(50));
    EXPECT_TRUE(RunBatch(*transports[1], {1, {{0, said}}, {}}).ok());
  });
  const absl::Status waited = (*exchange)->Wait(Patient());
  b_is_slow.join();
  EXPECT_TRUE(waited.ok()) << waited;
  EXPECT_EQ(from_b, said);
  EXPECT_EQ(from_c, said);
}

TEST_P(TransportTest, AfterAnErrorEverythingAnswersIt) {
  const Transports transports = Connect(2);
  Bytes other(50);
  auto in_flight = transports[0]->Start({1, {}, {{1, other}}});
  ASSERT_TRUE(in_flight.ok());
  const absl::Status first = AWaitsForB(*transports[0], In(absl::Milliseconds(10)));
  EXPECT_EQ(first.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ((*in_flight)->Wait(Patient()), first);
  EXPECT_EQ((*in_flight)->Wait(Patient()), first) << "a second wait";
  EXPECT_EQ(transports[0]->Start({2, {}, {{1, other}}}).status(), first);
  // The peer notices, and a new attempt works beside the remains of the old one.
  const absl::Status peers = RunBatch(*transports[1], {3, {}, {{0, buffer_}}});
  EXPECT_EQ(peers.code(), absl::StatusCode::kUnavailable) << peers;
  EXPECT_THAT(std::string(peers.message()), HasSubstr("node 'a'"));
  const Transports again = Connect(2, "job/1/2");
  SideBySide(2, [&](uint32_t self) {
    EXPECT_TRUE(AllToAll(2, self, 1, [](uint32_t, uint32_t) { return 50; }).Run(*again[self]).ok());
  });
}

TEST_P(TransportTest, AnErrorEndsTheWaitsOfOtherThreads) {
  const Transports transports = Connect(3);
  absl::Status b_waited;
  absl::Status c_waited;
  std::thread waits_for_c([&] {
    Bytes bytes(10);
    c_waited = RunBatch(*transports[0], {1, {}, {{2, bytes}}});
  });
  b_waited = AWaitsForB(*transports[0], In(absl::Milliseconds(50)));
  waits_for_c.join();
  EXPECT_EQ(b_waited.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(c_waited, b_waited);
}

TEST_P(TransportTest, AnExchangeGivenUpBreaksTheTransport) {
  const Transports transports = Connect(2);
  Bytes received(8);
  auto peers = transports[1]->Start({1, {}, {{0, received}}});
  ASSERT_TRUE(peers.ok());
  { auto given_up = transports[0]->Start({2, {}, {{1, buffer_}}}); }
  EXPECT_EQ(transports[0]->Start({1, {{1, buffer_}}, {}}).status().code(),
            absl::StatusCode::kCancelled);
  EXPECT_EQ((*peers)->Wait(Patient()).code(), absl::StatusCode::kUnavailable);
}

TEST_P(TransportTest, OtherPrefixesNeverMeet) {
  SideBySide(2, [&](uint32_t self) {
    const Mesh mesh = MeshOf(2, self, absl::StrCat("job/1/", self));
    const absl::Time deadline = In(absl::Milliseconds(200));
    auto made = network_->Connect(mesh, {}, deadline);
    const absl::Status met =
        made.ok()
            ? RunBatch(**made, AllToAll(2, self, 1, [](uint32_t, uint32_t) { return 9; }).batch(),
                       deadline)
            : made.status();
    EXPECT_EQ(met.code(), absl::StatusCode::kDeadlineExceeded) << met;
    EXPECT_THAT(std::string(met.message()), HasSubstr(self == 0 ? "'b'" : "'a'"));
  });
}

TEST_P(TransportTest, BadBatchesAreRefusedAndChangeNothing) {
  const Transports transports = Connect(2, "job/1/1", {.max_batch_bytes = 15});
  Transport& a = *transports[0];
  const std::vector<std::pair<Batch, std::string>> refused = {
      {{1, {{2, buffer_}}, {}}, "job/1/1: peer 2 is not below 2 nodes"},
      {{1, {}, {{0, buffer_}}}, "job/1/1: node 'a' is its own peer"},
      {{1, {{1, buffer_}, {1, {}}}, {}}, "job/1/1: two messages of one batch for node 'b'"},
      {{1, {{1, buffer_}}, {{1, buffer_}}},
       "job/1/1: a batch of more than 15 B, with 8 B for node 'b'"}};
  for (const auto& [batch, why] : refused) {
    const absl::Status started = a.Start(batch).status();
    EXPECT_EQ(started.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(started.message(), why);
  }
  SideBySide(2, [&](uint32_t self) {
    EXPECT_TRUE(
        AllToAll(2, self, 1, [](uint32_t, uint32_t) { return 7; }).Run(*transports[self]).ok());
  });
}

TEST_P(TransportTest, BadMeshesAreRefused) {
  for (const Mesh& mesh : {Mesh{"", {"a", "b"}, 0}, Mesh{"job/1/1", {}, 0},
                           Mesh{"job/1/1", {"a", "b"}, 2}, Mesh{"job/1/1", {"a", "a"}, 0}}) {
    EXPECT_EQ(network_->Connect(mesh, {}, Patient()).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST_P(TransportTest, TrafficIsCountedToTheByte) {
  const Transports transports = Connect(3);
  SideBySide(3, [&](uint32_t self) {
    for (const size_t scale : {1u, 1'000u}) {
      const auto size = [scale](uint32_t from, uint32_t to) { return scale * (from * 10 + to); };
      EXPECT_TRUE(AllToAll(3, self, scale, size).Run(*transports[self]).ok());
    }
  });
  for (uint32_t self = 0; self < 3; ++self) {
    for (uint32_t peer = 0; peer < 3; ++peer) {
      if (peer == self) continue;
      const Traffic::Flow sent{2, 1'001 * (self * 10 + peer)};
      const Traffic::Flow received{2, 1'001 * (peer * 10 + self)};
      EXPECT_EQ(transports[self]->traffic().peers[peer], (Traffic::Peer{sent, received}));
    }
    EXPECT_EQ(transports[self]->traffic().peers[self], Traffic::Peer());
  }
  EXPECT_EQ(transports[0]->name(), GetParam().name);
}

TEST_P(TransportTest, AThousandExchangesLeaveNothingBehind) {
  const Transports transports = Connect(2);
  uint64_t tag = 0;
  const auto run = [&](uint64_t rounds) {
    SideBySide(2, [&](uint32_t self) {
      for (uint64_t i = 0; i < rounds; ++i) {
        const absl::Status ran = AllToAll(2, self, tag + i, [](uint32_t, uint32_t) {
                                   return 2'000;
                                 }).Run(*transports[self]);
        ASSERT_TRUE(ran.ok()) << ran;
      }
    });
    tag += rounds;
  };
  run(100);
  const size_t descriptors = OpenDescriptors();
  const size_t bytes = ::mallinfo2().uordblks;
  run(1'000);
  EXPECT_EQ(OpenDescriptors(), descriptors);
  EXPECT_LT(::mallinfo2().uordblks, bytes + 16'384) << "less than 17 B an exchange";
}

TEST_P(TransportTest, ANodeHoldsOneConnectionAPeer) {  // cases row 74
  constexpr uint32_t kNodes = 8;
  Connect(2, "job/1/1").clear();  // what the process opens once
  const size_t descriptors = OpenDescriptors();
  const Transports transports = Connect(kNodes, "job/1/2");
  SideBySide(kNodes, [&](uint32_t self) {
    for (uint64_t tag = 0; tag < 20; ++tag) {
      AllToAll batch(kNodes, self, tag, [](uint32_t, uint32_t) { return 2'000; });
      ASSERT_TRUE(batch.Run(*transports[self]).ok());
    }
  });
  EXPECT_LE(OpenDescriptors(), descriptors + kNodes * (kNodes - 1));
}

TEST_P(TransportTest, ClosedTransportsLeaveNoDescriptor) {
  Connect(3, "job/1/1").clear();
  const size_t descriptors = OpenDescriptors();
  for (int attempt = 2; attempt < 12; ++attempt) {
    const Transports transports = Connect(3, absl::StrCat("job/1/", attempt));
    (void)AWaitsForB(*transports[0], absl::InfinitePast());  // every other way to end: broken
  }
  EXPECT_EQ(OpenDescriptors(), descriptors);
}

INSTANTIATE_TEST_SUITE_P(
    All, TransportTest,
    ::testing::Values(Kind{"local", [] { return std::unique_ptr<Network>(new LocalNetwork); }},
                      Kind{"gloo", [] { return std::unique_ptr<Network>(new GlooNetwork); }}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace dmuon::transport
