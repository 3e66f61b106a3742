// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "wire/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <grpcpp/support/status.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "wire/error.h"
#include "wire/grpc_status.h"

namespace dmuon::wire {
namespace {

using ::testing::HasSubstr;

class ValidateTest : public ::testing::Test {
 protected:
  ValidateTest() {
    job_.set_job_id("job");
    job_.set_world_size(2);
    job_.set_missing_gradient(v1::MISSING_GRADIENT_ERROR);
    v1::Group* muon = job_.add_groups();
    muon->set_name("muon");
    v1::MuonOptions* options = muon->mutable_muon();
    options->set_momentum_form(v1::MOMENTUM_FORM_EMA);
    options->set_coefficients(v1::COEFFICIENT_SET_JORDAN);
    options->set_iterations(5);
    options->set_eps_mode(v1::EPS_MODE_NONE);
    options->set_scale(v1::SCALE_RULE_ORIGINAL);
    v1::Group* adamw = job_.add_groups();
    adamw->set_name("adamw");
    adamw->mutable_adamw()->set_eps(1e-8);
    AddTensor("w", {6, 4}, 0);
  }

  v1::Tensor* AddTensor(const std::string& name, const std::vector<int64_t>& shape, uint32_t group) {
    v1::Tensor* tensor = job_.add_tensors();
    tensor->set_name(name);
    for (const int64_t length : shape) tensor->add_shape(length);
    tensor->set_param_dtype(v1::DTYPE_FLOAT32);
    tensor->set_grad_dtype(v1::DTYPE_FLOAT32);
    tensor->set_group(group);
    return tensor;
  }

  std::string Refusal() {
    const absl::Status status = ValidateJobSpec(job_);
    EXPECT_FALSE(status.ok());
    return std::string(status.message());
  }

