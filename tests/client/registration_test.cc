// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What a worker may register with a real daemon, and what it is told otherwise.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "tests/client/daemon_process.h"
#include "tests/client/worker.h"
#include "tests/support/many_tensors.h"

namespace dmuon::client {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

class RegistrationTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { daemon_ = new DaemonProcess(DMUOND); }
  static void TearDownTestSuite() {
    delete daemon_;
    daemon_ = nullptr;
  }
  // A job of its own for every test.
  static std::string Job() {
    return ::testing::UnitTest::GetInstance()->current_test_info()->name();
  }
  static Worker MakeWorker(uint32_t rank = 0, uint32_t world_size = 1) {
    return Worker(daemon_->address(), Job(), rank, world_size);
  }
  static Failure RegisterAlone(Worker& worker) {
    return FailureOf([&] { worker.client().register_tensors(kPatienceMs); });
  }
  // What both ranks are told when they hold rows [first, last) of a 4 x 6 matrix.
  static std::vector<Failure> RegisterRows(std::vector<std::pair<int64_t, int64_t>> rows) {
    std::vector<Failure> failures(rows.size());
    const auto world_size = static_cast<uint32_t>(rows.size());
    OnAllRanks(world_size, [&](uint32_t rank) {
      Worker worker = MakeWorker(rank, world_size);
      WholeTensor tensor("matrix", {4, 6}, worker.muon());
      tensor.grad_box.offset[0] = tensor.param_box.offset[0] = rows[rank].first;
      tensor.grad_box.length[0] = tensor.param_box.length[0] = rows[rank].second - rows[rank].first;
      worker.Add(tensor);
      failures[rank] = RegisterAlone(worker);
    });
    return failures;
  }

  static DaemonProcess* daemon_;
};
DaemonProcess* RegistrationTest::daemon_ = nullptr;

TEST_F(RegistrationTest, ThePlanSaysHowManyMatricesAreOrthogonalized) {
  Worker worker = MakeWorker();
  worker.AddTensors();
  const dmuon_plan_info plan = worker.client().register_tensors(kPatienceMs);
  EXPECT_GE(plan.generation, 1u);
  EXPECT_EQ(plan.matrix_units, 1u);
  EXPECT_EQ(plan.elementwise_units, 1u);
  EXPECT_GE(plan.arena_bytes, 2 * (24 + 4) * sizeof(float));
}

TEST_F(RegistrationTest, UnevenAndEmptyShardsAreAccepted) {  // cases rows 1, 2, 4
  for (const Failure& failure : RegisterRows({{0, 3}, {3, 4}, {4, 4}})) {
    EXPECT_EQ(failure.status, DMUON_OK) << failure.message;
  }
}

TEST_F(RegistrationTest, AHoleIsRefusedOnEveryRankByTensorAndRange) {  // cases row 12
  for (const Failure& failure : RegisterRows({{0, 2}, {3, 4}})) {
    EXPECT_EQ(failure.status, DMUON_COVERAGE);
    EXPECT_THAT(failure.message, AllOf(HasSubstr("matrix"), HasSubstr("[2:3")));
  }
}

TEST_F(RegistrationTest, APartialOverlapIsRefusedOnEveryRank) {
  for (const Failure& failure : RegisterRows({{0, 3}, {2, 4}})) {
    EXPECT_EQ(failure.status, DMUON_COVERAGE);
    EXPECT_THAT(failure.message, HasSubstr("matrix"));
  }
}

TEST_F(RegistrationTest, WorkersOfOneJobMustAgree) {
  std::vector<Failure> failures(2);
  OnAllRanks(2, [&](uint32_t rank) {
    Worker worker = MakeWorker(rank, 2);
    worker.Add(WholeTensor("matrix", {4, rank == 0 ? 6 : 5}, worker.muon()));
    failures[rank] = FailureOf([&] { worker.client().register_tensors(kPatienceMs); });
  });
  // The first to arrive is told, too.
  for (const Failure& failure : failures) {
    EXPECT_EQ(failure.status, DMUON_SPEC_MISMATCH) << failure.message;
  }
}

TEST_F(RegistrationTest, ATensorOfAnUnknownGroupIsRefused) {
  Worker worker = MakeWorker();
  worker.Add(WholeTensor("matrix", {4, 6}, 9));
  const Failure failure = RegisterAlone(worker);
  EXPECT_EQ(failure.status, DMUON_INVALID_ARGUMENT);
  EXPECT_THAT(failure.message, AllOf(HasSubstr("matrix"), HasSubstr("9")));
}

