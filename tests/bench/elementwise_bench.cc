// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The cpu backend's element-wise work against memcpy: time for each byte that must be read or written, over the
// time that a copy of a tensor of the same size takes for each of its bytes, read and written. A kernel and a
// copy alternate, both by the same team of threads, on memory from the same allocator.
//
// Tensors are beyond the caches, so what must be moved is each tensor once, and twice what is needed again after a
// sum over the whole matrix. The target is 1.3 for the group `basic`; `family` has the other optimizers' own stages.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/backend.h"

namespace dmuon::kernels {
namespace {

// Of the wall clock, or processor time of all threads over their number.
class Stopwatch {
 public:
  Stopwatch(bool cpu_time, int threads)
      : clock_(cpu_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC), share_(cpu_time ? 1.0 / threads : 1.0) {}

  [[nodiscard]] double Seconds(const std::function<void()>& work) const {
    const double start = Now();
    work();
    return share_ * (Now() - start);
  }

 private:
  [[nodiscard]] double Now() const {
    timespec now{};
    clock_gettime(clock_, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  }

  const clockid_t clock_;
  const double share_;
};

// A square matrix and all that a step of it touches.
class Tensors {
 public:
  explicit Tensors(int64_t side)
      : side_(side), elements_(static_cast<size_t>(side * side)), gradient(Normal(1)), weight(Normal(2)),
        update(Normal(3)), copy(elements_), halves(elements_) {
    for (uint32_t i = 0; i < 3; ++i) tensors_.push_back(Normal(4 + i));
    for (float& value : tensors_[1]) value = value * value + 1e-3F;  // a second moment
    tensors_.resize(4);
    tensors_[3].assign(static_cast<size_t>(side), 1.0F);
  }

  [[nodiscard]] double elements() const { return static_cast<double>(elements_); }

  // Its state tensors are the same memory for all optimizers.
  UnitState State(const Optimizer& optimizer) {
    UnitState state{.rows = side_, .cols = side_, .weight = weight, .momentum = tensors_[0], .second_moment = {},
                    .column_moment = {}, .slow_gradient = {}, .basis = {}, .step = 10};
    for (const StateTensor& tensor : StateTensors(optimizer, side_, side_)) {
      const auto count = static_cast<size_t>(tensor.rows * tensor.cols);
      if (tensor.name == "second_moment") state.second_moment = std::span(tensors_[1]).first(count);
      if (tensor.name == "slow_gradient") state.slow_gradient = std::span(tensors_[2]).first(count);
      if (tensor.name == "column_moment") state.column_moment = std::span(tensors_[3]).first(count);
    }
    return state;
  }

 private:
  [[nodiscard]] std::vector<float> Normal(uint32_t seed) const {
    // Drawn once and repeated: drawing all of them takes longer than the benchmark.
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> values(elements_);
    for (size_t i = 0; i < elements_; ++i) values[i] = i < kDrawn ? normal(random) : values[i - kDrawn];
    return values;
  }

  static constexpr size_t kDrawn = 100'003;
  const int64_t side_;
  const size_t elements_;
  std::vector<std::vector<float>> tensors_;

