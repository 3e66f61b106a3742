// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/copy_steps.h"

#include <algorithm>

namespace dmuon::node {

size_t CopySteps::GiveWay(uint64_t step) {
  if (const std::optional<size_t> same = Find(step); same.has_value()) return *same;
  const bool first =
      copies_[0].empty() || (!copies_[1].empty() && copies_[0].last <= copies_[1].last);
  const size_t older = first ? 0 : 1;
  copies_[older] = Steps();
  return older;
}

void CopySteps::Arrived(size_t copy, uint64_t step) {
  if (!copies_[copy].Has(step)) copies_[copy] = {step, step};
}

std::optional<size_t> CopySteps::Find(uint64_t step) const {
  for (size_t copy = 0; copy < copies_.size(); ++copy) {
    if (copies_[copy].Has(step)) return copy;
  }
  return std::nullopt;
}

void CopySteps::Extend(uint64_t step) {
  for (Steps& copy : copies_) {
    if (!copy.empty() && copy.last + 1 == step) copy.last = step;
  }
}

void CopySteps::ForgetAfter(uint64_t step) {
  for (Steps& copy : copies_) {
    copy.last = std::min(copy.last, step);
    if (copy.empty()) copy = Steps();
  }
}

std::optional<uint64_t> CopySteps::newest() const {
  std::optional<uint64_t> newest;
  for (const Steps& copy : copies_) {
    if (!copy.empty()) newest = std::max(newest.value_or(0), copy.last);
  }
  return newest;
}

void CopySteps::Describe(google::protobuf::RepeatedPtrField<v1::StepRange>& ranges) const {
  for (const Steps& copy : copies_) {
    if (copy.empty()) continue;
    v1::StepRange& range = *ranges.Add();
    range.set_first(copy.first);
    range.set_last(copy.last);
  }
}

}  // namespace dmuon::node
