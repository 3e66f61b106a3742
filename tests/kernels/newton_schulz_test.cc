// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Orthogonalize: properties over every backend, then the fast ones against reference, bits and threads.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/matrices.h"

namespace dmuon::kernels {
namespace {

using testing::HasSubstr;

// The band of five Jordan steps on Gaussian input: it belongs to the coefficients.
constexpr double kSingularLow = 0.65, kSingularHigh = 1.20;
// fp32 Newton-Schulz against double, relative Frobenius: rounding of 6e-8 an operation, amplified
// up to 485 times (You 493, Polar Express 804) in directions of small singular values. Published
// fp32 runs give up to 6e-5; measured here <= 2e-5 over all shapes below.
constexpr double kFloatVsReference = 1e-4;
// The same polynomial on the transposed matrix: other sums, same rounding.
constexpr double kTransposedVsStraight = 1e-4;


class NewtonSchulzTest : public BackendTest {};

DMUON_INSTANTIATE_BACKENDS(NewtonSchulzTest);

TEST_P(NewtonSchulzTest, SingularValuesLandInTheBand) {
  for (const auto& [rows, cols] :
       {std::pair<int64_t, int64_t>{16, 64}, {64, 16}, {24, 48}, {32, 128}, {48, 48}}) {
    const auto values = SingularValues(Orthogonal(backend(), {}, Gaussian(rows, cols, 25)));
    EXPECT_LE(values.front(), kSingularHigh) << rows << " x " << cols;
    EXPECT_GE(values.back(), kSingularLow) << rows << " x " << cols;
  }
}

TEST_P(NewtonSchulzTest, TransposingCommutes) {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{7, 19}, {64, 32}, {33, 33}}) {
    for (const CoefficientSet set : kCoefficientSets) {
      const Matrix straight = Orthogonal(backend(), {.coefficients = set}, Gaussian(rows, cols, 3));
      const Matrix transposed =
          Orthogonal(backend(), {.coefficients = set}, Transposed(Gaussian(rows, cols, 3)));
      EXPECT_LE(RelativeError(Transposed(transposed).values, straight.values),
                kTransposedVsStraight);
    }
  }
}

TEST_P(NewtonSchulzTest, ZeroStaysZeroInEveryMode) {
  for (const EpsMode mode : {EpsMode::kNone, EpsMode::kAdd, EpsMode::kClamp}) {
    const Matrix zero{3, 5, std::vector<float>(15)};
    EXPECT_EQ(Orthogonal(backend(), {.eps_mode = mode, .eps = 0.0}, zero).values, zero.values);
  }
}

TEST_P(NewtonSchulzTest, EmptyMatrixIsNothingToDo) {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{0, 5}, {5, 0}, {0, 0}}) {
    EXPECT_TRUE(Orthogonal(backend(), {}, Matrix{rows, cols, {}}).values.empty());
  }
}

TEST_P(NewtonSchulzTest, NonFiniteInputIsRefusedAndLeftAlone) {
  Scratch scratch;
  for (const float bad : {std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    Matrix m = Gaussian(4, 6, 1);
    m.values[23] = bad;
    const absl::Status status = backend().Orthogonalize({}, {}, m.view(), scratch);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("not finite (4 x 6)"));
    m.values[23] = Gaussian(4, 6, 1).values[23];
    EXPECT_EQ(m.values, Gaussian(4, 6, 1).values);
  }
}

TEST_P(NewtonSchulzTest, NegativeDimensionIsRefused) {
  Scratch scratch;
  const absl::Status status = backend().Orthogonalize({}, {}, {nullptr, -1, 4}, scratch);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("matrix is -1 x 4"));
}

TEST_P(NewtonSchulzTest, EvenAndOddIterationCountsEndInTheCallersBuffer) {
  // One more polynomial on an already orthogonal matrix keeps all singular values in the band.
  for (int iterations = 5; iterations <= 8; ++iterations) {
    const auto values = SingularValues(
        Orthogonal(backend(), {.iterations = iterations}, Gaussian(12, 20, 9)));
    EXPECT_LE(values.front(), kSingularHigh) << iterations;
    EXPECT_GE(values.back(), kSingularLow) << iterations;
  }
}

