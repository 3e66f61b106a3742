// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include "daemon/coordinator/part_board.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/daemon/coordinator/requests.h"
#include "wire/error.h"

namespace dmuon::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class PartBoardTest : public ::testing::Test {
 protected:
  PartBoardTest() {
    for (const char* node : {"b", "a"}) *nodes_.Add() = node;  // the plan's order is not the alphabet's
  }
  PartBoard::Answer Answer(const v1::ReportPartRequest& request) {
    auto answer = board_.Report(nodes_, request);
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? *std::move(answer) : PartBoard::Answer();
  }
  PartBoard::Answer Report(const std::string& node, const std::string& name, uint64_t step, uint64_t number = 1) {
    return Answer(ReportOf(Node(node), name, step, number));
  }
  PartBoard::Answer Fail(const std::string& node, const std::string& name, uint64_t step, const std::string& why) {
    return Answer(FailureOf(Node(node), name, step, why));
  }

  google::protobuf::RepeatedPtrField<std::string> nodes_;
  PartBoard board_;
};

TEST_F(PartBoardTest, AllNodesGetTheSamePartsInThePlansOrder) {
  EXPECT_THAT(Report("a", "x", 4).response.waiting_for(), ElementsAre("b"));
  const PartBoard::Answer last = Report("b", "x", 4);
  ASSERT_EQ(last.response.parts_size(), 2);
  EXPECT_EQ(last.response.parts(0).node_id(), "b");
  EXPECT_EQ(last.response.parts(1).node_id(), "a");
  EXPECT_THAT(last.response.waiting_for(), IsEmpty());
  EXPECT_EQ(Report("a", "x", 4).response.SerializeAsString(), last.response.SerializeAsString());
}

TEST_F(PartBoardTest, ADecisionIsNewsOnce) {
  EXPECT_EQ(Report("a", "x", 4).news, "");
  EXPECT_EQ(Report("b", "x", 4).news, "checkpoint x of step 4 is complete, 2 parts");
  EXPECT_EQ(Report("a", "x", 4).news, "");
  EXPECT_EQ(Fail("a", "y", 4, "disk full").news, "checkpoint y of step 4 fails: node 'a': disk full");
  EXPECT_EQ(Report("b", "y", 4).news, "");
  EXPECT_EQ(Fail("a", "y", 4, "disk full").news, "");
}

TEST_F(PartBoardTest, SavesOfOneNameAtTwoStepsAreToldApart) {
  Report("a", "x", 4);
  EXPECT_THAT(Report("a", "x", 5).response.waiting_for(), ElementsAre("b"));
  EXPECT_EQ(Report("b", "x", 4).response.parts_size(), 2);
  EXPECT_THAT(Report("a", "x", 5).response.waiting_for(), ElementsAre("b"));
}

TEST_F(PartBoardTest, APartIsReplacedWhileOthersAreMissing) {
  Report("a", "x", 4, 1);
  Report("a", "x", 4, 2);
  EXPECT_EQ(Report("b", "x", 4).response.parts(1).entries(), 2u);
}

TEST_F(PartBoardTest, OtherBytesAfterTheEndNeverMixWithThoseBefore) {
  Report("a", "x", 4, 1);
  Report("b", "x", 4, 1);
  const PartBoard::Answer again = Report("a", "x", 4, 2);
  EXPECT_THAT(again.response.parts(), IsEmpty());
  EXPECT_THAT(again.response.waiting_for(), ElementsAre("b"));
  const PartBoard::Answer both = Report("b", "x", 4, 2);
  EXPECT_EQ(both.news, "checkpoint x of step 4 is complete, 2 parts");
  for (const v1::CheckpointPart& part : both.response.parts()) EXPECT_EQ(part.entries(), 2u);
}

TEST_F(PartBoardTest, AFailureIsToldToAllAndNamesItsNode) {
  Report("a", "x", 4);
  EXPECT_EQ(Fail("b", "x", 4, "disk full").response.failure(), "node 'b': disk full");
  const PartBoard::Answer told = Report("a", "x", 4);
  EXPECT_EQ(told.response.failure(), "node 'b': disk full");
  EXPECT_THAT(told.response.parts(), IsEmpty());
  EXPECT_THAT(told.response.waiting_for(), IsEmpty());
}

TEST_F(PartBoardTest, AFailureDoesNotStandInTheWayOfTheNextTry) {
  Fail("b", "x", 4, "disk full");
  Report("a", "x", 4);  // is told
  EXPECT_THAT(Report("a", "x", 4).response.waiting_for(), ElementsAre("b"));
  EXPECT_EQ(Report("b", "x", 4).response.parts_size(), 2);
}

TEST_F(PartBoardTest, ALongFailureIsCutBetweenCharacters) {
  const std::string a_umlaut = "\xC3\xA4";
  std::string why = "x";
  while (why.size() <= PartBoard::kMaxFailureBytes) why += a_umlaut;
  const std::string failure = Fail("a", "x", 4, why).response.failure();
  EXPECT_EQ(failure, absl::StrCat("node 'a': ", why.substr(0, PartBoard::kMaxFailureBytes - 1)));
}

TEST_F(PartBoardTest, TheOldestBoardGoesWhenThereAreTooMany) {
  for (size_t step = 1; step <= PartBoard::kMaxBoards; ++step) Report("a", "x", step);
  EXPECT_EQ(Report("b", "x", 1).response.parts_size(), 2);
  Report("a", "y", 1);
  EXPECT_EQ(Report("b", "x", 2).response.parts_size(), 2);
  EXPECT_THAT(Report("b", "x", 1).response.waiting_for(), ElementsAre("a")) << "it began anew";
}

TEST_F(PartBoardTest, ARefusedReportChangesNothing) {
  Report("a", "x", 4);
  v1::ReportPartRequest bad = ReportOf(Node("b"), "x", 4);
  bad.mutable_part()->set_header_sha256(std::string(64, 'A'));
  EXPECT_THAT(std::string(board_.Report(nodes_, bad).status().message()), HasSubstr("must be 64 of 0-9 and a-f"));
  bad = ReportOf(Node("b"), std::string(129, 'x'), 4);
  EXPECT_THAT(std::string(board_.Report(nodes_, bad).status().message()), HasSubstr("checkpoint name: 129 characters"));
  bad = ReportOf(Node("b"), "x", 4);
  bad.mutable_part()->set_file(std::string(256, 'x'));
  EXPECT_EQ(wire::ReasonOf(board_.Report(nodes_, bad).status()), v1::ERROR_REASON_INVALID_FIELD);
  EXPECT_THAT(Report("a", "x", 4).response.waiting_for(), ElementsAre("b"));
}

// Whatever the order and however often they ask: nodes that save the same get one and the same answer.
TEST_F(PartBoardTest, AnyOrderOfReportsEndsInOneAnswer) {
  std::mt19937 random(5);
  for (uint64_t step = 1; step <= 200; ++step) {
    const bool fails = random() % 3 == 0;
    std::map<std::string, std::string> ends;  // node -> what it was told
    while (ends.size() < 2) {
      const std::string node = random() % 2 == 0 ? "a" : "b";
      if (ends.contains(node)) continue;  // it has stopped asking
      const v1::ReportPartResponse response =
          fails && node == "b" ? Fail(node, "x", step, "why").response : Report(node, "x", step).response;
      if (response.waiting_for().empty()) ends[node] = response.SerializeAsString();
    }
    EXPECT_EQ(ends["a"], ends["b"]);
  }
}

}  // namespace
}  // namespace dmuon::coordinator