TEST_F(RegistrationTest, AnUnknownDtypeIsRefused) {
  Worker worker = MakeWorker();
  WholeTensor tensor("matrix", {4, 6}, worker.muon());
  const int32_t unknown = 7;
  std::memcpy(&tensor.grad_dtype, &unknown, sizeof(unknown));
  const Failure failure = FailureOf([&] { worker.Add(tensor); });
  EXPECT_EQ(failure.status, DMUON_INVALID_ARGUMENT);
  EXPECT_THAT(failure.message, AllOf(HasSubstr("matrix"), HasSubstr("grad_dtype 7")));
}

TEST_F(RegistrationTest, AShapeWhoseProductOverflowsIsRefused) {
  Worker worker = MakeWorker();
  const int64_t huge = int64_t{1} << 31;
  worker.Add(WholeTensor("vector", {huge, huge, huge}, worker.adamw()));
  const Failure failure = RegisterAlone(worker);
  EXPECT_EQ(failure.status, DMUON_INVALID_ARGUMENT);
  EXPECT_THAT(failure.message, HasSubstr("vector"));
}

TEST_F(RegistrationTest, AFlatShardOfAMatrixOptimizerIsRefused) {  // cases row 28
  Worker worker = MakeWorker();
  worker.Add(WholeTensor("flat", {24}, worker.muon()));
  const Failure failure = RegisterAlone(worker);
  EXPECT_EQ(failure.status, DMUON_INVALID_ARGUMENT);
  EXPECT_THAT(failure.message, HasSubstr("flat"));
}

TEST_F(RegistrationTest, RowBlocksMustAddUpToTheRows) {  // cases row 54
  Worker worker = MakeWorker();
  WholeTensor tensor("qkv", {4608, 2}, worker.muon());
  const int64_t blocks[] = {2048, 256, 256};
  tensor.row_blocks = blocks;
  tensor.row_block_count = std::size(blocks);
  worker.Add(tensor);
  const Failure failure = RegisterAlone(worker);
  EXPECT_EQ(failure.status, DMUON_INVALID_ARGUMENT);
  EXPECT_THAT(failure.message, AllOf(HasSubstr("qkv"), HasSubstr("4608")));
}

TEST_F(RegistrationTest, AStackThatNobodyExplainedIsRefusedWithTheChoices) {  // cases row 17
  Worker worker = MakeWorker();
  worker.Add(WholeTensor("experts", {4, 6, 2}, worker.muon()));
  const Failure failure = RegisterAlone(worker);
  EXPECT_EQ(failure.status, DMUON_INVALID_ARGUMENT);
  EXPECT_THAT(failure.message, AllOf(HasSubstr("'experts'"), HasSubstr("flatten"), HasSubstr("a stack of matrices, 6 x 2")));
}

TEST_F(RegistrationTest, ViewsAndRepeatsReachThePlan) {
  Worker worker = MakeWorker();
  WholeTensor experts("experts", {4, 6, 2}, worker.muon());
  experts.view = DMUON_VIEW_EXPERTS;
  const int64_t blocks[] = {1, 1};
  experts.row_blocks = blocks;
  experts.row_block_count = std::size(blocks);
  experts.row_repeats = 3;
  worker.Add(experts);
  WholeTensor kernel("kernel", {4, 6, 2}, worker.muon());
  kernel.view = DMUON_VIEW_FLATTEN;
  worker.Add(kernel);
  EXPECT_EQ(worker.client().register_tensors(kPatienceMs).matrix_units, 9U);
}

TEST_F(RegistrationTest, AViewThatThisLibraryDoesNotKnowIsRefused) {
  Worker worker = MakeWorker();
  WholeTensor tensor("t", {4, 6, 2}, worker.muon());
  const int32_t unknown = 3;
  std::memcpy(&tensor.view, &unknown, sizeof(unknown));
  const Failure failure = FailureOf([&] { worker.Add(tensor); });
  EXPECT_EQ(failure.status, DMUON_INVALID_ARGUMENT);
  EXPECT_THAT(failure.message, HasSubstr("t.view 3 is not in 0..2"));
}