TEST_P(NewtonSchulzTest, ABatchHasTheBitsOfItsMatricesOneByOne) {
  for (const int threads : {1, 3, 4}) {
    std::thread([&, threads] {
      backend().BindThread(threads);
      for (const auto& [form, precision] : {Method{}, Method{Form::kGram, Precision::kFloat32},
                                            Method{Form::kGram, Precision::kBFloat16}}) {
        std::vector<Matrix> batch;
        std::vector<MatrixView> views;
        for (uint32_t i = 0; i < 5; ++i) batch.push_back(Gaussian(40, 90, i));
        for (Matrix& matrix : batch) views.push_back(matrix.view());
        std::vector<absl::Status> statuses(batch.size());
        Scratch scratch;
        backend().OrthogonalizeBatch({}, {form, precision}, views, statuses, scratch);
        for (uint32_t i = 0; i < batch.size(); ++i) {
          EXPECT_TRUE(statuses[i].ok()) << statuses[i];
          EXPECT_EQ(batch[i].values, Orthogonal(backend(), {}, Gaussian(40, 90, i), {form, precision}).values) << i;
        }
      }
    }).join();
  }
}

TEST_P(NewtonSchulzTest, AMatrixThatIsNotFiniteLeavesTheOthersOfItsBatchAlone) {
  std::thread([&] {
    backend().BindThread(2);
    std::vector<Matrix> batch = {Gaussian(8, 12, 1), Gaussian(8, 12, 2), Gaussian(8, 12, 3)};
    batch[1].values[5] = std::numeric_limits<float>::infinity();
    std::vector<MatrixView> views;
    for (Matrix& matrix : batch) views.push_back(matrix.view());
    std::vector<absl::Status> statuses(batch.size());
    Scratch scratch;
    backend().OrthogonalizeBatch({}, {}, views, statuses, scratch);
    EXPECT_EQ(statuses[1].code(), absl::StatusCode::kInvalidArgument);
    for (const uint32_t i : {0U, 2U}) {
      EXPECT_TRUE(statuses[i].ok());
      EXPECT_EQ(batch[i].values, Orthogonal(backend(), {}, Gaussian(8, 12, i + 1)).values);
    }
  }).join();
}

// Backends that are fast, against the reference.
class FastNewtonSchulzTest : public BackendTest {
 protected:
  FastNewtonSchulzTest() : reference_(MustMake("reference")) {}

  void ExpectAgreement(const Matrix& input, CoefficientSet set, int iterations = 5) {
    const NewtonSchulz ns{.coefficients = set, .iterations = iterations};
    EXPECT_LE(RelativeError(Orthogonal(backend(), ns, input).values,
                            Orthogonal(*reference_, ns, input).values),
              kFloatVsReference)
        << input.rows << " x " << input.cols << ", set " << static_cast<int>(set);
  }
  // With a team of `threads`, in a thread of its own so that no other test inherits the team. 0: of none.
  Matrix InThread(int threads, const Matrix& input) {
    Matrix out;
    std::thread([&] {
      if (threads > 0) backend().BindThread(threads);
      out = Orthogonal(backend(), {}, input);
    }).join();
    return out;
  }

  std::unique_ptr<Backend> reference_;
};

INSTANTIATE_TEST_SUITE_P(All, FastNewtonSchulzTest, testing::Values("cpu"), BackendName);
INSTANTIATE_TEST_SUITE_P(Gpu, FastNewtonSchulzTest, testing::Values("cuda"), BackendName);

TEST_P(FastNewtonSchulzTest, AgreesWithReferenceOnAwkwardShapes) {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 1},
                                   {1, 97},
                                   {97, 1},
                                   {2, 3},
                                   {63, 63},
                                   {8, 300},
                                   {300, 8},
                                   {31, 64}}) {
    for (const CoefficientSet set : kCoefficientSets) ExpectAgreement(Gaussian(rows, cols, 7), set);
  }
  ExpectAgreement(Gaussian(130, 150, 7), CoefficientSet::kJordan, 2);
  ExpectAgreement(Gaussian(150, 130, 7), CoefficientSet::kJordan, 2);
}

