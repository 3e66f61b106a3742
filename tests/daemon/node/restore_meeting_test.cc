// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/restore_meeting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/daemon/transport/nodes.h"
#include "wire/error.h"
#include "wire/mutex.h"

namespace dmuon::node {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Entries = std::vector<checkpoint::Entry>;

// `count` arrays of a source, no two alike.
Entries EntriesOf(size_t source, size_t count) {
  Entries entries;
  for (size_t i = 0; i < count; ++i) {
    checkpoint::Entry& entry = entries.emplace_back();
    entry.tensor = absl::StrCat("t", source, ".", i);
    entry.tensor_shape = {8, 4};
    entry.optimizer = "muon(ema)";
    entry.updates = 5 + i;
    entry.quantity = i % 2 == 0 ? checkpoint::kWeight : "row_norm";
    entry.box = wire::WholeBox(entry.tensor_shape);
    entry.box.offset[0] = 2;
    entry.box.length[0] = 3;
    entry.matrix = i % 2 == 0 ? -1 : 1;
    entry.shape = i % 2 == 0 ? std::vector<int64_t>{3, 4} : std::vector<int64_t>{3, 1};
  }
  return entries;
}

class Arrays final : public checkpoint::ArraySource {
 public:
  explicit Arrays(Entries entries) : entries_(std::move(entries)) {}
  [[nodiscard]] const Entries& entries() const override { return entries_; }
  [[nodiscard]] absl::Status Read(size_t, std::span<float>) const override { return absl::OkStatus(); }

 private:
  const Entries entries_;
};

// What a node has.
struct Share final : public RestoreSource {
  [[nodiscard]] std::string name() const override { return absl::StrCat("'", wanted, "'"); }
  [[nodiscard]] absl::StatusOr<Contents> Find() const override {
    if (!knows) return wire::Error(absl::StatusCode::kNotFound, v1::ERROR_REASON_CHECKPOINT, "nothing of the kind");
    return Contents{absl::StrCat(name(), " of step ", step), absl::StrCat("contents of ", step)};
  }
  [[nodiscard]] absl::StatusOr<Opened> Open(const std::string& contents) const override {
    EXPECT_EQ(contents, absl::StrCat("contents of ", step));
    if (damaged) return wire::Error(absl::StatusCode::kDataLoss, v1::ERROR_REASON_CHECKPOINT, "a bad head");
    Opened opened{step, {}};
    for (size_t i = 0; i < counts.size(); ++i) {
      SavedSource source{absl::StrCat("file-", i), nullptr, has.contains(i), absl::StrCat("node n", i), counts[i]};
      if (source.here) source.arrays = std::make_shared<Arrays>(EntriesOf(i, counts[i] - lies));
      opened.sources.push_back(source);
    }
    return opened;
  }

  std::string wanted = "best";
  bool knows = true;
  uint64_t step = 7;
  std::set<size_t> has;
  std::vector<size_t> counts = {5, 3, 0};
  bool damaged = false;
  size_t lies = 0;  // arrays that it keeps for itself
};

// Where all nodes meet, one meeting after the other.
class Table {
 public:
  explicit Table(size_t nodes) : nodes_(nodes) {}
  Reports Meet(uint32_t self, size_t meeting, const v1::PeerReport& mine) {
    const wire::MutexLock lock(mu_);
    Reports& reports = meetings_[meeting];
    reports.resize(nodes_);
    reports[self] = mine;
    ++told_[meeting];
    changed_.NotifyAll();
    while (told_[meeting] < nodes_) changed_.Wait(mu_);
    return reports;
  }
  [[nodiscard]] size_t meetings() {
    const wire::MutexLock lock(mu_);
    return meetings_.size();
  }

