// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What the kernel tests share: matrices, the second opinion on them, a unit that can be stepped.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/backend.h"

namespace dmuon::kernels {

// The implementations under test.
inline const char* const kBackends[] = {"reference", "cpu"};

std::unique_ptr<Backend> MustMake(const std::string& name);

// A row-major matrix that owns its elements.
struct Matrix {
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<float> values;

  MatrixView view() { return {values.data(), rows, cols}; }
};

// Independent standard normal elements times `factor`; the same for the same seed on every machine.
Matrix Gaussian(int64_t rows, int64_t cols, uint32_t seed, double factor = 1.0);
Matrix Transposed(const Matrix& m);
Matrix Times(double factor, Matrix m);
// `small` spread over a rows x cols matrix of zeros: its first row and column at 0, its last at the
// end, the others evenly between.
Matrix Spread(const Matrix& small, int64_t rows, int64_t cols);

// |a - b| / |b|, Frobenius; |a| when b is zero.
double RelativeError(const std::vector<float>& a, const std::vector<float>& b);
double Norm(const std::vector<float>& a);

// In falling order, by cyclic Jacobi rotations of the smaller Gram matrix in double.
std::vector<double> SingularValues(const Matrix& m);

// NewtonSchulz(m) by `backend`; fails the test on an error.
Matrix Orthogonal(Backend& backend, const NewtonSchulz& newton_schulz, Matrix m, const Method& method = {});

// One unit with its state, stepped as an owner steps it.
class Unit {
 public:
  // State of zeros beside `weight`.
  Unit(Backend& backend, const Optimizer& optimizer, const Hyper& hyper, Matrix weight);

  void Step(const Matrix& gradient, double clip = 1.0);

  [[nodiscard]] const Matrix& weight() const { return weight_; }
  // The state tensor `name`; fails the test when the optimizer has none.
  [[nodiscard]] const std::vector<float>& state(std::string_view name) const;
  std::vector<std::vector<float>>& tensors() { return tensors_; }
  [[nodiscard]] int64_t step() const { return step_; }
  Hyper& hyper() { return hyper_; }
  void set_step(int64_t step) { step_ = step; }

 private:
  Backend& backend_;
  const Optimizer optimizer_;
  Hyper hyper_;
  Matrix weight_;
  std::vector<std::vector<float>> tensors_;  // in the order of StateTensors
  int64_t step_ = 0;
  Scratch scratch_;
};

// The backend `name` with a team of one. Null, and the test is skipped with the reason, where its plug-in was not
// built or there is no device; any other failure to make it fails the test.
std::unique_ptr<Backend> MakeOrSkip(const std::string& name);

// A test that runs over every backend.
class BackendTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { backend_ = MakeOrSkip(GetParam()); }
  Backend& backend() { return *backend_; }

 private:
  std::unique_ptr<Backend> backend_;
};

inline std::string BackendName(const testing::TestParamInfo<const char*>& backend) {
  return backend.param;
}

// Runs a BackendTest over every backend, as All; and as Gpu, which CTest keeps apart (tests/kernels/CMakeLists.txt).
#define DMUON_INSTANTIATE_BACKENDS(suite)                                                 \
  INSTANTIATE_TEST_SUITE_P(All, suite, testing::ValuesIn(kBackends), BackendName);        \
  INSTANTIATE_TEST_SUITE_P(Gpu, suite, testing::Values("cuda"), BackendName)

}  // namespace dmuon::kernels
