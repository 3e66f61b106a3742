// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/saved_job.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/plan/box_set.h"
#include "wire/error.h"

namespace dmuon::node {
namespace {

absl::Status Damaged(const std::string& why) {
  return wire::Error(absl::StatusCode::kDataLoss, v1::ERROR_REASON_CHECKPOINT, why);
}

std::string ShapeText(std::span<const int64_t> shape) { return absl::StrCat("(", absl::StrJoin(shape, ", "), ")"); }

}  // namespace

SavedJob::SavedJob(std::string name, uint64_t step, std::vector<SavedSource> sources, const v1::JobSpec& job,
                   absl::Status absent)
    : name_(std::move(name)), step_(step), sources_(std::move(sources)), job_(&job), absent_(std::move(absent)) {
  for (size_t source = 0; source < sources_.size(); ++source) {
    const std::vector<checkpoint::Entry>& entries = sources_[source].arrays->entries();
    for (size_t i = 0; i < entries.size(); ++i) {
      arrays_[{entries[i].tensor, entries[i].quantity}].push_back({source, i, &entries[i]});
    }
  }
}

absl::StatusOr<std::unique_ptr<SavedJob>> SavedJob::Open(std::string name, uint64_t step, std::vector<SavedSource> sources,
                                                         const v1::JobSpec& job, const v1::Plan& plan, uint32_t self,
                                                         const absl::Status& absent) {
  std::unique_ptr<SavedJob> saved(new SavedJob(std::move(name), step, std::move(sources), job, absent));
  for (const v1::Tensor& tensor : job.tensors()) DMUON_RETURN_IF_ERROR(saved->CheckTensor(tensor));
  for (const v1::Unit& unit : plan.units()) {
    if (unit.owners(0).node() != self) continue;
    const v1::Tensor& tensor = job.tensors(static_cast<int>(unit.tensor()));
    DMUON_RETURN_IF_ERROR(saved->CheckUnit(tensor, wire::FromProto(unit.box())));
  }
  DMUON_RETURN_IF_ERROR(saved->CheckNothingElse(plan));
  return saved;
}

absl::Status SavedJob::Unfit(const std::string& why) const {
  return wire::Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_CHECKPOINT,
                     absl::StrCat(name_, " of step ", step_, " does not fit job '", job_->job_id(), "': ", why));
}

absl::Status SavedJob::CheckTensor(const v1::Tensor& tensor) const {
  const auto found = arrays_.find({tensor.name(), checkpoint::kWeight});
  if (found == arrays_.end()) {
    if (plan::WholeOf(tensor).empty() || !absent_.ok()) return absl::OkStatus();
    return Unfit(absl::StrCat("it has no tensor '", tensor.name(), "'"));
  }
  const checkpoint::Entry& entry = *found->second.front().entry;
  if (!std::equal(entry.tensor_shape.begin(), entry.tensor_shape.end(), tensor.shape().begin(), tensor.shape().end())) {
    return Unfit(absl::StrCat("tensor '", tensor.name(), "' was saved as ", ShapeText(entry.tensor_shape), ", the job has ",
                              ShapeText(std::span(tensor.shape().data(), static_cast<size_t>(tensor.shape_size())))));
  }
  const std::string optimizer = OptimizerName(job_->groups(static_cast<int>(tensor.group())));
  if (entry.optimizer != optimizer) {
    return Unfit(absl::StrCat("tensor '", tensor.name(), "' was saved by optimizer ", entry.optimizer, ", the job has ",
                              optimizer, ", whose state means something else"));
  }
  return absl::OkStatus();
}

