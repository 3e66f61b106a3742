// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/plan/timings.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/plan/methods.h"
#include "daemon/plan/optimizers.h"
#include "daemon/plan/units.h"
#include "wire/error.h"

namespace dmuon::plan {
namespace {

// A job has some tens of shapes; this leaves room for any that is not an attack.
constexpr size_t kMaxTimes = 16'384;
constexpr int64_t kMaxSide = int64_t{1} << 31;
constexpr double kMaxSeconds = 86'400.0;

// Random matrices differ by 1e-5 in fp32 and by 0.01 to 0.02 in bf16 (kernels/README.md).
constexpr double kFloat32Error = 1e-3;
constexpr double kBFloat16Error = 0.05;

// The element-wise class: 8 MiB a buffer.
constexpr int64_t kElements = int64_t{1} << 21;

v1::Group OptimizerOf(const v1::Group& group) {
  v1::Group optimizer = group;
  optimizer.clear_name();
  if (optimizer.has_muon()) optimizer.mutable_muon()->clear_precision();
  return optimizer;
}

v1::UnitTime Entry(const v1::Group& optimizer, const kernels::MatrixShape& shape, const kernels::Method& method) {
  v1::UnitTime time;
  *time.mutable_optimizer() = optimizer;
  time.set_rows(shape.rows);
  time.set_cols(shape.cols);
  if (optimizer.has_muon()) *time.mutable_method() = ToProto(method);
  return time;
}

}  // namespace

std::vector<ShapeClass> ShapeClasses(const v1::JobSpec& job) {
  std::map<std::string, ShapeClass> classes;
  const auto add = [&](const v1::Group& group, const kernels::MatrixShape& shape, std::vector<kernels::Method> methods) {
    ShapeClass found{OptimizerOf(group), shape, std::move(methods)};
    const auto [known, added] = classes.try_emplace(KeyOf(Entry(found.optimizer, shape, {})), found);
    if (added) return;
    // Groups of one optimizer and another precision.
    for (const kernels::Method& method : found.methods) {
      std::vector<kernels::Method>& all = known->second.methods;
      if (std::find(all.begin(), all.end(), method) == all.end()) all.push_back(method);
    }
  };
  for (const Unit& unit : MakeUnits(job, {})) {
    const v1::Tensor& tensor = job.tensors(static_cast<int>(unit.tensor));
    const v1::Group& group = job.groups(static_cast<int>(tensor.group()));
    if (!group.has_muon()) {
      add(group, {1, kElements}, {kernels::Method()});
      continue;
    }
    for (const kernels::MatrixShape& matrix : MatricesOf(tensor, unit.box)) add(group, matrix, AllowedMethods(group));
  }
  std::vector<ShapeClass> list;
  for (auto& [key, found] : classes) list.push_back(std::move(found));
  return list;
}

v1::UnitTime TimeOf(const ShapeClass& units, const kernels::Method& method) {
  return Entry(units.optimizer, units.shape, method);
}

absl::Status ValidateTimes(std::span<const v1::UnitTime> times) {
  if (times.size() > kMaxTimes) {
    return wire::InvalidField(absl::StrCat(times.size(), " measured times, at most ", kMaxTimes));
  }
  for (const v1::UnitTime& time : times) {
    if (time.rows() < 1 || time.cols() < 1 || time.rows() > kMaxSide || time.cols() > kMaxSide) {
      return wire::InvalidField(absl::StrCat("a measured time of ", time.rows(), " x ", time.cols(),
                                             ", allowed are sides of 1..", kMaxSide));
    }
    if (!(time.seconds() > 0.0 && time.seconds() <= kMaxSeconds) || !(time.error() >= 0.0)) {
      return wire::InvalidField(absl::StrCat("a measured time of ", time.seconds(), " s with an error of ",
                                             time.error(), " for ", time.rows(), " x ", time.cols(),
                                             "; seconds must be above 0 and at most ", kMaxSeconds,
                                             ", errors at least 0"));
    }
  }
  return absl::OkStatus();
}

bool IsAccurate(const v1::UnitTime& time) {
  return time.error() <= (time.method().precision() == v1::PRECISION_BF16 ? kBFloat16Error : kFloat32Error);
}

std::string KeyOf(const v1::UnitTime& time) {
  v1::UnitTime key = Entry(time.optimizer(), {time.rows(), time.cols()}, FromProto(time.method()));
  // No maps inside, so equal messages have equal bytes. Numbers of a fixed width, so that shapes sort.
  return absl::StrCat(key.optimizer().SerializeAsString(), "/", absl::Dec(key.rows(), absl::kZeroPad10), "x",
                      absl::Dec(key.cols(), absl::kZeroPad10), "/", kernels::IndexOf(FromProto(key.method())));
}

Timings Timings::Of(std::span<const std::vector<v1::UnitTime>> nodes) {
  struct Sum {
    v1::UnitTime time;
    size_t nodes = 0;
  };
  std::map<std::string, Sum> sums;
  for (const std::vector<v1::UnitTime>& times : nodes) {
    for (const v1::UnitTime& time : times) {
      Sum& sum = sums[KeyOf(time)];
      const double seconds = sum.time.seconds() + time.seconds();
      const double error = std::max(sum.time.error(), time.error());
      sum.time = time;
      sum.time.set_seconds(seconds);
      sum.time.set_error(error);
      ++sum.nodes;
    }
  }
  Timings timings;
  for (auto& [key, sum] : sums) {
    if (sum.nodes != nodes.size()) continue;
    sum.time.set_seconds(sum.time.seconds() / static_cast<double>(sum.nodes));
    timings.times_[key] = std::move(sum.time);
  }
  return timings;
}

std::optional<Timings::Choice> Timings::Fastest(const v1::Group& group, const kernels::MatrixShape& matrix) const {
  const v1::Group optimizer = OptimizerOf(group);
  std::optional<Choice> fastest;
  if (!group.has_muon()) {
    const auto time = times_.find(KeyOf(Entry(optimizer, {1, kElements}, {})));
    if (time == times_.end()) return std::nullopt;
    return Choice{{}, time->second.seconds() * static_cast<double>(matrix.rows * matrix.cols) / kElements};
  }
  for (const kernels::Method& method : AllowedMethods(group)) {
    const auto time = times_.find(KeyOf(Entry(optimizer, matrix, method)));
    if (time == times_.end() || !IsAccurate(time->second)) continue;
    if (!fastest.has_value() || time->second.seconds() < fastest->seconds) {
      fastest = Choice{method, time->second.seconds()};
    }
  }
  return fastest;
}

}  // namespace dmuon::plan
