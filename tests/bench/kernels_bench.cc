// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Newton-Schulz of the cpu backend (half of each symmetric product) against the same five steps
// with nothing but sgemm, alternating in one run. Both get the same number of threads.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <functional>
#include <iostream>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cblas.h"
#include "kernels/backend.h"

extern "C" void omp_set_num_threads(int threads);

namespace dmuon::kernels {
namespace {

constexpr std::pair<int64_t, int64_t> kShapes[] = {
    {512, 512}, {1024, 1024}, {768, 3072}, {256, 1024}, {256, 256}};

using Seconds = std::chrono::duration<double>;

struct Spread {
  double median, low, high;  // milliseconds; quartiles
};

Spread Summarise(std::vector<double> ms) {
  std::sort(ms.begin(), ms.end());
  return {ms[ms.size() / 2], ms[ms.size() / 4], ms[ms.size() * 3 / 4]};
}

double TimeMs(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return 1e3 * Seconds(std::chrono::steady_clock::now() - start).count();
}

void Sgemm(CBLAS_TRANSPOSE right, int rows, int cols, int depth, const float* a, const float* b,
           int ldb, float* out) {
  cblas_sgemm(CblasRowMajor, CblasNoTrans, right, rows, cols, depth, 1.0F, a, depth, b, ldb, 0.0F,
              out, cols);
}

// What one writes first: three full products an iteration, threads inside OpenBLAS. `x` is wide.
class PlainNewtonSchulz {
 public:
  PlainNewtonSchulz(int rows, int cols)
      : rows_(rows), cols_(cols), gram_(Size(rows, rows)), poly_(Size(rows, rows)),
        next_(Size(rows, cols)) {}

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

struct Row {
  int64_t rows, cols;
  size_t runs;
  Spread symmetric, plain;
  double gflops;  // of the cpu backend, counting each symmetric product once
  [[nodiscard]] double ratio() const { return plain.median / symmetric.median; }
};

// Both contestants on one input, turn by turn, so that noise of the machine hits both.
class Alternation {
 public:
  Alternation(int64_t rows, int64_t cols, int threads)
      : threads_(threads), rows_(rows), cols_(cols) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    input_.resize(static_cast<size_t>(rows * cols));
    for (float& value : input_) value = normal(random);
  }

  Row Run(double budget_seconds) {
    const auto backend = MakeBackend("cpu");
    Scratch scratch;
    PlainNewtonSchulz plain(static_cast<int>(rows_), static_cast<int>(cols_));
    std::vector<double> symmetric_ms;
    std::vector<double> plain_ms;
    const auto start = std::chrono::steady_clock::now();
    do {
      std::vector<float> x = input_;
      (*backend)->BindThread(threads_);
      symmetric_ms.push_back(TimeMs([&] {
        ok_ = (*backend)->Orthogonalize({}, {}, {x.data(), rows_, cols_}, scratch).ok() && ok_;
      }));
      std::vector<float> y = input_;
      omp_set_num_threads(threads_);
      plain_ms.push_back(TimeMs([&] { plain.Run(y); }));
      ok_ = ok_ && SameResult(x, y);
    } while (symmetric_ms.size() < kLeastRuns ||
             Seconds(std::chrono::steady_clock::now() - start).count() < budget_seconds);
    // The first round warms caches and thread teams.
    symmetric_ms.erase(symmetric_ms.begin());
    plain_ms.erase(plain_ms.begin());
    Row row{rows_, cols_, symmetric_ms.size(), Summarise(symmetric_ms), Summarise(plain_ms), 0.0};
    row.gflops = NewtonSchulzFlops(rows_, cols_, kListedIterations) / row.symmetric.median / 1e6;
    return row;
  }

  [[nodiscard]] bool ok() const { return ok_; }

 private:
  static constexpr size_t kLeastRuns = 8;

  static bool SameResult(const std::vector<float>& x, const std::vector<float>& y) {
    constexpr float kEntry = 1e-3F;  // entries are at most 1.2; fp32 rounding is far below
    for (size_t i = 0; i < x.size(); ++i) {
      if (!(std::abs(x[i] - y[i]) < kEntry)) return false;
    }
    return true;
  }

  const int threads_;
  const int64_t rows_, cols_;
  std::vector<float> input_;
  bool ok_ = true;
};

std::string Json(const std::vector<Row>& rows, int threads) {
  std::vector<std::string> items;
  double product = 1.0;
  double least = rows.front().ratio();
  for (const Row& row : rows) {
    product *= row.ratio();
    least = std::min(least, row.ratio());
    items.push_back(absl::StrFormat(
        R"({"rows": %d, "cols": %d, "runs": %d, "cpu_ms": %.4f, "cpu_ms_p25": %.4f, )"
        R"("cpu_ms_p75": %.4f, "sgemm_ms": %.4f, "sgemm_ms_p25": %.4f, "sgemm_ms_p75": %.4f, )"
        R"("ratio": %.4f, "gflops": %.2f})",
        row.rows, row.cols, row.runs, row.symmetric.median, row.symmetric.low, row.symmetric.high,
        row.plain.median, row.plain.low, row.plain.high, row.ratio(), row.gflops));
  }
  const double mean = std::pow(product, 1.0 / static_cast<double>(rows.size()));
  return absl::StrFormat(
      R"({"rows": [%s], "summary": {"threads": %d, "ratio_geomean": %.4f, "ratio_min": %.4f}})"
      "\n",
      absl::StrJoin(items, ", "), threads, mean, least);
}

int Main(int argc, char** argv) {
  CLI::App app("Newton-Schulz of the cpu backend against plain sgemm, alternating");
  std::string json;
  int threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  double seconds = 5.0;
  app.add_option("--json", json, "write rows and summary to this file");
  app.add_option("--threads", threads, "threads of both contestants")->check(CLI::Range(1, 1024));
  app.add_option("--seconds", seconds, "budget of each shape")->check(CLI::Range(0.01, 600.0));
  CLI11_PARSE(app, argc, argv);

  std::cout << absl::StrFormat("%-12s %5s  %-26s %-26s %7s %8s\n", "shape", "runs",
                               "cpu ms [p25, p75]", "sgemm ms [p25, p75]", "ratio", "GFLOP/s");
  std::vector<Row> rows;
  for (const auto& [height, width] : kShapes) {
    Alternation alternation(height, width, threads);
    const Row row = alternation.Run(seconds);
    if (!alternation.ok()) {
      std::cerr << "the two contestants disagree on " << height << " x " << width << "\n";
      return 1;
    }
    const auto spread = [](const Spread& s) {
      return absl::StrFormat("%.2f [%.2f, %.2f]", s.median, s.low, s.high);
    };
    std::cout << absl::StrFormat("%-12s %5d  %-26s %-26s %6.2fx %8.1f\n",
                                 absl::StrCat(height, " x ", width), row.runs,
                                 spread(row.symmetric), spread(row.plain), row.ratio(), row.gflops)
              << std::flush;
    rows.push_back(row);
  }
  if (json.empty()) return 0;
  std::ofstream file(json);
  file << Json(rows, threads);
  file.close();
  if (file) return 0;
  std::cerr << "cannot write " << json << "\n";
  return 1;
}

}  // namespace
}  // namespace dmuon::kernels

int main(int argc, char** argv) { return dmuon::kernels::Main(argc, argv); }
