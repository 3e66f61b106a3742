// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/unit_timer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <span>

namespace dmuon::node {
namespace {

using Seconds = std::chrono::duration<double>;

// A run of this length needs no other before it: what it warms up is not worth another.
constexpr double kLongRun = 2.0;
constexpr double kEnough = 0.5;   // seconds of one method
constexpr double kAtLeast = 0.03;  // unless it has had many runs
constexpr size_t kFewRuns = 3;
constexpr size_t kManyRuns = 50;

constexpr kernels::Hyper kHyper{.lr = 1e-3, .weight_decay = 0.1};

// Sums of four uniform numbers: near enough to a normal distribution, and without a library whose bits differ.
// The generator is SplitMix64 (Steele, Lea, Flood 2014).
void FillRandom(std::span<float> values) {
  uint64_t state = 1;
  for (float& value : values) {
    state += 0x9e3779b97f4a7c15;
    uint64_t bits = state;
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
    bits ^= bits >> 31;
    int32_t sum = -2 * 0xffff;
    for (int part = 0; part < 4; ++part) sum += static_cast<int32_t>((bits >> (16 * part)) & 0xffff);
    value = static_cast<float>(sum) / 0x1p16F;
  }
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

struct UnitTimer::Bench {
  std::vector<float> weight, gradient, update, kept;
  std::vector<std::vector<float>> state;
  kernels::Scratch scratch;
  int64_t updates = 0;
  double seconds = 0.0;
  absl::Status status;

  // Everything from the collected gradient to the new weight.
  void Step(const Class& units, const kernels::Method& method, bool keep, kernels::Backend& backend) {
    const kernels::Optimizer& optimizer = units.optimizer;
    kernels::UnitState unit =
        kernels::BindState(optimizer, units.shape.rows, units.shape.cols, weight, state, updates);
    if (optimizer.needs_whole_matrix()) {
      std::vector<kernels::MatrixView> batch;
      for (size_t i = 0; i < units.batch; ++i) {
        batch.push_back(backend.Direction(optimizer, kHyper, 1.0, gradient, unit, Part(units, i)));
      }
      Orthogonalize(units, method, batch, unit, backend);
      if (keep) kept.assign(batch.front().data, batch.front().data + batch.front().rows * batch.front().cols);
    }
    for (size_t i = 0; i < units.batch; ++i) backend.Apply(optimizer, kHyper, 1.0, gradient, Part(units, i), unit);
    updates = unit.step;
  }

  void Orthogonalize(const Class& units, const kernels::Method& method, std::span<const kernels::MatrixView> batch,
                     const kernels::UnitState& unit, kernels::Backend& backend) {
    if (batch.size() == 1) {
      status.Update(backend.OrthogonalizeDirection(units.optimizer, method, batch.front(), unit, update, scratch));
      return;
    }
    std::vector<absl::Status> statuses(batch.size());
    backend.OrthogonalizeBatch(units.optimizer.newton_schulz, method, batch, statuses, scratch);
    for (const absl::Status& of_one : statuses) status.Update(of_one);
  }

  // The update of the i-th unit of a batch; nothing for element-wise units.
  std::span<float> Part(const Class& units, size_t i) {
    const size_t size = update.size() / units.batch;
    return std::span(update).subspan(i * size, size);
  }
};

UnitTimer::UnitTimer(uint32_t slots, int threads_per_slot, kernels::Backend* backend)
    : backend_(backend), slots_(slots, [backend, threads_per_slot] { backend->BindThread(threads_per_slot); }) {
  for (uint32_t slot = 0; slot < slots; ++slot) benches_.push_back(std::make_unique<Bench>());
}

UnitTimer::~UnitTimer() = default;

uint64_t UnitTimer::BytesFor(const Class& units) const {
  constexpr int64_t kBuffers = 2;  // weight, gradient
  const int64_t elements = units.shape.rows * units.shape.cols;
  const auto batch = static_cast<int64_t>(units.batch);
  int64_t floats = kBuffers * elements + batch * kernels::WorkingFloats(units.optimizer, units.shape.rows, units.shape.cols);
  for (const kernels::StateTensor& tensor :
       kernels::StateTensors(units.optimizer, units.shape.rows, units.shape.cols)) {
    floats += tensor.rows * tensor.cols;
  }
  constexpr int64_t kKept = 2;  // of the first slot
  return sizeof(float) * static_cast<uint64_t>(floats * static_cast<int64_t>(benches_.size()) + kKept * elements);
}

void UnitTimer::Prepare(const Class& units) {
  const auto elements = static_cast<size_t>(units.shape.rows * units.shape.cols);
  slots_.Run([&](size_t slot) {
    Bench& bench = *benches_[slot];
    bench.updates = 0;
    bench.status = absl::OkStatus();
    bench.weight.assign(elements, 0.0F);
    bench.update.resize(units.optimizer.needs_whole_matrix()
                            ? units.batch * kernels::UpdateSize(units.optimizer, units.shape.rows, units.shape.cols)
                            : 0);
    bench.state.clear();
    for (const kernels::StateTensor& tensor :
         kernels::StateTensors(units.optimizer, units.shape.rows, units.shape.cols)) {
      bench.state.emplace_back(static_cast<size_t>(tensor.rows * tensor.cols), 0.0F);
    }
    if (bench.gradient.size() == elements) return;
    bench.gradient.resize(elements);
    FillRandom(bench.gradient);
  });
}

std::vector<UnitTimer::Result> UnitTimer::Measure(const Class& units) {
  std::vector<Result> results;
  std::vector<float> exact;
  if (units.optimizer.needs_whole_matrix()) {
    Prepare(units);
    Bench& bench = *benches_.front();
    bench.Step(units, kernels::Method(), /*keep=*/true, *backend_);
    exact.swap(bench.kept);
  }
  for (const kernels::Method& method : units.methods) {
    results.push_back(Measure(units, method));
    if (units.optimizer.needs_whole_matrix()) results.back().error = ErrorFrom(exact);
  }
  for (const auto& bench : benches_) *bench = Bench();  // what they hold may be large
  return results;
}

UnitTimer::Result UnitTimer::Measure(const Class& units, const kernels::Method& method) {
  Prepare(units);
  std::vector<double> runs = {Run(units, method, /*first=*/true)};
  if (runs.front() < kLongRun) {
    runs.clear();
    double sum = 0.0;
    while (sum < kEnough && runs.size() < kManyRuns && (sum < kAtLeast || runs.size() < kFewRuns)) {
      runs.push_back(Run(units, method, /*first=*/false));
      sum += runs.back();
    }
  }
  return {Median(std::move(runs)), 0.0};
}

double UnitTimer::Run(const Class& units, const kernels::Method& method, bool first) {
  slots_.Run([&](size_t slot) {
    Bench& bench = *benches_[slot];
    const auto start = std::chrono::steady_clock::now();
    bench.Step(units, method, first && slot == 0, *backend_);
    bench.seconds = Seconds(std::chrono::steady_clock::now() - start).count();
  });
  const double sum = std::accumulate(benches_.begin(), benches_.end(), 0.0,
                                     [](double total, const auto& bench) { return total + bench->seconds; });
  return sum / static_cast<double>(benches_.size() * units.batch);
}

double UnitTimer::ErrorFrom(const std::vector<float>& exact) const {
  const Bench& bench = *benches_.front();
  if (!bench.status.ok() || bench.kept.size() != exact.size()) return std::numeric_limits<double>::infinity();
  double distance = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double difference = static_cast<double>(bench.kept[i]) - static_cast<double>(exact[i]);
    distance += difference * difference;
    norm += static_cast<double>(exact[i]) * static_cast<double>(exact[i]);
  }
  return norm > 0.0 ? std::sqrt(distance / norm) : std::numeric_limits<double>::infinity();
}

}  // namespace dmuon::node
