// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Jobs that are spread over several nodes. The judge is the same job on one node: gradients are
// multiples of 1/64, so that sums are exact in any order and every bit must agree.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/daemon/node/exact_run.h"
#include "tests/daemon/node/test_node.h"
#include "wire/error.h"

namespace dmuon::node {
namespace {

using ::testing::HasSubstr;

TestJob Model(uint32_t world_size) {
  TestJob job("model", world_size);
  for (int layer = 0; layer < 3; ++layer) {
    job.Add(absl::StrCat("up", layer), {13, 6});
    job.Add(absl::StrCat("down", layer), {6, 13});
  }
  job.Add("narrow", {2, 9});
  job.Add("norm", {7}, 1);
  job.Add("embedding", {11, 5}, 1);
  return job;
}

struct Outcome {
  std::vector<std::vector<float>> parameters;  // by rank
  std::vector<uint64_t> calls;                 // by rank, of its node
};

Outcome Train(TestRun& run, const TestJob& job, const Shards& shards, uint64_t steps) {
  EXPECT_TRUE(run.Start(shards).ok());
  Outcome outcome;
  for (uint64_t step = 1; step <= steps; ++step) {
    for (size_t rank = 0; rank < run.size(); ++rank) run[rank].FillAndSubmit(step, Exact);
    outcome.calls.clear();
    for (const auto& answer : run.StepAsSubmitted(step)) {
      EXPECT_TRUE(answer.ok()) << answer.status();
      outcome.calls.push_back(answer.ok() ? answer->newton_schulz_calls() : 0);
    }
  }
  outcome.parameters = ParametersOf(run, job);
  return outcome;
}

// Of workers that have their rows.
std::vector<std::vector<float>> Undisturbed(const TestJob& job, uint64_t steps) {
  return Undisturbed(job, Rows(job, job.spec.world_size(), true), steps);
}

// Ranks by node: {{0, 1}, {2}} puts two on the first.
using Placement = std::vector<std::vector<uint32_t>>;

struct Case {
  std::string name;
  Placement placement;
  uint32_t parts;  // of the rows
  bool reduced;
};

// The judge is one node with the serial pipeline.
void ExpectTheBitsOfOneNode(const TestJob& job, const Shards& shards, const Placement& placement) {
  constexpr uint64_t kSteps = 4;
  TestNode alone(TwoSlots(/*overlap=*/false));
  TestRun reference(&alone.engine(), job);
  const Outcome expected = Train(reference, job, shards, kSteps);
  EXPECT_EQ(expected.calls[0], 7 * kSteps);

  for (const bool overlap : {false, true}) {
    TestCluster cluster(placement.size(), TwoSlots(overlap));
    std::vector<Engine*> engines(shards.size());
    for (size_t node = 0; node < placement.size(); ++node) {
      for (const uint32_t rank : placement[node]) engines[rank] = &cluster.engine(node);
    }
    TestRun run(engines, job);
    const Outcome outcome = Train(run, job, shards, kSteps);
    EXPECT_EQ(outcome.parameters, expected.parameters) << "overlap " << overlap;
    uint64_t calls = 0;
    for (const auto& ranks : placement) calls += outcome.calls[ranks.front()];
    EXPECT_EQ(calls, expected.calls[0]);
  }
}

class PlacementTest : public ::testing::TestWithParam<Case> {};

TEST_P(PlacementTest, GivesTheSameBitsAsOneNodeAndRunsNewtonSchulzOnce) {
  const Case& c = GetParam();
  uint32_t world_size = 0;
  for (const auto& ranks : c.placement) world_size += static_cast<uint32_t>(ranks.size());
  const TestJob job = Model(world_size);
  ExpectTheBitsOfOneNode(job, Rows(job, c.parts, c.reduced), c.placement);
}

// Tensor parallel over columns, FSDP over rows: rank = 2 * row + column. Vectors have no columns and are
// copied.
TEST(GridTest, TwoDimensionalBoxesOverTwoNodesGiveTheSameBits) {
  const TestJob job = Model(4);
  Shards shards = Rows(job, 4, true);
  for (uint32_t rank = 0; rank < 4; ++rank) {
    for (size_t t = 0; t < shards[rank].size(); ++t) {
      const v1::Tensor& tensor = job.spec.tensors(static_cast<int>(t));
      wire::Box box = RowShard(tensor, rank / 2, 2);
      if (box.ndim == 2) {
        const int64_t half = tensor.shape(1) / 2;
        box.offset[1] = rank % 2 == 0 ? 0 : half;
        box.length[1] = rank % 2 == 0 ? half : tensor.shape(1) - half;
      }
      shards[rank][t] = {box, box, true};
    }
  }
  for (const Placement& placement : {Placement{{0, 1}, {2, 3}}, Placement{{0, 2}, {1, 3}}}) {
    ExpectTheBitsOfOneNode(job, shards, placement);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, PlacementTest,
    ::testing::Values(Case{"TwoNodesOneWorkerEach", {{0}, {1}}, 2, true},
                      Case{"TwoNodesTwoWorkersEach", {{0, 1}, {2, 3}}, 4, true},
                      Case{"UnevenAndPermuted", {{2, 0}, {3}, {1, 4}}, 5, true},
                      Case{"MoreRanksThanRows", {{0, 1, 2}, {3, 4}}, 5, true},
                      Case{"HybridReducedByTheTrainer", {{0, 1}, {2, 3}}, 2, true},
                      Case{"HybridReducedByTheService", {{0, 1}, {2, 3}}, 2, false},
                      Case{"ReplicasAcrossNodes", {{0, 2}, {1, 3}}, 2, false},
                      Case{"DataParallelReducedByTheTrainer", {{0}, {1}, {2}, {3}}, 1, true},
                      Case{"DataParallelReducedByTheService", {{0, 1}, {2, 3}}, 1, false}),
    [](const auto& param_info) { return param_info.param.name; });

// Of job "wire", by both nodes.
double SentBytes(const TestCluster& cluster) {
  double bytes = 0.0;
  for (const char* peer : {"node-0", "node-1"}) {
    bytes += cluster.Counter(absl::StrCat("dmuon_exchange_bytes_total{direction=\"sent\",",
                                          "job_id=\"wire\",peer=\"", peer, "\""));
  }
  return bytes;
}

struct WireCase {
  std::string name;
  uint32_t parts;
  bool reduced;
  double copies;  // of each matrix that must cross in a step, gradient and parameters together
};

class WireTest : public ::testing::TestWithParam<WireCase> {};

// Two workers on each of two nodes. The bounds follow from one owner a matrix: it must get what of
// the gradient its node has not, and the other node must get what of the parameters it wants. No
// full gather (cases row 16).
TEST_P(WireTest, NoByteCrossesThatNeedNot) {
  const WireCase& c = GetParam();
  TestJob job("wire", 4);
  for (int i = 0; i < 4; ++i) job.Add(absl::StrCat("w", i), {512, 64});
  TestCluster cluster(2, TwoSlots());
  TestRun run({&cluster.engine(0), &cluster.engine(0), &cluster.engine(1), &cluster.engine(1)},
              job);
  ASSERT_TRUE(run.Start(Rows(job, c.parts, c.reduced)).ok());
  ASSERT_TRUE(StepExactly(run, 1).ok());
  const double first = SentBytes(cluster);
  constexpr uint64_t kSteps = 4;
  for (uint64_t step = 2; step < 2 + kSteps; ++step) ASSERT_TRUE(StepExactly(run, step).ok());
  const double a_step = (SentBytes(cluster) - first) / kSteps;
  const double bound = c.copies * 4 * 512 * 64 * sizeof(float);
  EXPECT_GE(a_step, bound);
  EXPECT_LE(a_step, 1.02 * bound + 6 * 1024);  // three reports of 1 KiB each way
}

INSTANTIATE_TEST_SUITE_P(All, WireTest,
                         ::testing::Values(WireCase{"Sharded", 4, true, 0.5 + 0.5},
                                           WireCase{"HybridReducedByTheTrainer", 2, true, 0 + 1},
                                           WireCase{"HybridReducedByTheService", 2, false, 1 + 1},
                                           WireCase{"DataParallel", 1, false, 1 + 1}),
                         [](const auto& param_info) { return param_info.param.name; });

// 7 rows over 4 workers are 2, 2, 2 and 1: of each matrix an owner lacks the 3 or 4 rows of the other
// node, which cross once as gradient and once as parameter. No padding, no full gather.
TEST(UnevenWireTest, SevenRowsOnFourWorkersCrossOnce) {  // cases rows 6, 15
  constexpr int kMatrices = 5;
  constexpr double kRow = 512 * sizeof(float);
  TestJob job("wire", 4);
  for (int i = 0; i < kMatrices; ++i) job.Add(absl::StrCat("w", i), {7, 512});
  TestCluster cluster(2, TwoSlots());
  TestRun run({&cluster.engine(0), &cluster.engine(0), &cluster.engine(1), &cluster.engine(1)},
              job);
  ASSERT_TRUE(run.Start(Rows(job, 4, true)).ok());
  ASSERT_TRUE(StepExactly(run, 1).ok());
  const double first = SentBytes(cluster);
  ASSERT_TRUE(StepExactly(run, 2).ok());
  const double a_step = SentBytes(cluster) - first;
  EXPECT_GE(a_step, 2 * 3 * kMatrices * kRow);
  EXPECT_LE(a_step, 2 * 4 * kMatrices * kRow + 6 * 1024);
  // One bucket, which both nodes get in both steps; parameters also at the start, to their owners and back.
  const auto arrivals = [&](const char* cargo) {
    return cluster.Counter(absl::StrCat("dmuon_exchange_bucket_seconds_count{cargo=\"", cargo, "\",job_id=\"wire\"}"));
  };
  EXPECT_EQ(arrivals("gradient"), 4.0);
  EXPECT_EQ(arrivals("parameter"), 8.0);
}

// Some tensors lie on the workers of one node only, others on all: one norm, each element once.
TEST(MixedPlacementTest, OneNormOverTensorsOfDifferentWorkers) {  // cases row 45
  TestJob job("mixed", 4);
  job.Add("everywhere", {8, 3});
  job.Add("first-half", {8, 3});
  job.Add("second-half", {6, 2});
  Shards shards = Rows(job, 4, true);
  for (uint32_t rank = 0; rank < 4; ++rank) {
    for (const size_t tensor : {1, 2}) {
      const bool mine = (rank < 2) == (tensor == 1);
      wire::Box box = RowShard(job.spec.tensors(static_cast<int>(tensor)), rank % 2, 2);
      if (!mine) box.offset[0] = box.length[0] = 0;
      shards[rank][tensor] = {box, box, true};
    }
  }
  TestCluster cluster(2, TwoSlots());
  TestRun run({&cluster.engine(0), &cluster.engine(0), &cluster.engine(1), &cluster.engine(1)},
              job);
  ASSERT_TRUE(run.Start(shards).ok());
  for (size_t rank = 0; rank < 4; ++rank) {
    run[rank].FillAndSubmit(1, [](size_t tensor, int64_t, uint64_t) {
      return static_cast<float>(tensor + 1);
    });
  }
  for (const auto& answer : run.StepAsSubmitted(1)) {
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_DOUBLE_EQ(answer->grad_norm(), std::sqrt(24 * 1.0 + 24 * 4.0 + 12 * 9.0));
  }
}

class ClusterTest : public ::testing::Test {
 protected:
  explicit ClusterTest(const EngineOptions& options = TwoSlots()) : cluster_(2, options) {}
  // Two workers on each of two nodes, FSDP over all of them.
  void SetUp() override { ASSERT_TRUE(run_.Start(Rows(job_, 4, true)).ok()); }

  std::vector<std::vector<float>> Parameters() { return ParametersOf(run_, job_); }

  const TestJob job_ = Model(4);
  TestCluster cluster_;
  TestRun run_{{&cluster_.engine(0), &cluster_.engine(0), &cluster_.engine(1), &cluster_.engine(1)},
               job_};
};

TEST_F(ClusterTest, AMissingGradientOnOneNodeIsToldOnAllAndChangesNothing) {
  ASSERT_TRUE(StepExactly(run_, 1).ok());
  const auto before = Parameters();
  for (size_t rank = 0; rank < 4; ++rank) run_[rank].FillAndSubmit(2, Exact);
  run_[3].Submit(0, 1);  // still the old one
  for (const auto& answer : run_.StepAsSubmitted(2)) {
    EXPECT_EQ(wire::ReasonOf(answer.status()), v1::ERROR_REASON_MISSING_GRADIENT);
    EXPECT_THAT(std::string(answer.status().message()), HasSubstr("'up0' from rank 3"));
  }
  EXPECT_EQ(Parameters(), before);
  EXPECT_TRUE(StepExactly(run_, 2).ok());
  EXPECT_EQ(Parameters(), Undisturbed(job_, 2));
}

TEST_F(ClusterTest, AnInfiniteGradientOnOneNodeSkipsTheStepOnAll) {
  ASSERT_TRUE(StepExactly(run_, 1).ok());
  const auto before = Parameters();
  for (size_t rank = 0; rank < 4; ++rank) run_[rank].FillAndSubmit(2, Exact);
  run_[2].grad(0)[0] = std::numeric_limits<float>::infinity();
  for (const auto& answer : run_.StepAsSubmitted(2)) {
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_TRUE(answer->skipped());
    EXPECT_THAT(answer->skip_reason(), HasSubstr("'up0'"));
  }
  EXPECT_EQ(Parameters(), before);
  EXPECT_TRUE(StepExactly(run_, 3).ok());
}

TEST_F(ClusterTest, WorkersOfTwoNodesMustSendTheSameHyperParameters) {
  for (size_t rank = 0; rank < 4; ++rank) run_[rank].FillAndSubmit(1, Exact);
  for (size_t rank = 0; rank < 4; ++rank) run_[rank].StartStep(1, rank < 2 ? 0.1 : 0.2);
  for (size_t rank = 0; rank < 4; ++rank) {
    const absl::Status status = run_[rank].FinishStep().status();
    EXPECT_EQ(wire::ReasonOf(status), v1::ERROR_REASON_HYPER_MISMATCH) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("node-1"));
  }
  EXPECT_TRUE(StepExactly(run_, 1).ok());
  EXPECT_EQ(Parameters(), Undisturbed(job_, 1));
}

class ImpatientClusterTest : public ClusterTest {
 protected:
  ImpatientClusterTest() : ClusterTest(Impatient(absl::Seconds(2))) {}
};

TEST_F(ImpatientClusterTest, ACutInEitherDirectionEndsTheStepAndTheRetryGivesTheSameBits) {
  ASSERT_TRUE(StepExactly(run_, 1).ok());
  uint64_t step = 2;
  for (const auto& [from, to] : {std::pair("node-0", "node-1"), std::pair("node-1", "node-0")}) {
    cluster_.switchboard().Cut(from, to);
    const absl::Status status = StepExactly(run_, step);
    EXPECT_EQ(wire::ReasonOf(status), v1::ERROR_REASON_PEER_LOST) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("node-"));
    EXPECT_TRUE(StepUntilItWorks(run_, step).ok());
    ++step;
  }
  EXPECT_EQ(Parameters(), Undisturbed(job_, 3));
}

TEST_F(ClusterTest, ALostConnectionAtAnyMomentOfAStepChangesNoBit) {
  for (uint64_t step = 1; step <= 30; ++step) {
    std::thread vandal([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(37 * step));
      cluster_.switchboard().Drop(step % 2 == 0 ? "node-0" : "node-1");
    });
    const absl::Status status = StepUntilItWorks(run_, step);
    vandal.join();
    ASSERT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ(Parameters(), Undisturbed(job_, 30));
}

TEST_F(ClusterTest, ABreakBetweenTwoStepsIsMendedUnnoticed) {
  for (uint64_t step = 1; step <= 3; ++step) {
    const absl::Status status = StepExactly(run_, step);
    ASSERT_TRUE(status.ok()) << status;
    cluster_.switchboard().Drop(step % 2 == 0 ? "node-0" : "node-1");
  }
  EXPECT_EQ(Parameters(), Undisturbed(job_, 3));
}

TEST_F(ClusterTest, NodesWhoseLeaseHasEndedJoinAgainAndGoOnWithTheSameBits) {
  ASSERT_TRUE(StepExactly(run_, 1).ok());
  cluster_.LetLeasesEnd();
  cluster_.switchboard().Drop("node-0");  // they need the coordinator to find each other
  ASSERT_TRUE(StepUntilItWorks(run_, 2).ok());
  EXPECT_EQ(Parameters(), Undisturbed(job_, 2));
}

TEST_F(ClusterTest, AWorkerThatReturnsToOneNodeGetsWhatTheOthersOwn) {
  ASSERT_TRUE(StepExactly(run_, 1).ok());
  const auto before = Parameters();
  run_[3].Die();
  const auto begun = run_[3].Return("again", Rows(job_, 4, true)[3]);
  ASSERT_TRUE(begun.ok()) << begun.status();
  EXPECT_EQ(begun->last_step(), 1U);
  EXPECT_EQ(Parameters(), before);
  EXPECT_TRUE(StepExactly(run_, 2).ok());
  EXPECT_EQ(Parameters(), Undisturbed(job_, 2));
}

// Workers die and connections break at once, at any moment: nobody loses or doubles a step, and a
// worker that returns is told the step that its parameters belong to.
TEST_F(ClusterTest, AWorkerThatReturnsInTheMiddleOfATroubledStepGoesOnWithTheSameBits) {
  for (uint64_t step = 1; step <= 20; ++step) {
    const size_t victim = step % 4;
    for (size_t rank = 0; rank < 4; ++rank) run_[rank].FillAndSubmit(step, Exact);
    for (size_t rank = 0; rank < 4; ++rank) run_[rank].StartStep(step);
    std::this_thread::sleep_for(std::chrono::microseconds(53 * step));
    cluster_.switchboard().Drop("node-0");
    std::vector<absl::Status> answers;
    for (size_t rank = 0; rank < 4; ++rank) answers.push_back(run_[rank].FinishStep().status());
    run_[victim].Die();
    const absl::Status opened = run_[victim].Open(absl::StrCat("life-", step));
    ASSERT_TRUE(opened.ok()) << opened;
    run_[victim].StartRegister(Rows(job_, 4, true)[victim]);
    ASSERT_TRUE(run_[victim].FinishRegister().ok());
    // The others repeat what was not answered; the one that returns asks where to go on.
    std::vector<bool> again(4);
    for (size_t rank = 0; rank < 4; ++rank) {
      again[rank] = rank != victim && !answers[rank].ok();
      if (again[rank]) run_[rank].StartStep(step);
    }
    absl::StatusOr<v1::BeginResponse> begun = absl::UnknownError("not asked");
    for (int i = 0; i < 20 && !begun.ok(); ++i) {
      run_[victim].StartBegin();
      begun = run_[victim].FinishBegin();
    }
    ASSERT_TRUE(begun.ok()) << begun.status();
    ASSERT_GE(begun->last_step() + 1, step);
    if (begun->last_step() < step) {
      run_[victim].FillAndSubmit(step, Exact);
      run_[victim].StartStep(step);
      again[victim] = true;
    }
    for (size_t rank = 0; rank < 4; ++rank) {
      if (again[rank]) run_[rank].FinishStep().IgnoreError();
    }
    ASSERT_TRUE(StepUntilItWorks(run_, step).ok());  // repeated where it was done
  }
  EXPECT_EQ(Parameters(), Undisturbed(job_, 20));
}

TEST_F(ImpatientClusterTest, AWorkerMissingOnOneNodeEndsTheStepOnTheOthersInTime) {
  for (size_t rank = 0; rank < 3; ++rank) {
    run_[rank].FillAndSubmit(1, Exact);
    run_[rank].StartStep(1);
  }
  for (size_t rank = 0; rank < 3; ++rank) {
    const absl::Status status = run_[rank].FinishStep().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  }
  EXPECT_TRUE(StepUntilItWorks(run_, 1).ok());
  EXPECT_EQ(Parameters(), Undisturbed(job_, 1));
}

// One worker on each of three nodes. When a message from the second to the third is lost, the first may
// end the step without them.
class LostMessageTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(run_.Start(Rows(job_, 3, true)).ok()); }

  // Loses the message after `passing` others in a step; the ranks that do not know the step's end.
  std::vector<size_t> Step(uint64_t step, uint64_t passing) {
    cluster_.switchboard().Cut("node-1", "node-2", passing);
    for (size_t rank = 0; rank < 3; ++rank) run_[rank].FillAndSubmit(step, Exact);
    const auto answers = run_.StepAsSubmitted(step);
    std::vector<size_t> lost;
    for (size_t rank = 0; rank < 3; ++rank) {
      if (answers[rank].ok()) continue;
      EXPECT_EQ(wire::ReasonOf(answers[rank].status()), v1::ERROR_REASON_PEER_LOST);
      lost.push_back(rank);
    }
    return lost;
  }
  // Only those who do not know ask again.
  void Ask(uint64_t step, std::vector<size_t> ranks) {
    for (int i = 0; i < 20 && !ranks.empty(); ++i) {
      for (const size_t rank : ranks) run_[rank].StartStep(step);
      std::erase_if(ranks, [&](size_t rank) { return run_[rank].FinishStep().ok(); });
    }
    EXPECT_TRUE(ranks.empty()) << "step " << step;
  }

  const TestJob job_ = Model(3);
  TestCluster cluster_{3, Impatient(absl::Seconds(1))};
  TestRun run_{{&cluster_.engine(0), &cluster_.engine(1), &cluster_.engine(2)}, job_};
};

