// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Runs Newton-Schulz for ns_bench.py, which alternates it with PyTorch's. One command a line, one answer in
// milliseconds a line; the input is the same normal matrix each time.
//
//   cpu FORM PRECISION THREADS ROWS COLS   the cpu backend: FORM standard or gram, PRECISION fp32 or bf16
//   cuda FORM PRECISION THREADS ROWS COLS [ITEMS]
//                                          the cuda backend, the matrix in device memory; THREADS says nothing. ITEMS:
//                                          so many as batches, and the answer is the time of one
//   blas THREADS ROWS COLS                 five steps of plain sgemm, threads inside OpenBLAS
//   gemm THREADS N                         one sgemm of N x N
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cblas.h"
#include "kernels/backend.h"

#ifdef DMUON_CUDA_BUILT
#include <cuda_runtime_api.h>
#endif

extern "C" void omp_set_num_threads(int threads);

namespace dmuon::kernels {
namespace {

double TimeMs(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return 1e3 * std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

const std::vector<float>& Normal(int64_t rows, int64_t cols) {
  static std::pair<int64_t, int64_t> shape;
  static std::vector<float> values;
  if (shape != std::pair(rows, cols)) {
    shape = {rows, cols};
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    values.resize(static_cast<size_t>(rows * cols));
    for (float& value : values) value = normal(random);
  }
  return values;
}

void Sgemm(CBLAS_TRANSPOSE right, int rows, int cols, int depth, const float* a, const float* b,
           int ldb, float* out) {
  cblas_sgemm(CblasRowMajor, CblasNoTrans, right, rows, cols, depth, 1.0F, a, depth, b, ldb, 0.0F,
              out, cols);
}

// What one writes first: three full products an iteration. Tall matrices are taken for wide ones.
class PlainNewtonSchulz {
 public:
  PlainNewtonSchulz(int rows, int cols)
      : rows_(std::min(rows, cols)), cols_(std::max(rows, cols)), gram_(Size(rows_, rows_)), poly_(Size(rows_, rows_)),
        next_(Size(rows_, cols_)) {}

  void Run(std::vector<float>& x) {
    double sum = 0.0;
    for (const float value : x) sum += static_cast<double>(value) * static_cast<double>(value);
    const auto inverse = static_cast<float>(1.0 / std::sqrt(sum));
    for (float& value : x) value *= inverse;
    for (const Quintic& q : kJordan) Iterate(q, x);
  }

 private:
  static size_t Size(int rows, int cols) {
    return static_cast<size_t>(rows) * static_cast<size_t>(cols);
  }

  void Iterate(const Quintic& q, std::vector<float>& x) {
    Sgemm(CblasTrans, rows_, rows_, cols_, x.data(), x.data(), cols_, gram_.data());
    Sgemm(CblasNoTrans, rows_, rows_, rows_, gram_.data(), gram_.data(), rows_, poly_.data());
    for (size_t i = 0; i < poly_.size(); ++i) {
      poly_[i] = static_cast<float>(q.b) * gram_[i] + static_cast<float>(q.c) * poly_[i];
    }
    for (size_t i = 0; i < Size(rows_, 1); ++i) {
      poly_[i * (Size(rows_, 1) + 1)] += static_cast<float>(q.a);
    }
    Sgemm(CblasNoTrans, rows_, cols_, rows_, poly_.data(), x.data(), cols_, next_.data());
    x.swap(next_);
  }

  const int rows_, cols_;
  std::vector<float> gram_, poly_, next_;
};

// Where a backend's matrix lies while it is timed.
class Place {
 public:
  virtual ~Place() = default;
  // Memory that holds a copy of `values`, until the next call.
  virtual float* Put(const std::vector<float>& values) = 0;
};

class HostPlace final : public Place {
 public:
  float* Put(const std::vector<float>& values) override {
    values_ = values;
    return values_.data();
  }

 private:
  std::vector<float> values_;
};

#ifdef DMUON_CUDA_BUILT
class DevicePlace final : public Place {
 public:
  ~DevicePlace() override { cudaFree(data_); }
  float* Put(const std::vector<float>& values) override {
    const size_t bytes = values.size() * sizeof(float);
    cudaFree(data_);
    data_ = nullptr;
    if (cudaMalloc(&data_, bytes) != cudaSuccess) return nullptr;
    return cudaMemcpy(data_, values.data(), bytes, cudaMemcpyHostToDevice) == cudaSuccess ? static_cast<float*>(data_) : nullptr;
  }

 private:
  void* data_ = nullptr;
};
#else
using DevicePlace = HostPlace;  // MakeBackend has failed before
#endif

// A backend, once a command has asked for it.
struct Subject {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Place> place;
};

class Runner {
 public:

  // Below 0: not a command.
  double Answer(const std::string& line) {
    std::istringstream words(line);
    std::string what;
    words >> what;
    if (what == "cpu" || what == "cuda") return Orthogonalize(SubjectOf(what), words);
    int threads = 0;
    int rows = 0;
    int cols = 0;
    words >> threads >> rows;
    if (what == "gemm" && words && rows > 0) return Gemm(threads, rows);
    words >> cols;
    return what == "blas" && words && rows > 0 && cols > 0 ? Blas(threads, rows, cols) : -1.0;
  }

 private:
  Subject& SubjectOf(const std::string& name) {
    Subject& subject = subjects_[name];
    if (subject.backend != nullptr) return subject;
    auto backend = MakeBackend(name);
    if (!backend.ok()) {
      std::cerr << backend.status().message() << "\n";
      return subject;
    }
    subject.backend = *std::move(backend);
    subject.place = name == "cuda" ? std::unique_ptr<Place>(std::make_unique<DevicePlace>()) : std::make_unique<HostPlace>();
    return subject;
  }

  double Orthogonalize(Subject& subject, std::istringstream& words) {
    if (subject.backend == nullptr) return -1.0;
    std::string form;
    std::string precision;
    int threads = 0;
    int64_t rows = 0;
    int64_t cols = 0;
    size_t items = 0;
    words >> form >> precision >> threads >> rows >> cols;
    if (!words || (form != "standard" && form != "gram") || (precision != "fp32" && precision != "bf16")) return -1.0;
    const Method method{form == "gram" ? Form::kGram : Form::kStandard,
                        precision == "bf16" ? Precision::kBFloat16 : Precision::kFloat32};
    if (!(words >> items)) items = 1;
    subject.backend->BindThread(threads);
    const std::vector<float>& one = Normal(rows, cols);
    std::vector<float> all;
    for (size_t i = 0; i < items; ++i) all.insert(all.end(), one.begin(), one.end());
    float* x = subject.place->Put(all);
    if (x == nullptr) return -1.0;
    std::vector<MatrixView> batch;
    for (size_t i = 0; i < items; ++i) batch.push_back({x + i * one.size(), rows, cols});
    std::vector<absl::Status> statuses(items);
    const double ms = TimeMs([&] {
      if (items > 1) {
        subject.backend->OrthogonalizeBatch({}, method, batch, statuses, scratch_);
      } else {
        statuses[0] = subject.backend->Orthogonalize({}, method, batch[0], scratch_);
      }
    });
    absl::Status status;
    for (const absl::Status& of_one : statuses) status.Update(of_one);
    if (!status.ok()) std::cerr << status.message() << "\n";
    return status.ok() ? ms / static_cast<double>(items) : -1.0;
  }

  static double Blas(int threads, int rows, int cols) {
    omp_set_num_threads(threads);
    std::vector<float> x = Normal(rows, cols);
    PlainNewtonSchulz plain(rows, cols);
    return TimeMs([&] { plain.Run(x); });
  }

  static double Gemm(int threads, int n) {
    omp_set_num_threads(threads);
    const std::vector<float>& a = Normal(n, n);
    std::vector<float> out(a.size());
    return TimeMs([&] { Sgemm(CblasNoTrans, n, n, n, a.data(), a.data(), n, out.data()); });
  }

  std::map<std::string, Subject> subjects_;
  Scratch scratch_;
};

int Main() {
  Runner runner;
  for (std::string line; std::getline(std::cin, line);) {
    const double ms = runner.Answer(line);
    if (ms < 0.0) {
      std::cerr << "not a command, or it failed: " << line << "\n";
      return 1;
    }
    std::cout << ms << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace dmuon::kernels

int main() { return dmuon::kernels::Main(); }
