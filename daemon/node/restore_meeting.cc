// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/restore_meeting.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/checkpoint/entry.h"
#include "wire/box.h"
#include "wire/error.h"
#include "wire/validate.h"

namespace dmuon::node {
namespace {

absl::Status Failed(absl::StatusCode code, const std::string& why) {
  return wire::Error(code, v1::ERROR_REASON_CHECKPOINT, why);
}

// Arrays of a source that is on other nodes only.
class ToldArrays final : public checkpoint::ArraySource {
 public:
  [[nodiscard]] const std::vector<checkpoint::Entry>& entries() const override { return entries_; }
  [[nodiscard]] absl::Status Read(size_t i, std::span<float>) const override {
    return absl::InternalError(absl::StrCat(entries_[i].Key(), " is on another node"));
  }
  void Add(checkpoint::Entry entry) { entries_.push_back(std::move(entry)); }

 private:
  std::vector<checkpoint::Entry> entries_;
};

v1::SourceArray ToMessage(size_t source, const checkpoint::Entry& entry) {
  v1::SourceArray message;
  message.set_source(static_cast<uint32_t>(source));
  message.set_tensor(entry.tensor);
  *message.mutable_tensor_shape() = {entry.tensor_shape.begin(), entry.tensor_shape.end()};
  message.set_optimizer(entry.optimizer);
  message.set_updates(entry.updates);
  message.set_quantity(entry.quantity);
  *message.mutable_box() = wire::ToProto(entry.box);
  message.set_matrix(entry.matrix);
  *message.mutable_shape() = {entry.shape.begin(), entry.shape.end()};
  return message;
}

absl::StatusOr<checkpoint::Entry> FromMessage(const v1::SourceArray& message) {
  checkpoint::Entry entry;
  entry.tensor = message.tensor();
  entry.tensor_shape.assign(message.tensor_shape().begin(), message.tensor_shape().end());
  entry.optimizer = message.optimizer();
  entry.updates = message.updates();
  entry.quantity = message.quantity();
  if (entry.tensor_shape.size() > wire::kMaxDims) {
    return wire::InvalidField(absl::StrCat("an array of another node has ", entry.tensor_shape.size(), " dimensions"));
  }
  DMUON_ASSIGN_OR_RETURN(entry.box, wire::ParseBox(message.box(), entry.tensor_shape, "an array of another node"));
  entry.matrix = message.matrix();
  entry.shape.assign(message.shape().begin(), message.shape().end());
  DMUON_RETURN_IF_ERROR(checkpoint::ValidateEntry(entry));
  return entry;
}

// Hands out, report by report, what this node has to tell.
class Teller {
 public:
  Teller(const std::vector<SavedSource>& sources, size_t bytes) : sources_(sources), bytes_(bytes) {}
  void Add(size_t source) { rest_.push_back(source); }
  v1::RestoreShare Next() {
    v1::RestoreShare share;
    for (size_t bytes = 0; next_ < rest_.size() && bytes < bytes_;) {
      const std::vector<checkpoint::Entry>& entries = sources_[rest_[next_]].arrays->entries();
      if (index_ == entries.size()) {
        ++next_;
        index_ = 0;
        continue;
      }
      *share.add_arrays() = ToMessage(rest_[next_], entries[index_++]);
      bytes += share.arrays(share.arrays_size() - 1).ByteSizeLong();
    }
    share.set_more(next_ < rest_.size());
    return share;
  }