// All of its arrays are there, once, and of the same moment.
absl::Status SavedJob::CheckUnit(const v1::Tensor& tensor, const wire::Box& unit) const {
  const checkpoint::Entry* first = nullptr;
  for (const UnitArray& array : ArraysOf(*job_, tensor, unit)) {
    const std::vector<Located> found = Find(array.entry);
    std::vector<wire::Box> shared;
    for (const Located& located : found) shared.push_back(wire::Intersect(located.entry->box, unit));
    std::vector<plan::HeldBox> boxes;
    for (const wire::Box& box : shared) boxes.push_back({&box, 0});
    plan::KeepDistinct(boxes);
    const bool whole = array.entry.matrix >= 0 ? found.size() == 1
                                               : boxes.size() == shared.size() && plan::TileExactly(boxes, unit);
    if (!whole) {
      DMUON_RETURN_IF_ERROR(absent_);
      const std::string what =
          absl::StrCat("'", array.entry.quantity, "' of tensor '", tensor.name(), "', ", unit.ToString(),
                       array.entry.matrix >= 0 ? absl::StrCat(", matrix ", array.entry.matrix) : "");
      if (found.empty()) return Unfit(absl::StrCat("it has no ", what, "; it was saved with another view or other settings"));
      return Damaged(absl::StrCat(name_, ": the boxes of ", what, " leave a hole, or overlap"));
    }
    for (const auto& [source, index, entry] : found) {
      if (first == nullptr) first = entry;
      if (entry->updates == first->updates) continue;
      return Damaged(absl::StrCat(sources_[source].name, ": ", entry->Key(), " has ", entry->updates, " updates, ",
                                  first->Key(), " of the same unit ", first->updates));
    }
  }
  return absl::OkStatus();
}

absl::Status SavedJob::CheckNothingElse(const v1::Plan& plan) const {
  std::set<Quantity> wanted;
  for (const v1::Unit& unit : plan.units()) {
    const v1::Tensor& tensor = job_->tensors(static_cast<int>(unit.tensor()));
    for (const UnitArray& array : ArraysOf(*job_, tensor, wire::FromProto(unit.box()))) {
      wanted.insert({tensor.name(), array.entry.quantity});
    }
  }
  for (const auto& array : arrays_) {
    if (wanted.contains(array.first)) continue;
    const auto& [name, quantity] = array.first;
    const auto& tensors = job_->tensors();
    const bool known = std::any_of(tensors.begin(), tensors.end(),
                                   [&](const v1::Tensor& tensor) { return tensor.name() == array.first.first; });
    return Unfit(known ? absl::StrCat("it has '", quantity, "' of tensor '", name,
                                      "', for which the job's optimizer has no place")
                       : absl::StrCat("it has tensor '", name, "', which the job has not"));
  }
  return absl::OkStatus();
}

// Of an array of a unit.
std::vector<SavedJob::Located> SavedJob::Find(const checkpoint::Entry& wanted) const {
  std::vector<Located> located;
  const auto found = arrays_.find({wanted.tensor, wanted.quantity});
  if (found == arrays_.end()) return located;
  for (const Located& array : found->second) {
    const checkpoint::Entry& entry = *array.entry;
    const bool fits = wanted.matrix < 0 ? entry.matrix < 0 && !wire::Intersect(entry.box, wanted.box).empty()
                                        : entry.matrix == wanted.matrix && entry.box == wanted.box &&
                                              entry.shape == wanted.shape;
    if (fits) located.push_back(array);
  }
  return located;
}

absl::Status SavedJob::Read(const OwnedUnit& unit, UnitValues& values) const {
  const v1::Tensor& tensor = job_->tensors(static_cast<int>(unit.tensor));
  std::vector<float> buffer;
  for (const UnitArray& array : ArraysOf(*job_, tensor, unit.box())) {
    for (const auto& [source, index, entry] : Find(array.entry)) {
      buffer.resize(entry->elements());
      DMUON_RETURN_IF_ERROR(sources_[source].arrays->Read(index, buffer));
      if (!std::all_of(buffer.begin(), buffer.end(), [](float value) { return std::isfinite(value); })) {
        return Damaged(absl::StrCat(sources_[source].name, ": an element of ", entry->Key(), " is not finite"));
      }
      values.updates = static_cast<int64_t>(entry->updates);
      CopyIn(unit, array, entry->box, buffer, values);
    }
  }
  return absl::OkStatus();
}

}  // namespace dmuon::node