TEST_P(FastNewtonSchulzTest, AgreesWithReferenceOnRandomShapes) {
  constexpr uint32_t kSeed = 20261129;
  RecordProperty("seed", static_cast<int>(kSeed));
  std::mt19937 random(kSeed);
  for (uint32_t i = 0; i < 40; ++i) {
    const auto rows = static_cast<int64_t>(1 + random() % 96);
    const auto cols = static_cast<int64_t>(1 + random() % 96);
    ExpectAgreement(Gaussian(rows, cols, i), kCoefficientSets[i % 3]);
  }
}

// Rows and columns of zeros change nothing and stay zero, so a small judged matrix, spread over a
// large one, checks every tile of a product in both tile sizes.
TEST_P(FastNewtonSchulzTest, EveryTileOfALargeMatrixIsRight) {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{300, 1100},
                                   {1100, 300},
                                   {530, 520},
                                   {520, 530},
                                   {384, 384},
                                   {769, 1030}}) {
    const Matrix small = Gaussian(17, 23, 1);
    const Matrix large = Orthogonal(backend(), {}, Spread(small, rows, cols));
    const Matrix expected = Spread(Orthogonal(*reference_, {}, small), rows, cols);
    EXPECT_LE(RelativeError(large.values, expected.values), kFloatVsReference)
        << rows << " x " << cols;
    for (size_t i = 0; i < large.values.size(); ++i) {
      if (expected.values[i] == 0.0F) {
        ASSERT_EQ(large.values[i], 0.0F) << i;
      }
    }
  }
}

TEST_P(FastNewtonSchulzTest, RankOneStaysRankOne) {
  const Matrix left = Gaussian(40, 1, 1);
  const Matrix right = Gaussian(1, 70, 2);
  Matrix product{40, 70, {}};
  for (const float l : left.values) {
    for (const float r : right.values) product.values.push_back(l * r);
  }
  // Null directions hold nothing but rounding, which the polynomial lifts by up to 485.
  for (const CoefficientSet set : kCoefficientSets) ExpectAgreement(product, set);
}

TEST_P(FastNewtonSchulzTest, BitsDoNotDependOnTheNumberOfThreads) {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{300, 700}, {700, 300}, {5, 9}}) {
    const Matrix input = Gaussian(rows, cols, 6);
    const Matrix alone = Orthogonal(backend(), {}, input);
    for (const int threads : {1, 2, 3, 5}) {
      EXPECT_EQ(InThread(threads, input).values, alone.values) << threads << " threads";
    }
  }
}

TEST_P(FastNewtonSchulzTest, UnboundThreadWorksAlone) {
  const Matrix input = Gaussian(140, 150, 6);
  EXPECT_EQ(InThread(0, input).values, Orthogonal(backend(), {}, input).values);
}

// Teams of different sizes on one backend at one time, each on its own matrix.
TEST_P(FastNewtonSchulzTest, ThreadsAtOneTimeGiveTheBitsOfOne) {
  constexpr size_t kThreads = 4;
  constexpr int kRuns = 15;
  std::vector<Matrix> inputs;
  std::vector<Matrix> expected;
  for (uint32_t i = 0; i < kThreads; ++i) {
    inputs.push_back(Gaussian(130 + i, 260 - 40 * i, i));
    expected.push_back(Orthogonal(backend(), {}, inputs.back()));
  }
  std::vector<int> different(kThreads);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      backend().BindThread(static_cast<int>(1 + i % 3));
      Scratch scratch;
      for (int run = 0; run < kRuns; ++run) {
        Matrix m = inputs[i];
        const bool ok = backend().Orthogonalize({}, {}, m.view(), scratch).ok();
        if (!ok || m.values != expected[i].values) ++different[i];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(different, std::vector<int>(kThreads));
}

}  // namespace
}  // namespace dmuon::kernels
