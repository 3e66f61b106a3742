// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What there is to measure of a job, and what becomes of it: the price of a unit, and the method of its matrices.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "dmuon/v1/tensor.pb.h"
#include "dmuon/v1/timing.pb.h"
#include "kernels/optimizer.h"

namespace dmuon::plan {

// Units that take equally long: one optimizer, one shape. Times of element-wise units go by their size, so
// there is one class of them for each optimizer, of a size beyond the caches.
struct ShapeClass {
  v1::Group optimizer;  // without name and precision
  kernels::MatrixShape shape;
  std::vector<kernels::Method> methods;  // that the job allows
};
// Of a valid job, each once, sorted by shape within an optimizer.
std::vector<ShapeClass> ShapeClasses(const v1::JobSpec& job);

// What a measurement of the class by `method` is of; seconds and error are still to be set.
v1::UnitTime TimeOf(const ShapeClass& units, const kernels::Method& method);

// INVALID_ARGUMENT/INVALID_FIELD naming what is out of bounds: sizes, seconds, the number of times.
absl::Status ValidateTimes(std::span<const v1::UnitTime> times);

// True when the result is near enough to that of the standard form in fp32 for the method to be chosen.
bool IsAccurate(const v1::UnitTime& time);

// Equal for what is measured once: optimizer, shape and method.
std::string KeyOf(const v1::UnitTime& time);

// Times of all nodes of a job, as prices.
class Timings {
 public:
  // Mean seconds and the largest error of what every one of `nodes` has measured; the rest is left out.
  static Timings Of(std::span<const std::vector<v1::UnitTime>> nodes);

  struct Choice {
    kernels::Method method;
    double seconds = 0.0;
  };
  // The fastest method that `group` allows and that is accurate. nullopt when none of them was measured.
  [[nodiscard]] std::optional<Choice> Fastest(const v1::Group& group, const kernels::MatrixShape& matrix) const;

 private:
  std::map<std::string, v1::UnitTime> times_;  // by KeyOf
};

}  // namespace dmuon::plan