 private:
  const size_t nodes_;
  wire::Mutex mu_;
  wire::CondVar changed_;
  std::map<size_t, Reports> meetings_ ABSL_GUARDED_BY(mu_);
  std::map<size_t, size_t> told_ ABSL_GUARDED_BY(mu_);
};

using Outcomes = std::vector<absl::StatusOr<RestoreMeeting::Sources>>;

Outcomes Meet(std::vector<Share>& shares, size_t* meetings = nullptr, size_t told_bytes = 1 << 20) {
  const std::vector<std::string> nodes = {"n0", "n1", "n2"};
  v1::JobSpec job;
  job.set_job_id("job");
  v1::Plan plan;
  for (const std::string& node : nodes) plan.add_nodes(node);
  Outcomes outcomes(3, absl::UnknownError(""));
  Table table(3);
  transport::SideBySide(3, [&](uint32_t self) {
    v1::PeerReport mine;
    size_t meeting = 0;
    const auto tell = [&](const absl::Status& status, const v1::RestoreShare& share) -> absl::StatusOr<Reports> {
      mine.set_code(static_cast<int>(status.code()));
      mine.set_reason(std::string(wire::ReasonName(wire::ReasonOf(status))));
      if (!status.ok()) mine.set_message(std::string(status.message()));
      *mine.mutable_restore_share() = share;
      Reports reports = table.Meet(self, meeting++, mine);
      DMUON_RETURN_IF_ERROR(CheckRestore(job, plan, reports));
      return reports;
    };
    RestoreMeeting restore(&shares[self], nodes, self, told_bytes);
    const absl::StatusOr<Reports> first = tell(restore.Announce(mine), {});
    outcomes[self] = first.ok() ? restore.Agree(*first, tell) : first.status();
  });
  if (meetings != nullptr) *meetings = table.meetings();
  return outcomes;
}

// Node 1 has both sources that have arrays, node 2 the second.
std::vector<Share> SomeShares() {
  std::vector<Share> shares(3);
  shares[1].has = {0, 1};
  shares[2].has = {1};
  return shares;
}

void ExpectAllKnowAll(const Outcomes& outcomes) {
  for (const auto& outcome : outcomes) {
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_EQ(outcome->id, "'best' of step 7");
    EXPECT_EQ(outcome->step, 7U);
    EXPECT_THAT(outcome->holders, ElementsAre(ElementsAre(1U), ElementsAre(1U, 2U), ElementsAre()));
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(outcome->sources[i].arrays->entries(), EntriesOf(i, std::vector<size_t>{5, 3, 0}[i])) << "source " << i;
    }
  }
}

void ExpectAllSay(const Outcomes& outcomes, absl::StatusCode code, const std::string& text) {
  for (const auto& outcome : outcomes) {
    EXPECT_EQ(outcome.status().code(), code) << outcome.status();
    EXPECT_THAT(std::string(outcome.status().message()), HasSubstr(text));
  }
}

TEST(RestoreMeetingTest, AllKnowWhoHasWhatAndWhatIsInIt) {
  std::vector<Share> shares = SomeShares();
  ExpectAllKnowAll(Meet(shares));
}

TEST(RestoreMeetingTest, WhatDoesNotFitOneReportComesInSeveral) {
  std::vector<Share> shares = SomeShares();
  size_t meetings = 0;
  ExpectAllKnowAll(Meet(shares, &meetings, /*told_bytes=*/100));
  EXPECT_GT(meetings, 5U);
}

TEST(RestoreMeetingTest, OneWhoKnowsTheContentsIsEnough) {
  std::vector<Share> shares = SomeShares();
  shares[0].knows = shares[1].knows = false;
  ExpectAllKnowAll(Meet(shares));
}

TEST(RestoreMeetingTest, WhatAllCanReadNeedsNoWords) {
  std::vector<Share> shares(3);
  for (Share& share : shares) share.has = {0, 1};
  size_t meetings = 0;
  for (const auto& outcome : Meet(shares, &meetings)) EXPECT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(meetings, 2U);  // which state, and who has what
}

TEST(RestoreMeetingTest, WhatNobodyKnowsIsNotThere) {
  std::vector<Share> shares = SomeShares();
  for (Share& share : shares) share.knows = false;
  ExpectAllSay(Meet(shares), absl::StatusCode::kNotFound, "node n0: nothing of the kind");
}

TEST(RestoreMeetingTest, ASourceThatNobodyHasIsNamed) {
  std::vector<Share> shares = SomeShares();
  shares[1].has = {1};
  ExpectAllSay(Meet(shares), absl::StatusCode::kNotFound, "no node of the job has file-0, the part of node n0");
}

TEST(RestoreMeetingTest, DamageOnOneNodeEndsItOnAll) {
  std::vector<Share> shares = SomeShares();
  shares[2].damaged = true;
  ExpectAllSay(Meet(shares), absl::StatusCode::kDataLoss, "node n2: a bad head");
}

TEST(RestoreMeetingTest, TwoStatesOfOneNameAreNotMixed) {
  std::vector<Share> shares = SomeShares();
  shares[0].knows = false;
  shares[2].step = 8;
  ExpectAllSay(Meet(shares), absl::StatusCode::kFailedPrecondition,
               "node n1 restores 'best' of step 7, node n2 'best' of step 8");
}

TEST(RestoreMeetingTest, WhoKnowsNothingOfAnotherNameDoesNotFollow) {
  std::vector<Share> shares = SomeShares();
  shares[0].knows = false;
  shares[0].wanted = "bes";
  ExpectAllSay(Meet(shares), absl::StatusCode::kFailedPrecondition, "node n1 restores 'best' of step 7, node n0 'bes'");
}

TEST(RestoreMeetingTest, ASourceThatIsNotToldWholeEndsItOnAll) {
  std::vector<Share> shares = SomeShares();
  shares[1].lies = 1;
  ExpectAllSay(Meet(shares), absl::StatusCode::kInternal, "node n1 tells of 4 arrays of file-0, which has 5");
}

}  // namespace
}  // namespace dmuon::node
