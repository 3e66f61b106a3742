// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// How the cuda backend issues its work, which only libraries that count can tell.
#include <limits>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "cublasLt.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/cuda/without_graphs.h"
#include "tests/kernels/family.h"
#include "tests/kernels/matrices.h"

namespace dmuon::kernels {
namespace {

using emulated::GraphFault;
using testing::HasSubstr;

constexpr Method kStandard = {Form::kStandard, Precision::kFloat32};
constexpr Method kGram = {Form::kGram, Precision::kFloat32};

class LaunchesTest : public testing::Test {
 protected:
  void SetUp() override { cuda_ = MakeOrSkip("cuda"); }
  void TearDown() override {
    emulated::BatchesAreTaken(true);
    emulated::FailGraphs(GraphFault::kNone);
  }

  // What `items` matrices become, one after the other. `seed`: that of the first.
  std::vector<float> Batch(uint32_t items, int64_t rows, int64_t cols, const Method& method, uint32_t seed = 0) {
    std::vector<Matrix> matrices;
    std::vector<MatrixView> views;
    for (uint32_t i = 0; i < items; ++i) matrices.push_back(Gaussian(rows, cols, seed + i));
    for (Matrix& matrix : matrices) views.push_back(matrix.view());
    std::vector<absl::Status> statuses(items);
    cuda_->OrthogonalizeBatch({}, method, views, statuses, scratch_);
    std::vector<float> values;
    for (uint32_t i = 0; i < items; ++i) {
      EXPECT_TRUE(statuses[i].ok()) << statuses[i];
      values.insert(values.end(), matrices[i].values.begin(), matrices[i].values.end());
    }
    return values;
  }
  int64_t ProductsOf(uint32_t items, const Method& method) {
    const int64_t before = emulated::Products();
    Batch(items, 24, 56, method);
    return emulated::Products() - before;
  }

  std::vector<float> One(int64_t rows, int64_t cols, const NewtonSchulz& newton_schulz = {}) {
    return Orthogonal(*cuda_, newton_schulz, Gaussian(rows, cols, 1)).values;
  }

  // What `work` does about graphs, in a thread of its own.
  template <typename Work>
  static emulated::GraphCounts GraphsOf(const Work& work) {
    emulated::GraphCounts counts{};
    const emulated::GraphCounts before = emulated::CountGraphs();
    std::thread([&] {
      work();
      const emulated::GraphCounts after = emulated::CountGraphs();
      counts = {after.made - before.made, after.launched - before.launched, after.held - before.held};
    }).join();
    EXPECT_EQ(emulated::CountGraphs().held, before.held);  // a thread's end is its graphs' end
    return counts;
  }