 private:
  const std::vector<SavedSource>& sources_;
  const size_t bytes_;  // of a report
  std::vector<size_t> rest_;
  size_t next_ = 0;
  size_t index_ = 0;
};

// What not all nodes can read of a source that has arrays.
bool MustBeTold(const SavedSource& source, const std::vector<uint32_t>& holders, size_t nodes) {
  return source.count > 0 && holders.size() < nodes;
}

absl::Status AddTold(const Reports& reports, const std::vector<SavedSource>& sources,
                     std::vector<std::shared_ptr<ToldArrays>>& told) {
  for (const v1::PeerReport& report : reports) {
    for (const v1::SourceArray& array : report.restore_share().arrays()) {
      if (array.source() >= sources.size()) {
        return absl::InternalError(absl::StrCat("an array of source ", array.source(), " of ", sources.size()));
      }
      if (sources[array.source()].here) continue;
      DMUON_ASSIGN_OR_RETURN(checkpoint::Entry entry, FromMessage(array));
      std::shared_ptr<ToldArrays>& of = told[array.source()];
      if (of == nullptr) of = std::make_shared<ToldArrays>();
      of->Add(std::move(entry));
    }
  }
  return absl::OkStatus();
}

}  // namespace

RestoreMeeting::RestoreMeeting(const RestoreSource* source, std::vector<std::string> nodes, uint32_t self,
                               size_t told_bytes)
    : source_(source), nodes_(std::move(nodes)), self_(self), told_bytes_(told_bytes) {}

absl::Status RestoreMeeting::Announce(v1::PeerReport& report) {
  absl::StatusOr<RestoreSource::Contents> contents = source_->Find();
  report.set_restore(contents.ok() ? contents->id : source_->name());
  if (contents.ok()) contents_ = *std::move(contents);
  if (!absl::IsNotFound(contents.status())) return contents.status();
  report.set_restore_unknown(true);
  report.set_message(std::string(contents.status().message()));
  return absl::OkStatus();
}

absl::StatusOr<RestoreSource::Contents> RestoreMeeting::AgreeOnContents(const Reports& reports, const Tell& tell) const {
  const auto unknown = [](const v1::PeerReport& report) { return report.restore_unknown(); };
  const auto first = std::find_if_not(reports.begin(), reports.end(), unknown);
  if (first == reports.end()) {
    return Failed(absl::StatusCode::kNotFound, absl::StrCat("node ", nodes_.front(), ": ", reports.front().message()));
  }
  if (std::none_of(reports.begin(), reports.end(), unknown)) return contents_;
  const auto knows = static_cast<uint32_t>(first - reports.begin());
  v1::RestoreShare share;
  if (knows == self_) share.set_contents(contents_.bytes);
  DMUON_ASSIGN_OR_RETURN(const Reports told, tell(absl::OkStatus(), share));
  return RestoreSource::Contents{first->restore(), told[knows].restore_share().contents()};
}

absl::StatusOr<RestoreMeeting::Sources> RestoreMeeting::Agree(const Reports& reports, const Tell& tell) {
  DMUON_ASSIGN_OR_RETURN(const RestoreSource::Contents contents, AgreeOnContents(reports, tell));
  absl::StatusOr<RestoreSource::Opened> opened = source_->Open(contents.bytes);
  v1::RestoreShare share;
  if (opened.ok()) {
    for (size_t i = 0; i < opened->sources.size(); ++i) {
      if (opened->sources[i].here) share.add_sources(static_cast<uint32_t>(i));
    }
  }
  DMUON_ASSIGN_OR_RETURN(const Reports held, tell(opened.status(), share));
  Sources met;
  met.id = contents.id;
  met.step = opened->step;
  met.sources = std::move(opened->sources);
  met.holders.resize(met.sources.size());
  for (uint32_t node = 0; node < held.size(); ++node) {
    for (const uint32_t source : held[node].restore_share().sources()) {
      if (source < met.holders.size()) met.holders[source].push_back(node);
    }
  }
  DMUON_RETURN_IF_ERROR(CheckHeld(met));
  DMUON_RETURN_IF_ERROR(ShareArrays(tell, met));
  // What is nowhere has no arrays.
  for (SavedSource& source : met.sources) {
    if (source.arrays == nullptr) source.arrays = std::make_shared<ToldArrays>();
  }
  return met;
}

absl::Status RestoreMeeting::CheckHeld(const Sources& met) const {
  for (size_t i = 0; i < met.sources.size(); ++i) {
    const SavedSource& source = met.sources[i];
    if (source.count == 0 || !met.holders[i].empty()) continue;
    return Failed(absl::StatusCode::kNotFound,
                  absl::StrCat("the state ", met.id, ": no node of the job has ", source.name, ", the part of ", source.origin,
                               "; make it readable on one of them"));
  }
  return absl::OkStatus();
}

absl::Status RestoreMeeting::ShareArrays(const Tell& tell, Sources& met) const {
  Teller mine(met.sources, told_bytes_);
  bool more = false;
  for (size_t i = 0; i < met.sources.size(); ++i) {
    if (!MustBeTold(met.sources[i], met.holders[i], nodes_.size())) continue;
    more = true;
    if (met.holders[i].front() == self_) mine.Add(i);
  }
  if (!more) return absl::OkStatus();
  absl::Status wrong;
  std::vector<std::shared_ptr<ToldArrays>> told(met.sources.size());
  while (more) {
    DMUON_ASSIGN_OR_RETURN(const Reports reports, tell(wrong, mine.Next()));
    wrong.Update(AddTold(reports, met.sources, told));
    more = std::any_of(reports.begin(), reports.end(),
                       [](const v1::PeerReport& report) { return report.restore_share().more(); });
  }
  for (size_t i = 0; i < told.size(); ++i) {
    if (met.sources[i].here || met.sources[i].count == 0) continue;
    const size_t count = told[i] == nullptr ? 0 : told[i]->entries().size();
    if (count != met.sources[i].count) {
      wrong.Update(absl::InternalError(absl::StrCat("node ", nodes_[met.holders[i].front()], " tells of ", count, " arrays of ",
                                                    met.sources[i].name, ", which has ", met.sources[i].count)));
    }
    met.sources[i].arrays = std::move(told[i]);
  }
  // Nobody goes on where another one cannot.
  return tell(wrong, {}).status();
}

}  // namespace dmuon::node