 public:
  std::vector<float> gradient, weight, update, copy;
  std::vector<uint16_t> halves;
};

struct Kernel {
  std::string name;
  std::string group;  // basic or family
  double bytes;       // read and written
  std::function<void()> run;
};

constexpr Hyper kHyper = {.lr = 1e-3, .weight_decay = 0.1, .momentum = 0.95, .beta2 = 0.95};

// `bytes` for each element.
void AddDirection(std::vector<Kernel>& kernels, Backend& backend, Tensors& t, const Optimizer& optimizer,
                  const std::string& name, const std::string& group, double bytes) {
  kernels.push_back({name + " direction", group, bytes * t.elements(), [&backend, &t, optimizer] {
                       backend.Direction(optimizer, kHyper, 1.0, t.gradient, t.State(optimizer), t.update);
                     }});
}
void AddApply(std::vector<Kernel>& kernels, Backend& backend, Tensors& t, const Optimizer& optimizer,
              const std::string& name, const std::string& group, double bytes) {
  kernels.push_back({name + " apply", group, bytes * t.elements(), [&backend, &t, optimizer] {
                       UnitState state = t.State(optimizer);
                       const bool whole = optimizer.needs_whole_matrix();
                       const size_t used = whole ? t.update.size() : 0;
                       backend.Apply(optimizer, kHyper, 1.0, t.gradient, std::span(t.update).first(used), state);
                     }});
}

void AddCasts(std::vector<Kernel>& kernels, Backend& backend, Tensors& t) {
  const double n = t.elements();
  kernels.push_back({"bf16 to fp32", "basic", 6 * n,
                     [&] { backend.CastToFloat(DType::kBFloat16, t.halves.data(), t.copy); }});
  kernels.push_back({"fp32 to bf16", "basic", 6 * n,
                     [&] { backend.CastFromFloat(t.gradient, DType::kBFloat16, t.halves.data()); }});
  kernels.push_back({"fp32 to fp32", "basic", 8 * n,
                     [&] { backend.CastToFloat(DType::kFloat32, t.gradient.data(), t.copy); }});
  kernels.push_back({"add fp32", "basic", 12 * n,
                     [&] { backend.AddToFloat(DType::kFloat32, t.gradient.data(), t.copy); }});
  kernels.push_back({"add bf16", "basic", 10 * n,
                     [&] { backend.AddToFloat(DType::kBFloat16, t.halves.data(), t.copy); }});
  kernels.push_back({"multiply", "basic", 8 * n, [&] { backend.Multiply(1.0 - 1e-7, t.copy); }});
  kernels.push_back({"measure", "basic", 4 * n, [&] {
                       if (!backend.Measure(t.gradient).finite) std::abort();
                     }});
}

std::vector<Kernel> Kernels(Backend& backend, Tensors& t) {
  std::vector<Kernel> kernels;
  AddCasts(kernels, backend, t);
  Optimizer accumulate = Muon();
  accumulate.momentum = Momentum::kAccumulate;
  accumulate.nesterov = false;
  Optimizer cautious = Muon();
  cautious.weight_decay = WeightDecay::kCautious;
  AddDirection(kernels, backend, t, Muon(), "muon", "basic", 12);
  AddDirection(kernels, backend, t, accumulate, "accumulate", "basic", 12);
  AddApply(kernels, backend, t, Muon(), "muon", "basic", 24);
  AddApply(kernels, backend, t, cautious, "cautious", "basic", 24);
  AddApply(kernels, backend, t, AdamW(), "adamw", "basic", 28);
  AddDirection(kernels, backend, t, AdaMuon(), "adamuon", "family", 12);
  AddApply(kernels, backend, t, NorMuon(), "normuon", "family", 28);
  AddApply(kernels, backend, t, AdaMuon(), "adamuon", "family", 40);
  AddDirection(kernels, backend, t, Muon2(), "muon2", "family", 16);
  AddApply(kernels, backend, t, Muon2(), "muon2", "family", 32);
  AddDirection(kernels, backend, t, Muon2Factored(), "muon2_factored", "family", 16);
  AddApply(kernels, backend, t, Muon2Factored(), "muon2_factored", "family", 28);
  AddDirection(kernels, backend, t, Mona(), "mona", "family", 16);
  AddApply(kernels, backend, t, Mona(), "mona", "family", 32);
  AddDirection(kernels, backend, t, Dion2(), "dion2", "family", 11);
  AddApply(kernels, backend, t, Dion2(), "dion2", "family", 29);
  return kernels;
}

// By the same threads that the backend's teams consist of.
void Copy(int threads, const std::vector<float>& from, std::vector<float>& to) {
  [[maybe_unused]] const int team = threads;
  const size_t part = from.size() / static_cast<size_t>(threads) + 1;
#pragma omp parallel for num_threads(team)
  for (int i = 0; i < threads; ++i) {
    const size_t begin = std::min(from.size(), static_cast<size_t>(i) * part);
    const size_t end = std::min(from.size(), begin + part);
    std::memcpy(to.data() + begin, from.data() + begin, (end - begin) * sizeof(float));
  }
}

struct Row {
  std::string name, group;
  int threads;
  double ms, gigabytes;             // medians; bytes a second of the copy beside it
  double vs_copy, vs_low, vs_high;  // median and quartiles of the ratios of one turn
};

struct Options {
  int turns = 11;
  std::string only;
  bool cpu_time = false;
};

double Quantile(std::vector<double> values, double at) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(at * static_cast<double>(values.size() - 1) + 0.5)];
}

std::vector<Row> Measure(Backend& backend, Tensors& t, int threads, const Options& options) {
  const Stopwatch stopwatch(options.cpu_time, threads);
  backend.BindThread(threads);
  const double copied = 8 * t.elements();
  std::vector<Kernel> kernels = Kernels(backend, t);
  std::erase_if(kernels, [&](const Kernel& k) {
    return (k.name + " " + k.group).find(options.only) == std::string::npos;
  });
  std::vector<std::vector<double>> ratios(kernels.size()), seconds(kernels.size()), copies(kernels.size());
  for (int turn = 0; turn <= options.turns; ++turn) {
    for (size_t i = 0; i < kernels.size(); ++i) {
      const double copy = stopwatch.Seconds([&] { Copy(threads, t.gradient, t.copy); }) / copied;
      const double own = stopwatch.Seconds(kernels[i].run);
      if (turn == 0) continue;  // warms up
      ratios[i].push_back(own / kernels[i].bytes / copy);
      seconds[i].push_back(own);
      copies[i].push_back(copy);
    }
  }
  std::vector<Row> rows;
  for (size_t i = 0; i < kernels.size(); ++i) {
    rows.push_back({kernels[i].name, kernels[i].group, threads, 1e3 * Quantile(seconds[i], 0.5),
                    1e-9 / Quantile(copies[i], 0.5), Quantile(ratios[i], 0.5), Quantile(ratios[i], 0.25),
                    Quantile(ratios[i], 0.75)});
  }
  return rows;
}

std::string Json(const std::vector<Row>& rows) {
  std::vector<std::string> items, kernels;
  std::vector<double> basic;
  for (const Row& row : rows) {
    items.push_back(absl::StrFormat(
        R"({"kernel": "%s", "group": "%s", "threads": %d, "ms": %.3f, "copy_gb_per_s": %.2f, "vs_copy": %.3f, )"
        R"("vs_copy_low": %.3f, "vs_copy_high": %.3f})",
        row.name, row.group, row.threads, row.ms, row.gigabytes, row.vs_copy, row.vs_low, row.vs_high));
    kernels.push_back(absl::StrFormat(R"("%s, %d": %.3f)", row.name, row.threads, row.vs_copy));
    if (row.group == "basic") basic.push_back(row.vs_copy);
  }
  return absl::StrFormat(
      "{\"rows\": [%s],\n\"summary\": {\"worst_vs_copy\": %.3f, \"median_vs_copy\": %.3f, \"target\": 1.3,\n"
      "\"vs_copy\": {%s}}}\n",
      absl::StrJoin(items, ",\n"), Quantile(basic, 1.0), Quantile(basic, 0.5), absl::StrJoin(kernels, ", "));
}

int Main(int argc, char** argv) {
  CLI::App app("Element-wise kernels of the cpu backend against memcpy, by bytes read and written");
  std::string json;
  int mib = 64;
  std::vector<int> team = {1, 2};
  Options options;
  app.add_option("--json", json, "write rows and summary to this file");
  app.add_option("--mib", mib, "size of a fp32 tensor")->check(CLI::Range(1, 4096));
  app.add_option("--turns", options.turns, "turns of each kernel")->check(CLI::Range(1, 10'000));
  app.add_option("--threads", team, "sizes of the team")->check(CLI::Range(1, 1024));
  app.add_option("--only", options.only, "kernels and groups whose names have this in them");
  app.add_flag("--cpu-time", options.cpu_time,
               "count processor time instead of the wall clock, where other processes use the cores; set "
               "OMP_WAIT_POLICY=passive, because a thread that spins counts");
  CLI11_PARSE(app, argc, argv);
  const std::unique_ptr<Backend> backend = *MakeBackend("cpu");
  Tensors tensors(static_cast<int64_t>(std::sqrt(mib * 262'144.0)));
  std::vector<Row> rows;
  std::cout << absl::StrFormat("%-26s %-7s %7s %9s %10s %20s\n", "kernel", "group", "threads", "ms", "copy GB/s",
                               "time vs copy");
  for (const int threads : team) {
    for (const Row& row : Measure(*backend, tensors, threads, options)) {
      rows.push_back(row);
      std::cout << absl::StrFormat("%-26s %-7s %7d %9.2f %10.1f %6.2f (%.2f to %.2f)\n", row.name, row.group, threads,
                                   row.ms, row.gigabytes, row.vs_copy, row.vs_low, row.vs_high)
                << std::flush;
    }
  }
  if (json.empty()) return 0;
  std::ofstream file(json);
  file << Json(rows);
  file.close();
  if (file) return 0;
  std::cerr << "cannot write " << json << "\n";
  return 1;
}

}  // namespace
}  // namespace dmuon::kernels

int main(int argc, char** argv) { return dmuon::kernels::Main(argc, argv); }
