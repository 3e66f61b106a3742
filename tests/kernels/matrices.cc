// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "tests/kernels/matrices.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <random>

namespace dmuon::kernels {
namespace {

// One Jacobi rotation that clears element (p, q) of the symmetric n x n matrix `a`.
void Rotate(std::vector<double>& a, size_t n, size_t p, size_t q) {
  const double apq = a[p * n + q];
  if (apq == 0.0) return;
  const double theta = 0.5 * std::atan2(2.0 * apq, a[q * n + q] - a[p * n + p]);
  const double c = std::cos(theta);
  const double s = std::sin(theta);
  for (size_t k = 0; k < n; ++k) {
    const double kp = a[k * n + p];
    const double kq = a[k * n + q];
    a[k * n + p] = c * kp - s * kq;
    a[k * n + q] = s * kp + c * kq;
  }
  for (size_t k = 0; k < n; ++k) {
    const double pk = a[p * n + k];
    const double qk = a[q * n + k];
    a[p * n + k] = c * pk - s * qk;
    a[q * n + k] = s * pk + c * qk;
  }
}

std::vector<double> GramOf(const Matrix& wide) {
  const auto n = static_cast<size_t>(wide.rows);
  const auto l = static_cast<size_t>(wide.cols);
  std::vector<double> gram(n * n);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) {
      for (size_t k = 0; k < l; ++k) {
        gram[i * n + j] += static_cast<double>(wide.values[i * l + k]) *
                           static_cast<double>(wide.values[j * l + k]);
      }
    }
  }
  return gram;
}

}  // namespace

std::unique_ptr<Backend> MustMake(const std::string& name) {
  auto backend = MakeBackend(name);
  EXPECT_TRUE(backend.ok()) << backend.status();
  return *std::move(backend);
}

namespace {

void SkipOrFail(const absl::Status& status) {
  const bool absent = absl::IsNotFound(status) || absl::IsUnavailable(status);
  if (absent) GTEST_SKIP() << status.message();
  FAIL() << status;
}

}  // namespace

std::unique_ptr<Backend> MakeOrSkip(const std::string& name) {
  auto backend = MakeBackend(name);
  if (!backend.ok()) {
    SkipOrFail(backend.status());
    return nullptr;
  }
  (*backend)->BindThread(1);
  return *std::move(backend);
}

Matrix Gaussian(int64_t rows, int64_t cols, uint32_t seed, double factor) {
  // Box-Muller by hand: what std::normal_distribution draws differs between libraries.
  std::mt19937 bits(seed);
  const auto uniform = [&bits] { return (static_cast<double>(bits()) + 0.5) / 4294967296.0; };
  Matrix m{rows, cols, std::vector<float>(static_cast<size_t>(rows * cols))};
  for (float& value : m.values) {
    const double radius = std::sqrt(-2.0 * std::log(uniform()));
    value = static_cast<float>(factor * radius * std::cos(2.0 * std::numbers::pi * uniform()));
  }
  return m;
}

Matrix Transposed(const Matrix& m) {
  Matrix out{m.cols, m.rows, std::vector<float>(m.values.size())};
  for (int64_t r = 0; r < m.rows; ++r) {
    for (int64_t c = 0; c < m.cols; ++c) {
      out.values[static_cast<size_t>(c * m.rows + r)] =
          m.values[static_cast<size_t>(r * m.cols + c)];
    }
  }
  return out;
}

Matrix Times(double factor, Matrix m) {
  for (float& value : m.values) value = static_cast<float>(factor * static_cast<double>(value));
  return m;
}

Matrix Spread(const Matrix& small, int64_t rows, int64_t cols) {
  Matrix out{rows, cols, std::vector<float>(static_cast<size_t>(rows * cols))};
  for (int64_t r = 0; r < small.rows; ++r) {
    for (int64_t c = 0; c < small.cols; ++c) {
      const int64_t row = r * (rows - 1) / (small.rows - 1);
      const int64_t col = c * (cols - 1) / (small.cols - 1);
      out.values[static_cast<size_t>(row * cols + col)] =
          small.values[static_cast<size_t>(r * small.cols + c)];
    }
  }
  return out;
}

double Norm(const std::vector<float>& a) {
  double sum = 0.0;
  for (const float value : a) sum += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(sum);
}

double RelativeError(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += difference * difference;
  }
  const double norm = Norm(b);
  return norm == 0.0 ? std::sqrt(sum) : std::sqrt(sum) / norm;
}

std::vector<double> SingularValues(const Matrix& m) {
  const Matrix wide = m.rows <= m.cols ? m : Transposed(m);
  const auto n = static_cast<size_t>(wide.rows);
  std::vector<double> gram = GramOf(wide);
  constexpr int kSweeps = 12;  // quadratic convergence: 6 to 8 suffice up to 64
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (size_t p = 0; p < n; ++p) {
      for (size_t q = p + 1; q < n; ++q) Rotate(gram, n, p, q);
    }
  }
  std::vector<double> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = std::sqrt(std::max(gram[i * n + i], 0.0));
  std::sort(values.begin(), values.end(), std::greater<>());
  return values;
}

Matrix Orthogonal(Backend& backend, const NewtonSchulz& newton_schulz, Matrix m, const Method& method) {
  Scratch scratch;
  const absl::Status status = backend.Orthogonalize(newton_schulz, method, m.view(), scratch);
  EXPECT_TRUE(status.ok()) << status;
  return m;
}

Unit::Unit(Backend& backend, const Optimizer& optimizer, const Hyper& hyper, Matrix weight)
    : backend_(backend),
      optimizer_(optimizer),
      hyper_(hyper),
      weight_(std::move(weight)) {
  for (const StateTensor& tensor : StateTensors(optimizer, weight_.rows, weight_.cols)) {
    tensors_.emplace_back(static_cast<size_t>(tensor.rows * tensor.cols));
  }
  EXPECT_TRUE(Validate(optimizer).ok()) << Validate(optimizer);
  EXPECT_TRUE(Validate(hyper).ok()) << Validate(hyper);
}

const std::vector<float>& Unit::state(std::string_view name) const {
  size_t i = 0;
  for (const StateTensor& tensor : StateTensors(optimizer_, weight_.rows, weight_.cols)) {
    if (tensor.name == name) return tensors_[i];
    ++i;
  }
  ADD_FAILURE() << "no state tensor " << name;
  return tensors_.front();
}

void Unit::Step(const Matrix& gradient, double clip) {
  UnitState state = BindState(optimizer_, weight_.rows, weight_.cols, weight_.values, tensors_, step_);
  std::vector<float> update;
  if (optimizer_.needs_whole_matrix()) {
    update.resize(UpdateSize(optimizer_, weight_.rows, weight_.cols));
    const MatrixView direction = backend_.Direction(optimizer_, hyper_, clip, gradient.values, state, update);
    const absl::Status status = backend_.OrthogonalizeDirection(optimizer_, {}, direction, state, update, scratch_);
    ASSERT_TRUE(status.ok()) << status;
  }
  backend_.Apply(optimizer_, hyper_, clip, gradient.values, update, state);
  step_ = state.step;
}

}  // namespace dmuon::kernels