  std::unique_ptr<Backend> cuda_;
  Scratch scratch_;
};

TEST_F(LaunchesTest, ABatchIsOneCallAProduct) {
  EXPECT_EQ(ProductsOf(1, kStandard), 15);
  EXPECT_EQ(ProductsOf(6, kStandard), 15);
  // Two with the matrix, whose scalars lie on the device, are made one by one.
  for (const Method& method : {kGram, Method{Form::kGram, Precision::kBFloat16}}) {
    EXPECT_EQ(ProductsOf(1, method), 18);
    EXPECT_EQ(ProductsOf(6, method), 18 + 2 * 5);
  }
}

TEST_F(LaunchesTest, ABatchThatTheLibraryDoesNotTakeIsComputedOneByOne) {
  const std::vector<float> together = Batch(4, 40, 56, kGram);
  emulated::BatchesAreTaken(false);
  const int64_t before = emulated::Products();
  // Of another length, because what a batch was answered is kept.
  const std::vector<float> alone = Batch(3, 40, 56, kGram);
  EXPECT_EQ(emulated::Products() - before, 3 * 18);
  EXPECT_EQ(alone, std::vector<float>(together.begin(), together.begin() + static_cast<std::ptrdiff_t>(alone.size())));
}

TEST_F(LaunchesTest, AGraphIsCapturedTheSecondTimeAndReplayedOnWhatIsThereThen) {
  for (const Method& method : {kStandard, kGram, Method{Form::kGram, Precision::kBFloat16}}) {
    for (const auto& [items, rows, cols] : {std::tuple<uint32_t, int64_t, int64_t>{1, 7, 16}, {3, 16, 7}}) {
      std::vector<std::vector<float>> expected;
      WithoutGraphs([&, items = items, rows = rows, cols = cols] {
        for (uint32_t run = 0; run < 4; ++run) expected.push_back(Batch(items, rows, cols, method, 10 * run));
      });
      const int64_t products = emulated::Products();
      const emulated::GraphCounts counts = GraphsOf([&, items = items, rows = rows, cols = cols] {
        for (uint32_t run = 0; run < 4; ++run) {
          EXPECT_EQ(Batch(items, rows, cols, method, 10 * run), expected[run]) << run << Name(method.form);
        }
      });
      EXPECT_EQ(counts.made, 1);
      EXPECT_EQ(counts.launched, 3);
      // A replay asks the library for nothing.
      const int64_t once = method.form == Form::kStandard ? 15 : 16 + 2 * items;
      EXPECT_EQ(emulated::Products() - products, 2 * once);
    }
  }
}

// From 256 on, here.
TEST_F(LaunchesTest, AReplayComputesEveryPanel) {
  const NewtonSchulz once{.iterations = 1};
  const std::vector<float> expected = One(257, 260, once);
  const emulated::GraphCounts counts = GraphsOf([&] {
    for (int run = 0; run < 3; ++run) EXPECT_EQ(One(257, 260, once), expected);
  });
  EXPECT_EQ(counts.launched, 2);
}

TEST_F(LaunchesTest, WhatStaysAsItIsDoesSoInAReplay) {
  GraphsOf([&] {
    for (int run = 0; run < 4; ++run) {
      std::vector<Matrix> batch = {Gaussian(8, 12, 1), Gaussian(8, 12, 2), Times(-0.0, Gaussian(8, 12, 3))};
      if (run % 2 == 0) batch[1].values[5] = std::numeric_limits<float>::infinity();
      const std::vector<Matrix> before = batch;
      std::vector<MatrixView> views;
      for (Matrix& matrix : batch) views.push_back(matrix.view());
      std::vector<absl::Status> statuses(batch.size());
      cuda_->OrthogonalizeBatch({}, {}, views, statuses, scratch_);
      EXPECT_EQ(statuses[1].ok(), run % 2 == 1);
      EXPECT_EQ(batch[1].values == before[1].values, run % 2 == 0);
      EXPECT_TRUE(statuses[2].ok());
      EXPECT_EQ(batch[2].values, before[2].values);
      EXPECT_NE(batch[0].values, before[0].values);
    }
  });
}

TEST_F(LaunchesTest, WhatDecidesOnTheCallsHasAGraphOfItsOwn) {
  const emulated::GraphCounts counts = GraphsOf([&] {
    One(24, 24);  // takes the memory
    for (int run = 0; run < 3; ++run) {
      One(23, 24);
      One(24, 23);
      One(23, 24, {.iterations = 4});
      One(23, 24, {.coefficients = CoefficientSet::kYou});
      // Factors are not in graphs.
      One(23, 24, {.eps_mode = EpsMode::kAdd, .eps = 0.5});
    }
  });
  EXPECT_EQ(counts.made, 4);
  EXPECT_EQ(counts.launched, 3 * 5 - 4);
}

TEST_F(LaunchesTest, EveryMethodAndNumberOfMatricesHasAGraphOfItsOwn) {
  const auto round = [&] {
    std::vector<std::vector<float>> results;
    for (const Form form : {Form::kStandard, Form::kGram}) {
      for (const Precision precision : {Precision::kFloat32, Precision::kBFloat16}) {
        for (const uint32_t items : {3U, 2U, 1U}) results.push_back(Batch(items, 5, 12, {form, precision}));
      }
    }
    return results;
  };
  std::vector<std::vector<float>> expected;
  WithoutGraphs([&] { expected = round(); });
  const emulated::GraphCounts counts = GraphsOf([&] {
    Batch(3, 16, 24, {Form::kGram, Precision::kBFloat16});  // takes the memory
    for (int run = 0; run < 3; ++run) EXPECT_EQ(round(), expected) << run;
  });
  EXPECT_EQ(counts.made, 2 * 2 * 3);
  EXPECT_EQ(counts.launched, 2 * counts.made);
}

TEST_F(LaunchesTest, GraphsAreForgottenWhenTheirMemoryMoves) {
  const std::vector<float> expected = One(8, 16);
  const emulated::GraphCounts counts = GraphsOf([&] {
    for (int run = 0; run < 2; ++run) One(8, 16);
    One(64, 90);  // takes more
    EXPECT_EQ(One(8, 16), expected);
    EXPECT_EQ(One(8, 16), expected);
  });
  EXPECT_EQ(counts.made, 2);
  EXPECT_EQ(counts.launched, 2);
}

TEST_F(LaunchesTest, OfManyShapesTheLeastRecentlyUsedAreForgotten) {
  constexpr int64_t kMost = 32;
  const int64_t held = emulated::CountGraphs().held;
  const emulated::GraphCounts counts = GraphsOf([&] {
    One(8, 8 + kMost);
    for (int64_t cols = 1; cols <= kMost; ++cols) {
      One(3, cols);
      One(3, cols);
    }
    EXPECT_EQ(emulated::CountGraphs().held - held, kMost);
    One(3, 1);
    One(3, kMost + 1);  // in the place of 3 x 2
    const emulated::GraphCounts before = emulated::CountGraphs();
    EXPECT_EQ(before.held - held, kMost - 1);  // not captured yet
    One(3, 1);
    EXPECT_EQ(emulated::CountGraphs().launched, before.launched + 1);
    One(3, 2);
    EXPECT_EQ(emulated::CountGraphs().launched, before.launched + 1);
  });
  EXPECT_EQ(counts.made, kMost);
}

TEST_F(LaunchesTest, WhereverMakingAGraphFailsTheCallsAreMadeEachTimeAfterOneWarning) {
  const std::vector<float> expected = Batch(2, 7, 12, kStandard);
  for (const auto& [fault, call] : {std::pair{GraphFault::kBegin, "cudaStreamBeginCapture: cudaErrorNotSupported"},
                                    {GraphFault::kCall, "cublasLtMatmul of 8 x 8 and 8 x 8 in fp32: CUBLAS_STATUS"},
                                    {GraphFault::kEnd, "cudaStreamEndCapture: cudaErrorStreamCaptureUnsupported"},
                                    {GraphFault::kInstantiate, "cudaGraphInstantiate: cudaErrorNotSupported"}}) {
    emulated::FailGraphs(fault);
    testing::internal::CaptureStderr();
    const emulated::GraphCounts counts = GraphsOf([&] {
      for (int run = 0; run < 4; ++run) EXPECT_EQ(Batch(2, 7, 12, kStandard), expected);
    });
    const std::string warning = testing::internal::GetCapturedStderr();
    EXPECT_EQ(counts.made, 0) << call;
    EXPECT_EQ(counts.launched, 0) << call;
    EXPECT_THAT(warning, HasSubstr("no CUDA graph, calls are made one by one: "));
    EXPECT_THAT(warning, HasSubstr("7 x 12"));
    EXPECT_THAT(warning, HasSubstr(call));
    EXPECT_EQ(warning.find("warning:"), warning.rfind("warning:")) << warning;
  }
}

// It may have been begun, so what it was to work on is not worked on again.
TEST_F(LaunchesTest, AGraphThatCannotBeLaunchedIsAnErrorThatLeavesTheMatrixAlone) {
  const std::vector<float> expected = One(9, 17);
  GraphsOf([&] {
    for (int run = 0; run < 3; ++run) One(9, 17);
    emulated::FailGraphs(GraphFault::kLaunch);
    const Matrix before = Gaussian(9, 17, 1);
    Matrix matrix = before;
    Scratch scratch;
    const absl::Status status = cuda_->Orthogonalize({}, {}, matrix.view(), scratch);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(status.message(), HasSubstr("9 x 17: cudaGraphLaunch: cudaErrorNotSupported"));
    EXPECT_EQ(matrix.values, before.values);
    emulated::FailGraphs(GraphFault::kNone);
    EXPECT_EQ(One(9, 17), expected);
  });
}

TEST_F(LaunchesTest, AStepTakesNoMemoryOnceOneOfEachShapeWasMade) {
  GraphsOf([&] {
    std::vector<Unit> units;
    for (const auto& [name, optimizer] : FamilyOf(*cuda_)) {
      units.emplace_back(*cuda_, optimizer, Hyper{.lr = 0.1}, Gaussian(24, 40, 100));
      units.emplace_back(*cuda_, optimizer, Hyper{.lr = 0.1}, Gaussian(17, 9, 101));
    }
    const auto step = [&](uint32_t seed) {
      for (Unit& unit : units) unit.Step(Gaussian(unit.weight().rows, unit.weight().cols, seed));
      for (const uint32_t items : {2U, 5U}) Batch(items, 16, 24, kGram, seed);
    };
    step(0);
    const int64_t before = emulated::Allocations();
    EXPECT_GT(before, 0);
    for (uint32_t seed = 1; seed < 5; ++seed) step(seed);
    EXPECT_EQ(emulated::Allocations(), before);
  });
}

TEST_F(LaunchesTest, GraphsCanBeTurnedOff) {
  const std::vector<float> expected = One(9, 17);
  const int64_t before = emulated::CountGraphs().made;
  WithoutGraphs([&] {
    for (int run = 0; run < 3; ++run) EXPECT_EQ(One(9, 17), expected);
  });
  EXPECT_EQ(emulated::CountGraphs().made, before);
}

}  // namespace
}  // namespace dmuon::kernels
