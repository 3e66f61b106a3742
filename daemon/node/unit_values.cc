// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/unit_values.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "daemon/plan/optimizers.h"
#include "daemon/plan/units.h"

namespace dmuon::node {
namespace {

// A stretch of elements of one matrix of a unit.
struct Stretch {
  size_t matrix;
  size_t first;  // in the matrix
  size_t other;  // in the other box
  size_t count;
};

// Calls fn(const Stretch&) for all that the unit and `box` share.
template <typename Fn>
void ForEachStretch(const OwnedUnit& unit, const wire::Box& box, Fn&& fn) {
  unit.layout.ForEachRun(box, [&](const wire::Run& run) {
    auto at = static_cast<size_t>(run.a);
    auto other = static_cast<size_t>(run.b);
    auto left = static_cast<size_t>(run.count);
    const auto after = std::upper_bound(unit.matrices.begin(), unit.matrices.end(), at,
                                        [](size_t element, const OwnedMatrix& matrix) { return element < matrix.first; });
    for (auto m = static_cast<size_t>(after - unit.matrices.begin()) - 1; left > 0; ++m) {
      const size_t end = m + 1 < unit.matrices.size() ? unit.matrices[m + 1].first : unit.weight.size();
      const size_t count = std::min(left, end - at);
      fn(Stretch{m, at - unit.matrices[m].first, other, count});
      at += count;
      other += count;
      left -= count;
    }
  });
}

bool IsShapedAs(const kernels::StateTensor& state, const kernels::MatrixShape& matrix) {
  return state.rows == matrix.rows && state.cols == matrix.cols;
}

}  // namespace

std::string OptimizerName(const v1::Group& group) {
  if (!group.has_muon()) return "adamw";
  constexpr absl::string_view kPrefix = "VARIANT_";
  const v1::Variant variant =
      group.muon().variant() == v1::VARIANT_UNSPECIFIED ? v1::VARIANT_MUON : group.muon().variant();
  const bool ema = plan::ToOptimizer(group).momentum == kernels::Momentum::kEma;
  return absl::StrCat(absl::AsciiStrToLower(v1::Variant_Name(variant).substr(kPrefix.size())),
                      ema ? "(ema)" : "(accumulate)");
}

std::vector<UnitArray> ArraysOf(const v1::JobSpec& job, const v1::Tensor& tensor, const wire::Box& unit) {
  const v1::Group& group = job.groups(static_cast<int>(tensor.group()));
  const kernels::Optimizer optimizer = plan::ToOptimizer(group);
  UnitArray whole;
  whole.entry.tensor = tensor.name();
  whole.entry.tensor_shape.assign(tensor.shape().begin(), tensor.shape().end());
  whole.entry.optimizer = OptimizerName(group);
  whole.entry.quantity = checkpoint::kWeight;
  whole.entry.box = unit;
  whole.entry.shape.assign(unit.length.begin(), unit.length.begin() + unit.ndim);

  std::vector<UnitArray> arrays = {whole};
  const std::vector<kernels::MatrixShape> matrices = plan::MatricesOf(tensor, unit);
  std::vector<std::vector<kernels::StateTensor>> states;  // by matrix
  for (const auto& [rows, cols] : matrices) states.push_back(kernels::StateTensors(optimizer, rows, cols));
  size_t most = 0;  // a small matrix may keep no basis
  for (const auto& of : states) most = std::max(most, of.size());
  for (size_t s = 0; s < most; ++s) {
    UnitArray array = whole;
    array.state = s;
    bool shaped = true;
    for (size_t m = 0; m < matrices.size(); ++m) {
      shaped = shaped && s < states[m].size() && IsShapedAs(states[m][s], matrices[m]);
      if (s < states[m].size()) array.entry.quantity = states[m][s].name;
    }
    if (shaped) {
      arrays.push_back(array);
      continue;
    }
    for (size_t m = 0; m < matrices.size(); ++m) {
      if (s >= states[m].size()) continue;
      array.entry.matrix = static_cast<int>(m);
      array.entry.shape = {states[m][s].rows, states[m][s].cols};
      arrays.push_back(array);
    }
  }
  return arrays;
}

UnitValues UnitValues::Like(const OwnedUnit& unit) {
  UnitValues values;
  values.weight.resize(unit.weight.size());
  for (const OwnedMatrix& matrix : unit.matrices) {
    std::vector<std::vector<float>>& state = values.state.emplace_back();
    for (const std::vector<float>& tensor : matrix.state) state.emplace_back(tensor.size());
  }
  return values;
}

void CopyOut(const OwnedUnit& unit, const UnitArray& array, std::span<float> to) {
  if (array.entry.matrix >= 0) {
    const std::vector<float>& from = unit.matrices[static_cast<size_t>(array.entry.matrix)].state[array.state];
    std::copy(from.begin(), from.end(), to.begin());
    return;
  }
  ForEachStretch(unit, unit.box(), [&](const Stretch& stretch) {
    const OwnedMatrix& matrix = unit.matrices[stretch.matrix];
    const float* from = array.state == UnitArray::kOfWeight ? unit.weight.data() + matrix.first
                                                            : matrix.state[array.state].data();
    std::copy_n(from + stretch.first, stretch.count, to.begin() + static_cast<std::ptrdiff_t>(stretch.other));
  });
}

void CopyIn(const OwnedUnit& unit, const UnitArray& array, const wire::Box& box, std::span<const float> from,
            UnitValues& values) {
  if (array.entry.matrix >= 0) {
    std::vector<float>& to = values.state[static_cast<size_t>(array.entry.matrix)][array.state];
    std::copy(from.begin(), from.end(), to.begin());
    return;
  }
  ForEachStretch(unit, box, [&](const Stretch& stretch) {
    float* to = array.state == UnitArray::kOfWeight ? values.weight.data() + unit.matrices[stretch.matrix].first
                                                    : values.state[stretch.matrix][array.state].data();
    std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(stretch.other), stretch.count, to + stretch.first);
  });
}

void Exchange(OwnedUnit& unit, UnitValues& values) {
  std::swap(unit.weight, values.weight);
  for (size_t m = 0; m < unit.matrices.size(); ++m) std::swap(unit.matrices[m].state, values.state[m]);
  std::swap(unit.updates, values.updates);
}

}  // namespace dmuon::node