  v1::JobSpec job_;
};

TEST_F(ValidateTest, ASoundJobPasses) { EXPECT_TRUE(ValidateJobSpec(job_).ok()); }

TEST_F(ValidateTest, UnknownDtypeNamesTheTensor) {
  AddTensor("blk.0", {2, 2}, 0)->set_grad_dtype(static_cast<v1::DType>(9));
  EXPECT_THAT(Refusal(), HasSubstr("tensor 'blk.0': grad_dtype is 9"));
}

TEST_F(ValidateTest, ShapeWhoseBytesOverflowIsRefused) {
  AddTensor("huge", {int64_t{1} << 31, int64_t{1} << 31, 2, 2}, 1);
  EXPECT_THAT(Refusal(), HasSubstr("tensor 'huge': 2147483648 x 2147483648"));
}

TEST_F(ValidateTest, NegativeAndOversizedLengthsAreRefused) {
  AddTensor("bad", {-3}, 1);
  EXPECT_THAT(Refusal(), HasSubstr("length -3 of dimension 0"));
}

TEST_F(ValidateTest, ASchedulesBoundsAreNamed) {
  v1::CheckpointSchedule& schedule = *job_.mutable_checkpoints();
  EXPECT_TRUE(ValidateJobSpec(job_).ok());  // none are made
  schedule.set_every_steps(1);
  EXPECT_THAT(Refusal(), HasSubstr("checkpoints: keep is 0, allowed are 1..1000"));
  schedule.set_every_steps(0);
  schedule.set_every_seconds(0.5);
  EXPECT_THAT(Refusal(), HasSubstr("keep is 0, allowed are 1..1000"));
  schedule.set_keep(1000);
  EXPECT_TRUE(ValidateJobSpec(job_).ok());
  schedule.set_keep(1001);
  EXPECT_THAT(Refusal(), HasSubstr("keep is 1001, allowed are 1..1000"));
  schedule.set_keep(1);
  schedule.set_every_seconds(kMaxCheckpointSeconds);
  EXPECT_TRUE(ValidateJobSpec(job_).ok());
  for (const double seconds : {-1.0, 2147483649.0, std::numeric_limits<double>::infinity(),
                               std::numeric_limits<double>::quiet_NaN()}) {
    schedule.set_every_seconds(seconds);
    EXPECT_THAT(Refusal(), HasSubstr(absl::StrCat("every_seconds is ", seconds))) << seconds;
  }
}

TEST(CheckpointNameTest, OnlyNamesThatAreSafeFileNamesPass) {
  for (const std::string& name : {std::string("a"), std::string("0"), std::string("step-000000000123"),
                                  std::string("best_1.5-final"), std::string(128, 'x')}) {
    EXPECT_TRUE(ValidateCheckpointName(name).ok()) << name;
  }
  const auto refusal = [](absl::string_view name) { return std::string(ValidateCheckpointName(name).message()); };
  EXPECT_THAT(refusal(""), HasSubstr("0 characters, allowed are 1..128"));
  EXPECT_THAT(refusal(std::string(129, 'x')), HasSubstr("129 characters"));
  EXPECT_THAT(refusal(".."), HasSubstr("character 0, '.', is none of a-z and 0-9, as the first must be"));
  EXPECT_THAT(refusal("a/b"), HasSubstr("character 1, '/', is none of a-z and 0-9 and . _ -"));
  EXPECT_THAT(refusal("Best"), HasSubstr("character 0, 'B'"));
  EXPECT_THAT(refusal("a\n"), HasSubstr("character 1, '\\n'"));
  EXPECT_THAT(refusal(absl::string_view("a\0b", 3)), HasSubstr("character 1, '\\000'"));
}

// cases rows 25, 27, 28: a flattened parameter never reaches Newton-Schulz.
TEST_F(ValidateTest, FlatMatrixForAMatrixOptimizerIsRefused) {
  AddTensor("flat", {1024}, 0);
  EXPECT_THAT(Refusal(), HasSubstr("tensor 'flat': shape [1024] is no matrix"));
}

// cases row 17: a stack that nobody explained.
TEST_F(ValidateTest, MoreThanTwoDimensionsAreAmbiguousWithoutAView) {
  v1::Tensor* stack = AddTensor("experts", {4, 8, 6}, 0);
  EXPECT_THAT(Refusal(), HasSubstr("tensor 'experts': shape [4, 8, 6] is ambiguous for a matrix optimizer: say which view "
                                   "of it is meant, flatten (one matrix of 4 rows, as a convolution kernel) or experts "
                                   "(a stack of matrices, 8 x 6 each), or use adamw"));
  for (const v1::View view : {v1::VIEW_FLATTEN, v1::VIEW_EXPERTS}) {
    stack->set_view(view);
    EXPECT_TRUE(ValidateJobSpec(job_).ok());
  }
  AddTensor("conv", {8, 4, 3, 3}, 0);
  EXPECT_THAT(Refusal(), HasSubstr("tensor 'conv': shape [8, 4, 3, 3] is ambiguous"));
}

TEST_F(ValidateTest, AViewMustFitItsTensor) {
  v1::Tensor* tensor = AddTensor("t", {6, 4}, 0);
  tensor->set_view(v1::VIEW_EXPERTS);
  EXPECT_THAT(Refusal(), HasSubstr("tensor 't': view experts needs at least 3 dimensions, shape [6, 4] has 2"));
  tensor->set_view(static_cast<v1::View>(9));
  EXPECT_THAT(Refusal(), HasSubstr("tensor 't': view is 9, known are"));
  tensor->clear_view();
  tensor->set_group(1);
  EXPECT_TRUE(ValidateJobSpec(job_).ok());
  tensor->set_view(v1::VIEW_FLATTEN);
  EXPECT_THAT(Refusal(), HasSubstr("tensor 't': view, row_blocks and row_repeats have no meaning"));
  tensor->clear_view();
  tensor->set_row_repeats(2);
  EXPECT_THAT(Refusal(), HasSubstr("have no meaning for an element-wise optimizer"));
}

// cases row 54
TEST_F(ValidateTest, RowBlocksThatDoNotSumUpAreRefused) {
  v1::Tensor* qkv = AddTensor("qkv", {4608, 64}, 0);
  for (const int64_t rows : {2048, 256, 256}) qkv->add_row_blocks(rows);
  EXPECT_THAT(Refusal(), HasSubstr("row_blocks sum to 2560 rows of 4608"));
}

TEST_F(ValidateTest, RepeatedRowBlocksMustFillTheRowsExactly) {
  v1::Tensor* tensor = AddTensor("qkv", {24, 4}, 0);
  for (const int64_t rows : {4, 2, 2}) tensor->add_row_blocks(rows);
  tensor->set_row_repeats(3);
  EXPECT_TRUE(ValidateJobSpec(job_).ok());
  for (const int64_t repeats : {2, 4, 24}) {
    tensor->set_row_repeats(repeats);
    EXPECT_THAT(Refusal(), HasSubstr(absl::StrCat("tensor 'qkv': row_blocks sum to 8 rows, ", repeats, " times, of 24")));
  }
  tensor->set_row_repeats(int64_t{1} << 62);  // times the sum, it would overflow to 0
  EXPECT_THAT(Refusal(), HasSubstr("sum to 8 rows"));
  tensor->clear_row_repeats();
  EXPECT_THAT(Refusal(), HasSubstr("row_blocks sum to 8 rows of 24"));
  tensor->set_row_repeats(-1);
  EXPECT_THAT(Refusal(), HasSubstr("row_repeats is -1 for 3 row_blocks"));
  tensor->clear_row_blocks();
  tensor->set_row_repeats(2);
  EXPECT_THAT(Refusal(), HasSubstr("row_repeats is 2 for 0 row_blocks; must be at least 1, and 1 without any"));
}

TEST_F(ValidateTest, RowBlocksOfAStackAreThoseOfEachMatrixInIt) {
  v1::Tensor* stack = AddTensor("gate_up", {24, 6, 4}, 0);
  stack->set_view(v1::VIEW_EXPERTS);
  for (const int64_t rows : {12, 12}) stack->add_row_blocks(rows);
  EXPECT_THAT(Refusal(), HasSubstr("row block of 12 rows, allowed are 1..6"));
  stack->clear_row_blocks();
  for (const int64_t rows : {3, 3}) stack->add_row_blocks(rows);
  EXPECT_TRUE(ValidateJobSpec(job_).ok());
}

TEST_F(ValidateTest, EmptyAndFarTooManyRowBlocksAreRefused) {
  v1::Tensor* tensor = AddTensor("heads", {8192, 2}, 0);
  tensor->add_row_blocks(8192);
  tensor->add_row_blocks(0);
  EXPECT_THAT(Refusal(), HasSubstr("tensor 'heads': row block of 0 rows, allowed are 1..8192"));
  tensor->clear_row_blocks();
  for (int i = 0; i < 4096; ++i) tensor->add_row_blocks(2);
  EXPECT_TRUE(ValidateJobSpec(job_).ok());
  tensor->add_row_blocks(2);
  EXPECT_THAT(Refusal(), HasSubstr("tensor 'heads': 4097 row_blocks, allowed are 4096"));
}

TEST_F(ValidateTest, AJobOfMoreMatricesThanAPlanCanHoldIsRefused) {
  v1::Tensor* stack = AddTensor("stack", {1 << 20, 1, 1}, 0);
  stack->set_view(v1::VIEW_EXPERTS);
  EXPECT_THAT(Refusal(), HasSubstr("tensor 'stack': 1048577 matrices with those before it, allowed are 1048576"));
  stack->set_shape(0, (1 << 20) - 1);
  EXPECT_TRUE(ValidateJobSpec(job_).ok());
  AddTensor("empty", {1 << 30, 0, 4}, 0)->set_view(v1::VIEW_EXPERTS);  // which nobody owns
  EXPECT_TRUE(ValidateJobSpec(job_).ok());
}

TEST_F(ValidateTest, NamesThatCouldForgeALogLineAreRefused) {
  AddTensor("a\nb", {2, 2}, 0);
  EXPECT_THAT(Refusal(), HasSubstr("byte 10 at position 1"));
}

TEST_F(ValidateTest, DuplicateNamesAreRefused) {
  AddTensor("w", {2, 2}, 0);
  EXPECT_THAT(Refusal(), HasSubstr("tensor 'w': name is used twice"));
}

TEST_F(ValidateTest, UnknownGroupAndOptimizerAreRefused) {
  AddTensor("x", {2, 2}, 5);
  EXPECT_THAT(Refusal(), HasSubstr("group 5 of 2"));
  job_.mutable_tensors()->RemoveLast();
  job_.add_groups()->set_name("future");
  EXPECT_THAT(Refusal(), HasSubstr("group 'future': names no optimizer"));
}

TEST_F(ValidateTest, NotANumberInOptionsIsRefused) {
  job_.set_max_grad_norm(std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT(Refusal(), HasSubstr("max_grad_norm"));
}

TEST_F(ValidateTest, HypersAreCheckedByNameAndBound) {
  v1::Hyper good;
  v1::Hyper bad;
  bad.set_momentum(1.0);
  const std::vector<const v1::Hyper*> pair = {&good, &bad};
  EXPECT_THAT(std::string(ValidateHypers(job_, pair).message()),
              HasSubstr("group 'adamw': momentum is 1, must be in [0, 1)"));
  bad.set_momentum(0.9);
  EXPECT_TRUE(ValidateHypers(job_, pair).ok());
  good.set_lr(std::nan(""));
  EXPECT_THAT(std::string(ValidateHypers(job_, pair).message()), HasSubstr("group 'muon': lr"));
  const std::vector<const v1::Hyper*> one = {&bad};
  EXPECT_FALSE(ValidateHypers(job_, one).ok());
}

TEST_F(ValidateTest, ShardsComeOneATensorInOrder) {
  v1::Shard shard;
  *shard.mutable_grad_box() = ToProto(WholeBox(std::vector<int64_t>{6, 4}));
  *shard.mutable_param_box() = shard.grad_box();
  const std::vector<const v1::Shard*> one = {&shard};
  EXPECT_TRUE(ParseShards(job_, one, 0).ok());
  shard.set_tensor(1);
  EXPECT_THAT(std::string(ParseShards(job_, one, 3).status().message()),
              HasSubstr("rank 3: shard 0 names tensor 1"));
  EXPECT_FALSE(ParseShards(job_, {}, 0).ok());
}

TEST(IdTest, OnlyPlainCharactersPass) {
  EXPECT_TRUE(ValidateId("run-7/seed:3", "job_id").ok());
  EXPECT_FALSE(ValidateId("", "job_id").ok());
  EXPECT_FALSE(ValidateId("a b", "job_id").ok());
  EXPECT_FALSE(ValidateId(std::string(129, 'a'), "job_id").ok());
}

TEST(ErrorTest, CodeMessageAndReasonSurviveTheWayOverGrpc) {
  const absl::Status sent = Error(absl::StatusCode::kFailedPrecondition,
                                  v1::ERROR_REASON_STALE_GENERATION, "generation 3; current is 4");
  const absl::Status received = FromGrpc(ToGrpc(sent));
  EXPECT_EQ(received.code(), sent.code());
  EXPECT_EQ(received.message(), sent.message());
  EXPECT_EQ(ReasonOf(received), v1::ERROR_REASON_STALE_GENERATION);
  EXPECT_EQ(ReasonName(ReasonOf(received)), "STALE_GENERATION");
}

TEST(ErrorTest, ForeignErrorsHaveNoReason) {
  const absl::Status received = FromGrpc({grpc::StatusCode::UNAVAILABLE, "gone", "not a message"});
  EXPECT_EQ(received.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(received), v1::ERROR_REASON_UNSPECIFIED);
  EXPECT_EQ(ReasonFromName("NO_SUCH_REASON"), v1::ERROR_REASON_UNSPECIFIED);
}

}  // namespace
}  // namespace dmuon::wire
