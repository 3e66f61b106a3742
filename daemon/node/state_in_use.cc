// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/state_in_use.h"

#include "absl/strings/str_cat.h"
#include "wire/box.h"

namespace dmuon::node {

ArraysInUse::ArraysInUse(const v1::JobSpec& job, const States& states) {
  for (const std::unique_ptr<OwnedState>& state : states) {
    first_.push_back(arrays_.size());
    for (size_t i = 0; i < state->size(); ++i) {
      const OwnedUnit& unit = state->unit(i);
      for (UnitArray& array : ArraysOf(job, job.tensors(static_cast<int>(unit.tensor)), unit.box())) {
        array.entry.updates = static_cast<uint64_t>(unit.updates);
        entries_.push_back(array.entry);
        arrays_.push_back({&unit, std::move(array)});
      }
    }
  }
  first_.push_back(arrays_.size());
}

absl::Status ArraysInUse::Read(size_t i, std::span<float> to) const {
  CopyOut(*arrays_[i].unit, arrays_[i].array, to);
  return absl::OkStatus();
}

StateInUse::StateInUse(const v1::JobSpec& job, const v1::Plan& plan, uint32_t self, uint64_t step,
                       const ArraysInUse::States& states)
    : job_(&job), plan_(&plan), self_(self), step_(step), states_(&states) {}

std::string StateInUse::name() const { return absl::StrCat("the state under generation ", plan_->generation()); }

absl::StatusOr<RestoreSource::Contents> StateInUse::Find() const {
  return Contents{absl::StrCat(name(), " after step ", step_), {}};
}

absl::StatusOr<RestoreSource::Opened> StateInUse::Open(const std::string& /*contents*/) const {
  Opened opened;
  opened.step = step_;
  for (const std::string& node : plan_->nodes()) {
    SavedSource& source = opened.sources.emplace_back();
    source.name = absl::StrCat("the units of node ", node);
    source.origin = absl::StrCat("node ", node);
    source.here = false;
  }
  for (const v1::Unit& unit : plan_->units()) {
    const v1::Tensor& tensor = job_->tensors(static_cast<int>(unit.tensor()));
    opened.sources[unit.owners(0).node()].count += ArraysOf(*job_, tensor, wire::FromProto(unit.box())).size();
  }
  opened.sources[self_].here = true;
  opened.sources[self_].arrays = std::make_shared<ArraysInUse>(*job_, *states_);
  return opened;
}

}  // namespace dmuon::node
