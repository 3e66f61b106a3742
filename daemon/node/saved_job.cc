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
                   const v1::Plan& plan)
    : name_(std::move(name)), step_(step), sources_(std::move(sources)), job_(&job), plan_(&plan) {
  for (size_t source = 0; source < sources_.size(); ++source) {
    const std::vector<checkpoint::Entry>& entries = sources_[source].arrays->entries();
    for (size_t i = 0; i < entries.size(); ++i) arrays_[{entries[i].tensor, entries[i].quantity}].push_back({source, i});
  }
}

absl::StatusOr<std::unique_ptr<SavedJob>> SavedJob::Open(std::string name, uint64_t step, std::vector<SavedSource> sources,
                                                         const v1::JobSpec& job, const v1::Plan& plan) {
  std::unique_ptr<SavedJob> saved(new SavedJob(std::move(name), step, std::move(sources), job, plan));
  for (const v1::Tensor& tensor : job.tensors()) DMUON_RETURN_IF_ERROR(saved->CheckTensor(tensor));
  for (const v1::Unit& unit : plan.units()) {
    const v1::Tensor& tensor = job.tensors(static_cast<int>(unit.tensor()));
    DMUON_RETURN_IF_ERROR(saved->CheckUnit(tensor, wire::FromProto(unit.box())));
  }
  DMUON_RETURN_IF_ERROR(saved->CheckNothingElse());
  return saved;
}

absl::Status SavedJob::Unfit(const std::string& why) const {
  return wire::Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_CHECKPOINT,
                     absl::StrCat(name_, " of step ", step_, " does not fit job '", job_->job_id(), "': ", why));
}

absl::Status SavedJob::CheckTensor(const v1::Tensor& tensor) const {
  const auto found = arrays_.find({tensor.name(), checkpoint::kWeight});
  if (found == arrays_.end()) {
    if (plan::WholeOf(tensor).empty()) return absl::OkStatus();
    return Unfit(absl::StrCat("it has no tensor '", tensor.name(), "'"));
  }
  const checkpoint::Entry& entry = this->entry(found->second.front());
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
    const std::vector<ArrayRef> found = Find(array.entry);
    std::vector<wire::Box> shared;
    for (const ArrayRef& saved : found) shared.push_back(wire::Intersect(entry(saved).box, unit));
    std::vector<plan::HeldBox> boxes;
    for (const wire::Box& box : shared) boxes.push_back({&box, 0});
    plan::KeepDistinct(boxes);
    const bool whole = array.entry.matrix >= 0 ? found.size() == 1
                                               : boxes.size() == shared.size() && plan::TileExactly(boxes, unit);
    if (!whole) {
      const std::string what =
          absl::StrCat("'", array.entry.quantity, "' of tensor '", tensor.name(), "', ", unit.ToString(),
                       array.entry.matrix >= 0 ? absl::StrCat(", matrix ", array.entry.matrix) : "");
      if (found.empty()) return Unfit(absl::StrCat("it has no ", what, "; it was saved with another view or other settings"));
      return Damaged(absl::StrCat(name_, ": the boxes of ", what, " leave a hole, or overlap"));
    }
    for (const ArrayRef& saved : found) {
      const checkpoint::Entry& other = entry(saved);
      if (first == nullptr) first = &other;
      if (other.updates == first->updates) continue;
      return Damaged(absl::StrCat(sources_[saved.source].name, ": ", other.Key(), " has ", other.updates, " updates, ",
                                  first->Key(), " of the same unit ", first->updates));
    }
  }
  return absl::OkStatus();
}

absl::Status SavedJob::CheckNothingElse() const {
  std::set<Quantity> wanted;
  for (const v1::Unit& unit : plan_->units()) {
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
std::vector<ArrayRef> SavedJob::Find(const checkpoint::Entry& wanted) const {
  std::vector<ArrayRef> saved;
  const auto found = arrays_.find({wanted.tensor, wanted.quantity});
  if (found == arrays_.end()) return saved;
  for (const ArrayRef& array : found->second) {
    const checkpoint::Entry& is = entry(array);
    const bool fits = wanted.matrix < 0 ? is.matrix < 0 && !wire::Intersect(is.box, wanted.box).empty()
                                        : is.matrix == wanted.matrix && is.box == wanted.box && is.shape == wanted.shape;
    if (fits) saved.push_back(array);
  }
  return saved;
}

std::vector<SavedJob::Piece> SavedJob::PiecesOf(uint32_t tensor, const wire::Box& unit) const {
  std::vector<Piece> pieces;
  for (const UnitArray& array : ArraysOf(*job_, job_->tensors(static_cast<int>(tensor)), unit)) {
    for (const ArrayRef& saved : Find(array.entry)) pieces.push_back({array, saved});
  }
  return pieces;
}

std::vector<std::vector<NeededArray>> SavedJob::NeedsOf(size_t nodes) const {
  std::vector<std::set<NeededArray>> needs(nodes);
  for (const v1::Unit& unit : plan_->units()) {
    for (const Piece& piece : PiecesOf(unit.tensor(), wire::FromProto(unit.box()))) {
      const uint64_t elements = entry(piece.saved).elements();
      if (elements > 0) needs[unit.owners(0).node()].insert({piece.saved, elements});
    }
  }
  std::vector<std::vector<NeededArray>> lists;
  for (const std::set<NeededArray>& of : needs) lists.emplace_back(of.begin(), of.end());
  return lists;
}

absl::Status SavedJob::Read(const ArrayRef& array, std::span<float> to) const {
  const SavedSource& source = sources_[array.source];
  DMUON_RETURN_IF_ERROR(source.arrays->Read(array.index, to));
  if (std::all_of(to.begin(), to.end(), [](float value) { return std::isfinite(value); })) return absl::OkStatus();
  return Damaged(absl::StrCat(source.name, ": an element of ", entry(array).Key(), " is not finite"));
}

}  // namespace dmuon::node
