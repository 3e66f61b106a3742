// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// How the cuda backend issues its work, which only libraries that count can tell.
#include <vector>

#include "cublasLt.h"
#include "gtest/gtest.h"
#include "tests/kernels/matrices.h"

namespace dmuon::kernels {
namespace {

constexpr Method kStandard = {Form::kStandard, Precision::kFloat32};
constexpr Method kGram = {Form::kGram, Precision::kFloat32};

class LaunchesTest : public testing::Test {
 protected:
  void SetUp() override { cuda_ = MakeOrSkip("cuda"); }
  void TearDown() override { emulated::BatchesAreTaken(true); }

  // What `items` matrices become, one after the other.
  std::vector<float> Batch(uint32_t items, int64_t rows, int64_t cols, const Method& method) {
    std::vector<Matrix> matrices;
    std::vector<MatrixView> views;
    for (uint32_t i = 0; i < items; ++i) matrices.push_back(Gaussian(rows, cols, i));
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

  std::unique_ptr<Backend> cuda_;
  Scratch scratch_;
};

TEST_F(LaunchesTest, ABatchIsOneCallAProduct) {
  EXPECT_EQ(ProductsOf(1, kStandard), 15);
  EXPECT_EQ(ProductsOf(6, kStandard), 15);
  // Two with the matrix, whose scalars lie on the device, are made one by one.
  EXPECT_EQ(ProductsOf(1, kGram), 18);
  EXPECT_EQ(ProductsOf(6, kGram), 18 + 2 * 5);
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

}  // namespace
}  // namespace dmuon::kernels