TEST_F(LostMessageTest, WhoKnowsTheStepsEndHelpsThoseWhoDoNot) {
  uint64_t step = 1;
  bool helped = false;
  for (std::vector<size_t> lost = {0, 1, 2}; !lost.empty(); ++step) {
    lost = Step(step, /*passing=*/step - 1);
    helped |= !lost.empty() && lost.size() < 3;
    Ask(step, lost);
  }
  EXPECT_TRUE(helped);
  const auto undisturbed = Undisturbed(job_, step - 1);
  for (size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(ParametersOf(run_[rank], job_), undisturbed[rank]);
}

TEST_F(LostMessageTest, AJobIsKeptUntilItHasEndedOnAllNodes) {
  uint64_t step = 0;
  std::vector<size_t> lost;
  do {
    ++step;
    lost = Step(step, /*passing=*/step - 1);
    if (lost.size() == 3) Ask(step, lost);
  } while (lost.size() == 3);
  ASSERT_EQ(lost, (std::vector<size_t>{1, 2}));
  ASSERT_TRUE(run_[0].Close().ok());
  Ask(step, lost);
  EXPECT_EQ(cluster_.engine(0).JobStatuses().size(), 1U);
  for (const size_t rank : {1U, 2U}) EXPECT_TRUE(run_[rank].Close().ok());
  for (size_t node = 0; node < 3; ++node) EXPECT_TRUE(HasNoJobSoon(cluster_.engine(node)));
}

TEST(ClusterDrainTest, ANodeThatWaitsForAnotherDrainsAtOnce) {
  EngineOptions options = TwoSlots();
  options.step_timeout = absl::Seconds(600);
  options.orphan_timeout = absl::Hours(1);
  const TestJob job = Model(2);
  TestCluster cluster(2, options);
  TestRun run({&cluster.engine(0), &cluster.engine(1)}, job);
  ASSERT_TRUE(run.Start(Rows(job, 2, true)).ok());
  run[0].FillAndSubmit(1, Exact);
  run[0].StartStep(1);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  cluster.engine(0).Drain();
  EXPECT_EQ(wire::ReasonOf(run[0].FinishStep().status()), v1::ERROR_REASON_DRAINING);
}

TEST_F(ClusterTest, ARankOfAnotherNodeIsRefusedByName) {
  TestWorker stray(&cluster_.engine(1), &job_, 0);
  ASSERT_TRUE(stray.Open().ok());
  stray.StartRegister(Rows(job_, 4, true)[0]);
  EXPECT_THAT(std::string(stray.FinishRegister().message()), HasSubstr("rank 0"));
}

}  // namespace
}  // namespace dmuon::node