TEST_F(RegistrationTest, ABoxOutsideItsTensorIsRefused) {
  Worker worker = MakeWorker();
  WholeTensor tensor("matrix", {4, 6}, worker.muon());
  tensor.param_box.offset[1] = std::numeric_limits<int64_t>::max();
  worker.Add(tensor);
  const Failure failure = RegisterAlone(worker);
  EXPECT_EQ(failure.status, DMUON_INVALID_ARGUMENT);
  EXPECT_THAT(failure.message, HasSubstr("matrix"));
}

TEST_F(RegistrationTest, ARefusedWorkerMayTryAgain) {
  for (const int64_t rows : {0, 4}) {  // nothing of the tensor, then all of it
    Worker worker = MakeWorker();
    WholeTensor tensor("matrix", {4, 6}, worker.muon());
    tensor.grad_box.length[0] = tensor.param_box.length[0] = rows;
    worker.Add(tensor);
    EXPECT_EQ(RegisterAlone(worker).status, rows == 0 ? DMUON_COVERAGE : DMUON_OK);
  }
}

TEST_F(RegistrationTest, ASecondLiveWorkerOfARankIsRefused) {
  Worker first = MakeWorker();
  Config config;
  const std::string address = daemon_->address();
  const std::string job = Job();
  config.address = address.c_str();
  config.job_id = job.c_str();
  config.connect_timeout_ms = 100;
  const Failure failure = FailureOf([&] { Client second(config); });
  EXPECT_EQ(failure.status, DMUON_RANK_TAKEN);
  EXPECT_THAT(failure.message, HasSubstr(job));
}

TEST_F(RegistrationTest, CallsOutOfOrderAreRefused) {
  Worker worker = MakeWorker();
  worker.AddTensors();
  Client& client = worker.client();
  EXPECT_EQ(FailureOf([&] { (void)client.param_buffer(0); }).status, DMUON_NOT_READY);
  EXPECT_EQ(FailureOf([&] { client.submit(0, 1); }).status, DMUON_NOT_READY);
  EXPECT_EQ(FailureOf([&] { client.expect_gradients(1); }).status, DMUON_NOT_READY);
  EXPECT_EQ(FailureOf([&] { client.begin(0); }).status, DMUON_NOT_READY);
  client.register_tensors(kPatienceMs);
  EXPECT_EQ(FailureOf([&] { worker.Start(1); }).status, DMUON_NOT_READY);
  EXPECT_EQ(FailureOf([&] { worker.AddTensors(); }).status, DMUON_NOT_READY);
  EXPECT_EQ(FailureOf([&] { client.submit(2, 1); }).status, DMUON_INVALID_ARGUMENT);
  client.begin(kPatienceMs);
  EXPECT_EQ(FailureOf([&] { client.submit(0, 0); }).status, DMUON_INVALID_ARGUMENT);
  EXPECT_EQ(FailureOf([&] { client.wait(1, 0); }).status, DMUON_NOT_READY);
  EXPECT_EQ(FailureOf([&] { client.step(1, {}); }).status, DMUON_INVALID_ARGUMENT);
}

TEST_F(RegistrationTest, AMissingRankIsAnsweredWithinTheTimeoutAndLosesNothing) {
  Worker first = MakeWorker(0, 2);
  first.AddTensors();
  EXPECT_EQ(FailureOf([&] { first.client().register_tensors(0); }).status, DMUON_DEADLINE_EXCEEDED);
  Worker second = MakeWorker(1, 2);
  second.AddTensors();
  std::thread late([&] { second.client().register_tensors(kPatienceMs); });
  EXPECT_EQ(RegisterAlone(first).status, DMUON_OK);
  late.join();
}

TEST_F(RegistrationTest, AHundredThousandTensorsAreAccepted) {
  constexpr auto kTensors = static_cast<uint32_t>(kManyTensors);
  Worker worker = MakeWorker();
  for (uint32_t t = 0; t < kTensors; ++t) {
    worker.Add(WholeTensor(("layer." + std::to_string(t)).c_str(), {1}, worker.adamw()));
  }
  const Position position = worker.Join(1.0F);
  EXPECT_EQ(position.last_step, 0u);
  worker.Run(1, 1.0F);
  EXPECT_FLOAT_EQ(worker.params(kTensors - 1)[0], 1.0F - static_cast<float>(kRate));
}

}  // namespace
}  // namespace dmuon::client
