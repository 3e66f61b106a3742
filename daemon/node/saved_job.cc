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

absl::StatusOr<std::unique_ptr<SavedJob>> SavedJob::Open(const checkpoint::Store& store, checkpoint::Manifest manifest,
                                                         const v1::JobSpec& job, const v1::Plan& plan, uint32_t self) {
  std::unique_ptr<SavedJob> saved(new SavedJob(store, std::move(manifest), job));
  DMUON_RETURN_IF_ERROR(saved->ReadHeads());
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
                     absl::StrCat("checkpoint '", manifest_.name, "' of step ", manifest_.step,
                                  " does not fit job '", job_->job_id(), "': ", why));
}

absl::Status SavedJob::ReadHeads() {
  for (size_t part = 0; part < manifest_.parts.size(); ++part) {
    const absl::StatusOr<std::unique_ptr<checkpoint::PartReader>> reader =
        store_->OpenPart(manifest_, manifest_.parts[part]);
    if (absl::IsNotFound(reader.status())) {
      absent_.Update(reader.status());
      continue;
    }
    DMUON_RETURN_IF_ERROR(reader.status());
    const std::vector<checkpoint::Entry>& entries = (*reader)->entries();
    for (size_t i = 0; i < entries.size(); ++i) {
      sources_[{entries[i].tensor, entries[i].quantity}].push_back({part, i, entries[i]});
    }
  }
  return absl::OkStatus();
}

absl::Status SavedJob::CheckTensor(const v1::Tensor& tensor) const {
  const auto found = sources_.find({tensor.name(), checkpoint::kWeight});
  if (found == sources_.end()) {
    if (plan::WholeOf(tensor).empty() || !absent_.ok()) return absl::OkStatus();
    return Unfit(absl::StrCat("it has no tensor '", tensor.name(), "'"));
  }
  const checkpoint::Entry& entry = found->second.front().entry;
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

// All of its arrays are there, once.
absl::Status SavedJob::CheckUnit(const v1::Tensor& tensor, const wire::Box& unit) const {
  for (const UnitArray& array : ArraysOf(*job_, tensor, unit)) {
    const std::vector<const Source*> sources = SourcesOf(array.entry);
    std::vector<wire::Box> shared;
    for (const Source* source : sources) shared.push_back(wire::Intersect(source->entry.box, unit));
    std::vector<plan::HeldBox> boxes;
    for (const wire::Box& box : shared) boxes.push_back({&box, 0});
    plan::KeepDistinct(boxes);
    const bool whole = array.entry.matrix >= 0 ? sources.size() == 1
                                               : boxes.size() == shared.size() && plan::TileExactly(boxes, unit);
    if (whole) continue;
    DMUON_RETURN_IF_ERROR(absent_);
    const std::string what = absl::StrCat("'", array.entry.quantity, "' of tensor '", tensor.name(), "', ", unit.ToString(),
                                          array.entry.matrix >= 0 ? absl::StrCat(", matrix ", array.entry.matrix) : "");
    if (sources.empty()) return Unfit(absl::StrCat("it has no ", what, "; it was saved with another view or other settings"));
    return Damaged(absl::StrCat("checkpoint '", manifest_.name, "': the boxes of ", what, " leave a hole, or overlap"));
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
  for (const auto& source : sources_) {
    if (wanted.contains(source.first)) continue;
    const auto& [name, quantity] = source.first;
    const auto& tensors = job_->tensors();
    const bool known = std::any_of(tensors.begin(), tensors.end(),
                                   [&](const v1::Tensor& tensor) { return tensor.name() == source.first.first; });
    return Unfit(known ? absl::StrCat("it has '", quantity, "' of tensor '", name,
                                      "', for which the job's optimizer has no place")
                       : absl::StrCat("it has tensor '", name, "', which the job has not"));
  }
  return absl::OkStatus();
}

// Of an array of a unit.
std::vector<const SavedJob::Source*> SavedJob::SourcesOf(const checkpoint::Entry& wanted) const {
  std::vector<const Source*> sources;
  const auto found = sources_.find({wanted.tensor, wanted.quantity});
  if (found == sources_.end()) return sources;
  for (const Source& source : found->second) {
    const checkpoint::Entry& entry = source.entry;
    const bool fits = wanted.matrix < 0 ? entry.matrix < 0 && !wire::Intersect(entry.box, wanted.box).empty()
                                        : entry.matrix == wanted.matrix && entry.box == wanted.box &&
                                              entry.shape == wanted.shape;
    if (fits) sources.push_back(&source);
  }
  return sources;
}

absl::Status SavedJob::Reader::Read(const OwnedUnit& unit, UnitValues& values) {
  const v1::Tensor& tensor = saved_->job_->tensors(static_cast<int>(unit.tensor));
  bool first = true;
  for (const UnitArray& array : ArraysOf(*saved_->job_, tensor, unit.box())) {
    for (const Source* source : saved_->SourcesOf(array.entry)) {
      std::unique_ptr<checkpoint::PartReader>& part = parts_[source->part];
      if (part == nullptr) {
        DMUON_ASSIGN_OR_RETURN(
            part, saved_->store_->OpenPart(saved_->manifest_, saved_->manifest_.parts[source->part]));
      }
      buffer_.resize(source->entry.elements());
      DMUON_RETURN_IF_ERROR(part->Read(source->index, buffer_));
      const std::string& file = saved_->manifest_.parts[source->part].file;
      if (!std::all_of(buffer_.begin(), buffer_.end(), [](float value) { return std::isfinite(value); })) {
        return Damaged(absl::StrCat(file, ": an element of ", source->entry.Key(), " is not finite"));
      }
      const auto updates = static_cast<int64_t>(source->entry.updates);
      if (!first && updates != values.updates) {
        return Damaged(absl::StrCat(file, ": ", source->entry.Key(), " has ", updates, " updates, another array of the unit ",
                                    values.updates));
      }
      first = false;
      values.updates = updates;
      CopyIn(unit, array, source->entry.box, buffer_, values);
    }
  }
  return absl::OkStatus();
}

}  // namespace dmuon::node
