// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Sessions, failures and limits of a node.
#include "daemon/node/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/daemon/node/diverging_backend.h"
#include "tests/daemon/node/test_node.h"
#include "tests/support/many_tensors.h"
#include "wire/error.h"
#include "wire/grpc_status.h"

namespace dmuon::node {
namespace {

using ::testing::HasSubstr;

std::string Text(const absl::Status& status) { return std::string(status.message()); }

TestJob SmallJob(uint32_t world_size, const std::string& id = "small") {
  TestJob job(id, world_size);
  job.Add("w", {6, 4});
  job.Add("b", {6}, 1);
  return job;
}

absl::Status FirstError(const std::vector<absl::StatusOr<v1::StepResponse>>& answers) {
  for (const auto& answer : answers) {
    if (!answer.ok()) return answer.status();
  }
  return absl::OkStatus();
}

class EngineTest : public ::testing::Test {
 protected:
  explicit EngineTest(const EngineOptions& options = Options()) : node_(options) {}
  static EngineOptions Options() {
    EngineOptions options;
    options.slots = 2;
    return options;
  }

  TestNode node_;
  Engine& engine_ = node_.engine();
};

// For what is found out by waiting in vain.
class ImpatientEngineTest : public EngineTest {
 protected:
  ImpatientEngineTest() : EngineTest(Impatient()) {}
  static EngineOptions Impatient() {
    EngineOptions options = Options();
    options.step_timeout = absl::Seconds(1);
    options.attach_timeout = absl::Milliseconds(300);
    return options;
  }
};

TEST_F(EngineTest, SeveralJobsRunAtOnceAndDoNotTouchEachOther) {
  const TestJob first = SmallJob(2, "first");
  const TestJob second = SmallJob(3, "second");
  const auto train = [&](const TestJob& job, std::vector<float>* result) {
    TestRun run(&engine_, job);
    EXPECT_TRUE(run.Start().ok());
    for (uint64_t step = 1; step <= 20; ++step) EXPECT_TRUE(FirstError(run.Step(step)).ok());
    *result = run.Gathered(0);
  };
  std::vector<float> a;
  std::vector<float> b;
  std::thread other([&] { train(second, &b); });
  train(first, &a);
  other.join();
  EXPECT_EQ(a, b);
}

TEST_F(EngineTest, HolesAndOverlapsAreRefusedToAllRanksAndTheJobMayTryAgain) {
  const TestJob job = SmallJob(2);
  TestRun run(&engine_, job);
  std::vector<wire::ShardBoxes> hole = run[1].DefaultShards();
  hole[0].grad.length[0] -= 1;
  for (size_t rank = 0; rank < 2; ++rank) ASSERT_TRUE(run[rank].Open().ok());
  run[0].StartRegister(run[0].DefaultShards());
  run[1].StartRegister(hole);
  for (size_t rank = 0; rank < 2; ++rank) {
    const absl::Status status = run[rank].FinishRegister();
    EXPECT_EQ(wire::ReasonOf(status), v1::ERROR_REASON_COVERAGE) << status;
    EXPECT_THAT(Text(status), HasSubstr("'w'"));
  }
  for (size_t rank = 0; rank < 2; ++rank) run[rank].StartRegister(run[rank].DefaultShards());
  for (size_t rank = 0; rank < 2; ++rank) EXPECT_TRUE(run[rank].FinishRegister().ok());
}

TEST_F(EngineTest, RanksThatDescribeDifferentJobsAreRefused) {
  const TestJob job = SmallJob(2);
  TestJob different = SmallJob(2);
  different.spec.mutable_tensors(1)->set_name("c");
  TestWorker first(&engine_, &job, 0);
  TestWorker second(&engine_, &different, 1);
  ASSERT_TRUE(first.Open().ok());
  ASSERT_TRUE(second.Open().ok());
  first.StartRegister(first.DefaultShards());
  second.StartRegister(second.DefaultShards());
  const absl::Status status = second.FinishRegister();
  EXPECT_EQ(wire::ReasonOf(status), v1::ERROR_REASON_SPEC_MISMATCH) << status;
}

TEST_F(EngineTest, AWorldSizeThatDiffersIsRefused) {
  const TestJob job = SmallJob(2);
  const TestJob other = SmallJob(3);
  TestWorker first(&engine_, &job, 0);
  TestWorker second(&engine_, &other, 1);
  ASSERT_TRUE(first.Open().ok());
  EXPECT_THAT(Text(second.Open()), HasSubstr("has world size 2, rank 1 says 3"));
}

TEST_F(EngineTest, BadRequestsAreRefusedBeforeAJobIsTouched) {
  TestJob job = SmallJob(1);
  job.spec.mutable_tensors(0)->set_param_dtype(v1::DTYPE_UNSPECIFIED);
  TestWorker worker(&engine_, &job, 0);
  ASSERT_TRUE(worker.Open().ok());
  worker.StartRegister(worker.DefaultShards());
  EXPECT_THAT(Text(worker.FinishRegister()), HasSubstr("tensor 'w': param_dtype is 0"));
  job.spec.set_job_id("no spaces allowed");
  EXPECT_FALSE(TestWorker(&engine_, &job, 0).Open().ok());
}

// As a backend that has no kernels for an optimizer.
class WithoutMuon final : public DivergingBackend {
 public:
  [[nodiscard]] absl::Status Supports(const kernels::Optimizer& optimizer) const override {
    return optimizer.needs_whole_matrix() ? absl::InvalidArgumentError("no kernels here") : absl::OkStatus();
  }
};

TEST_F(EngineTest, AnOptimizerThatTheBackendLacksIsRefusedByGroup) {
  TestNode node(Options(), std::make_unique<WithoutMuon>());
  const TestJob job = SmallJob(1);
  TestRun run(&node.engine(), job);
  const absl::Status status = run.Start();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Text(status), HasSubstr("group 'muon': no kernels here"));
}

TEST_F(EngineTest, AnotherProtocolVersionIsRefused) {
  v1::OpenRequest request;
  request.set_job_id("job");
  request.set_world_size(1);
  request.set_incarnation("x");
  request.set_protocol_version(wire::kProtocolVersion + 1);
  absl::Status status;
  engine_.Open(request, [&](absl::StatusOr<v1::OpenResponse> r) { status = r.status(); });
  EXPECT_EQ(wire::ReasonOf(status), v1::ERROR_REASON_PROTOCOL_VERSION);
}

TEST_F(EngineTest, AWrongTokenOpensNoChannel) {
  wire::ChannelFrame hello;
  hello.session_id = 12345;
  EXPECT_EQ(engine_.Hello(hello, 0, -1).code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(EngineTest, ALiveRankCannotBeTaken) {
  const TestJob job = SmallJob(1);
  TestWorker first(&engine_, &job, 0);
  TestWorker second(&engine_, &job, 0);
  ASSERT_TRUE(first.Open("one").ok());
  EXPECT_EQ(wire::ReasonOf(second.Open("two")), v1::ERROR_REASON_RANK_TAKEN);
}

TEST_F(ImpatientEngineTest, ASessionThatNeverSaysHelloIsDropped) {
  const TestJob job = SmallJob(1);
  v1::OpenRequest request;
  request.set_job_id("small");
  request.set_world_size(1);
  request.set_incarnation("silent");
  request.set_protocol_version(wire::kProtocolVersion);
  engine_.Open(request, [](const absl::StatusOr<v1::OpenResponse>&) {});
  ASSERT_EQ(engine_.JobStatuses().size(), 1U);
  ASSERT_TRUE(HasNoJobSoon(engine_));
}

TEST_F(EngineTest, AWorkerKilledOnItsWayToTheHelloDoesNotHoldItsRank) {
  const TestJob job = SmallJob(1);
  v1::OpenRequest request;
  request.set_job_id("small");
  request.set_world_size(1);
  request.set_incarnation("killed");
  request.set_protocol_version(wire::kProtocolVersion);
  wire::ChannelFrame hello;
  engine_.Open(request, [&](const absl::StatusOr<v1::OpenResponse>& opened) {
    hello.session_id = opened.value().session_id();
    std::copy_n(opened.value().token().begin(), hello.token.size(), hello.token.begin());
  });
  TestWorker successor(&engine_, &job, 0);
  EXPECT_TRUE(successor.Open("successor").ok());
  EXPECT_EQ(engine_.Hello(hello, 0, -1).code(), absl::StatusCode::kPermissionDenied);
  // In a job that the engine knows: the plan arrives.
  successor.StartRegister(successor.DefaultShards());
  EXPECT_TRUE(successor.FinishRegister().ok());
}

TEST_F(EngineTest, AnswersToAFormerLifeOfAJobChangeNothing) {
  const TestJob job = SmallJob(2);
  {
    TestRun former(&engine_, job);
    ASSERT_TRUE(former.Start().ok());
    for (size_t rank = 0; rank < 2; ++rank) ASSERT_TRUE(former[rank].Close().ok());
  }
  ASSERT_TRUE(HasNoJobSoon(engine_));
  const std::vector<v1::WatchPlansResponse> events = node_.events();
  ASSERT_EQ(events.size(), 1U);
  v1::WatchPlansResponse refusal;
  refusal.mutable_refusal()->set_job_id("small");
  refusal.mutable_refusal()->set_code(static_cast<int>(absl::StatusCode::kInvalidArgument));
  refusal.set_last_sequence(events[0].last_sequence());
  TestRun run(&engine_, job);
  for (size_t rank = 0; rank < 2; ++rank) ASSERT_TRUE(run[rank].Open().ok());
  run[0].StartRegister(run[0].DefaultShards());
  node_.Replay(events[0]);
  node_.Replay(refusal);
  run[1].StartRegister(run[1].DefaultShards());
  node_.Replay(events[0]);
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(run[rank].FinishRegister().ok());
    EXPECT_GT(run[rank].generation, events[0].plan().generation());
  }
}

TEST_F(EngineTest, StaleGenerationAndJumpsChangeNothing) {
  const TestJob job = SmallJob(1);
  TestRun run(&engine_, job);
  ASSERT_TRUE(run.Start().ok());
  ASSERT_TRUE(FirstError(run.Step(1)).ok());
  const std::vector<float> before = run.Gathered(0);
  EXPECT_EQ(wire::ReasonOf(FirstError(run.Step(3))), v1::ERROR_REASON_STEP_OUT_OF_ORDER);
  ++run[0].generation;
  EXPECT_EQ(wire::ReasonOf(FirstError(run.Step(2))), v1::ERROR_REASON_STALE_GENERATION);
  EXPECT_EQ(run.Gathered(0), before);
  --run[0].generation;
  EXPECT_TRUE(FirstError(run.Step(2)).ok());
}

TEST_F(EngineTest, AResubmittedStepIsDeliveredButNotAppliedAgain) {
  const TestJob job = SmallJob(2);
  TestRun run(&engine_, job);
  ASSERT_TRUE(run.Start().ok());
  ASSERT_TRUE(FirstError(run.Step(1)).ok());
  const std::vector<float> once = run.Gathered(0);
  for (float& element : run[1].param(0)) element = -1.0F;
  for (const auto& answer : run.Step(1)) {
    ASSERT_TRUE(answer.ok());
    EXPECT_TRUE(answer->replayed());
    EXPECT_EQ(answer->newton_schulz_calls(), 1U);
  }
  EXPECT_EQ(run.Gathered(0), once);
}

TEST_F(EngineTest, HyperParametersMustAgreeAndBeSound) {
  const TestJob job = SmallJob(2);
  TestRun run(&engine_, job);
  ASSERT_TRUE(run.Start().ok());
  run[1].weight_decay = 0.2;
  EXPECT_EQ(wire::ReasonOf(FirstError(run.Step(1))), v1::ERROR_REASON_HYPER_MISMATCH);
  run[0].momentum = run[1].momentum = 1.5;
  run[1].weight_decay = run[0].weight_decay;
  EXPECT_THAT(Text(FirstError(run.Step(1))), HasSubstr("group 'muon': momentum is 1.5"));
  run[0].momentum = run[1].momentum = 0.9;
  EXPECT_TRUE(FirstError(run.Step(1)).ok());
}

TEST_F(ImpatientEngineTest, AMissingWorkerIsNamedWithinTheDeadlineAndTheStepCanBeRetried) {
  const TestJob job = SmallJob(3);
  TestRun run(&engine_, job);
  ASSERT_TRUE(run.Start().ok());
  for (size_t rank = 0; rank < 3; ++rank) run[rank].FillAndSubmit(1, TestRun::Gradient);
  run[0].StartStep(1);
  run[2].StartStep(1);
  for (const size_t rank : {0U, 2U}) {
    const absl::Status status = run[rank].FinishStep().status();
    EXPECT_EQ(wire::ReasonOf(status), v1::ERROR_REASON_WORKER_MISSING);
    EXPECT_THAT(Text(status), HasSubstr("waits for rank 1"));
  }
  EXPECT_TRUE(FirstError(run.StepAsSubmitted(1)).ok());
}

TEST_F(EngineTest, AKilledWorkerReturnsGetsParametersAndTheRunEndsWithTheSameBits) {
  const TestJob job = SmallJob(2);
  TestRun run(&engine_, job);
  ASSERT_TRUE(run.Start().ok());
  ASSERT_TRUE(FirstError(run.Step(1)).ok());
  // Rank 1 dies inside step 2, after it has submitted.
  for (size_t rank = 0; rank < 2; ++rank) run[rank].FillAndSubmit(2, TestRun::Gradient);
  run[1].StartStep(2);
  run[1].Die();
  EXPECT_FALSE(run[1].FinishStep().ok());
  const absl::Status reopened = run[1].Open("second-life");
  ASSERT_TRUE(reopened.ok()) << reopened;
  run[1].StartRegister(run[1].DefaultShards());
  ASSERT_TRUE(run[1].FinishRegister().ok());
  run[1].StartBegin();
  const absl::StatusOr<v1::BeginResponse> begun = run[1].FinishBegin();
  ASSERT_TRUE(begun.ok()) << begun.status();
  EXPECT_EQ(begun->last_step(), 1U);
  EXPECT_TRUE(begun->resumed());
  for (uint64_t step = 2; step <= 4; ++step) ASSERT_TRUE(FirstError(run.Step(step)).ok());

  const TestJob quiet = SmallJob(2, "quiet");
  TestRun undisturbed(&engine_, quiet);
  ASSERT_TRUE(undisturbed.Start().ok());
  for (uint64_t step = 1; step <= 4; ++step) {
    ASSERT_TRUE(FirstError(undisturbed.Step(step)).ok());
  }
  EXPECT_EQ(run.Gathered(0), undisturbed.Gathered(0));
  EXPECT_EQ(run.Gathered(1), undisturbed.Gathered(1));
}

TEST_F(EngineTest, AReturningWorkerMustRegisterTheSameThing) {
  const TestJob job = SmallJob(1);
  TestRun run(&engine_, job);
  ASSERT_TRUE(run.Start().ok());
  run[0].Die();
  TestJob different = SmallJob(1);
  different.Add("extra", {3}, 1);
  TestWorker worker(&engine_, &different, 0);
  ASSERT_TRUE(worker.Open("other").ok());
  worker.StartRegister(worker.DefaultShards());
  EXPECT_EQ(wire::ReasonOf(worker.FinishRegister()), v1::ERROR_REASON_SPEC_MISMATCH);
}

TEST_F(EngineTest, AClosedJobLeavesNothingBehindAndItsIdIsFreeAgain) {
  for (int life = 0; life < 3; ++life) {
    const TestJob job = SmallJob(2);
    TestRun run(&engine_, job);
    absl::Status started = run.Start();
    for (int i = 0; i < 100 && absl::IsUnavailable(started); ++i) {  // the last life is just ending
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      started = run.Start();
    }
    ASSERT_TRUE(started.ok()) << started;
    ASSERT_TRUE(FirstError(run.Step(1)).ok());
    for (size_t rank = 0; rank < 2; ++rank) ASSERT_TRUE(run[rank].Close().ok());
  }
  for (int i = 0; i < 100 && !engine_.JobStatuses().empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_TRUE(engine_.JobStatuses().empty());
}

// All on the thread of the job that ends, so the order is that of the inputs: its end, a worker that comes again, what the
// coordinator says for the second time.
TEST_F(EngineTest, AJobThatHearsOfItsEndTwiceDoesNotTakeItsSuccessorAlong) {
  const TestJob job = SmallJob(2);
  TestRun run(&engine_, job);
  ASSERT_TRUE(run.Start().ok());
  v1::WatchPlansResponse end;
  end.mutable_end()->set_job_id(job.spec.job_id());
  end.mutable_end()->set_generation(run[0].generation);
  v1::OpenRequest next;
  next.set_job_id(job.spec.job_id());
  next.set_world_size(2);
  next.set_incarnation("next-life");
  next.set_protocol_version(wire::kProtocolVersion);
  using Opened = absl::StatusOr<v1::OpenResponse>;
  std::promise<Opened> ended;
  std::promise<Opened> opened;
  std::promise<Opened> told_twice;
  engine_.Open(next, [&](const Opened& taken) {
    EXPECT_EQ(wire::ReasonOf(taken.status()), v1::ERROR_REASON_RANK_TAKEN);
    node_.Replay(end);
    engine_.Open(next, [&](const Opened& late) {
      ended.set_value(late);
      engine_.Open(next, [&](const Opened& answer) { opened.set_value(answer); });
    });
    node_.Replay(end);
    engine_.Open(next, [&](const Opened& late) { told_twice.set_value(late); });
  });
  EXPECT_EQ(wire::ReasonOf(ended.get_future().get().status()), v1::ERROR_REASON_DRAINING);
  EXPECT_EQ(wire::ReasonOf(told_twice.get_future().get().status()), v1::ERROR_REASON_DRAINING);
  ASSERT_TRUE(opened.get_future().get().ok());
  EXPECT_EQ(engine_.JobStatuses().size(), 1U);
}

TEST_F(EngineTest, InitialParametersThatAreNotFiniteAreRefused) {
  const TestJob job = SmallJob(1);
  TestRun run(&engine_, job);
  ASSERT_TRUE(run[0].Open().ok());
  run[0].StartRegister(run[0].DefaultShards());
  ASSERT_TRUE(run[0].FinishRegister().ok());
  run[0].FillParams([](size_t, int64_t) { return std::numeric_limits<float>::infinity(); });
  run[0].StartBegin();
  EXPECT_THAT(Text(run[0].FinishBegin().status()), HasSubstr("initial parameter 'w'"));
  run[0].FillParams(TestRun::Param);
  run[0].StartBegin();
  EXPECT_TRUE(run[0].FinishBegin().ok());
}

TEST_F(EngineTest, DrainingAnswersEverythingThatWaits) {
  TestNode node(Options());
  const TestJob job = SmallJob(2);
  TestRun run(&node.engine(), job);
  ASSERT_TRUE(run.Start().ok());
  run[0].FillAndSubmit(1, TestRun::Gradient);
  run[0].StartStep(1);
  node.engine().Drain();
  EXPECT_EQ(run[0].FinishStep().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(wire::ReasonOf(TestWorker(&node.engine(), &job, 1).Open()), v1::ERROR_REASON_DRAINING);
}

TEST_F(EngineTest, MemoryIsBoundedAndGivenBack) {
  EngineOptions options = Options();
  options.memory_limit_bytes = 64 << 10;
  TestNode node(options);
  for (int life = 0; life < 3; ++life) {
    TestJob job(absl::StrCat("big", life), 1);
    job.Add("w", {100, 100});
    TestRun run(&node.engine(), job);
    EXPECT_EQ(wire::ReasonOf(run.Start()), v1::ERROR_REASON_LIMIT);
    TestJob fits(absl::StrCat("fits", life), 1);
    fits.Add("w", {20, 20});
    TestRun small(&node.engine(), fits);
    EXPECT_TRUE(small.Start().ok());
    EXPECT_TRUE(small[0].Close().ok());
    EXPECT_TRUE(run[0].Close().ok());
  }
}

TEST_F(EngineTest, JobsAndSessionsAreBounded) {
  EngineOptions options = Options();
  options.max_jobs = 1;
  TestNode node(options);
  const TestJob one = SmallJob(2, "one");
  const TestJob two = SmallJob(1, "two");
  TestWorker first(&node.engine(), &one, 0);
  TestWorker second(&node.engine(), &two, 0);
  ASSERT_TRUE(first.Open().ok());
  EXPECT_THAT(Text(second.Open()), HasSubstr("1 jobs, allowed are 1"));
}

// A job of many small tensors is registered and stepped; messages stay within their bound.
TEST(EngineScaleTest, AHundredThousandTensorsAreAccepted) {
  EngineOptions options;
  options.slots = 2;
  TestNode node(options);
  TestJob job("many", 2);
  for (int i = 0; i < kManyTensors; ++i) {
    job.Add(absl::StrCat("model.layers.", i, ".weight"), {4, 4}, i % 2 == 0 ? 0 : 1);
  }
  EXPECT_LT(job.spec.ByteSizeLong(), static_cast<size_t>(wire::kMaxMessageBytes));
  TestRun run(&node.engine(), job);
  const absl::Status started = run.Start();
  ASSERT_TRUE(started.ok()) << started;
  for (const auto& answer : run.Step(1)) {
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->newton_schulz_calls(), static_cast<uint64_t>(kManyTensors / 2));
  }
}

TEST(EngineOptionsTest, TimeoutsOutOfOrderAreRefused) {
  EngineOptions options;
  EXPECT_TRUE(options.Validate().ok());
  options.attach_timeout = absl::Seconds(61);
  EXPECT_THAT(Text(options.Validate()), HasSubstr("--attach-timeout is 1m1s"));
  options = EngineOptions();
  options.orphan_timeout = absl::Seconds(1);
  EXPECT_THAT(Text(options.Validate()), HasSubstr("--orphan-timeout"));
  options = EngineOptions();
  options.slots = 0;
  EXPECT_THAT(Text(options.Validate()), HasSubstr("--slots is 0"));
}

}  // namespace
}  // namespace dmuon::node
