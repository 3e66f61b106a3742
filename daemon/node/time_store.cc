// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/time_store.h"

#include <google/protobuf/util/json_util.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/log.h"
#include "daemon/base/replace_file.h"
#include "daemon/base/sha256.h"
#include "daemon/plan/timings.h"

namespace dmuon::node {
namespace {

// Same program, same machine, same slots.
bool SameOwner(const v1::UnitTimes& a, const v1::UnitTimes& b) {
  return a.version() == b.version() && a.backend() == b.backend() && a.device() == b.device() &&
         a.slots() == b.slots() && a.threads_per_slot() == b.threads_per_slot();
}

}  // namespace

TimeStore::TimeStore(const std::string& directory, v1::UnitTimes owner) : owner_(std::move(owner)) {
  if (directory.empty()) return;
  const std::string digest = Sha256Hex(std::array{owner_.SerializeAsString()});
  path_ = absl::StrCat(directory, "/times-", digest.substr(0, 16), ".json");
  Load();
}

void TimeStore::Load() {
  std::ifstream file(path_);
  if (!file) return;
  std::stringstream text;
  text << file.rdbuf();
  v1::UnitTimes stored;
  const auto parsed = google::protobuf::util::JsonStringToMessage(text.str(), &stored);
  const std::vector<v1::UnitTime> times(stored.times().begin(), stored.times().end());
  if (!parsed.ok() || !SameOwner(stored, owner_) || !plan::ValidateTimes(times).ok()) {
    LogWarning("measured times in ", path_, " are damaged or of another machine; they will be measured anew");
    return;
  }
  for (const v1::UnitTime& time : times) Put(time);
}

const v1::UnitTime* TimeStore::Find(const std::string& key) const {
  const auto time = times_.find(key);
  return time == times_.end() ? nullptr : &time->second;
}

void TimeStore::Put(v1::UnitTime time) { times_[plan::KeyOf(time)] = std::move(time); }

v1::UnitTimes TimeStore::All() const {
  v1::UnitTimes all = owner_;
  for (const auto& [key, time] : times_) *all.add_times() = time;
  return all;
}

absl::Status TimeStore::Save() const {
  if (path_.empty()) return absl::OkStatus();
  const std::filesystem::path path(path_);
  std::error_code error;
  if (std::filesystem::create_directories(path.parent_path(), error)) {
    std::filesystem::permissions(path.parent_path(), std::filesystem::perms::owner_all, error);
  }
  if (error) return absl::UnavailableError(absl::StrCat("cannot make ", path.parent_path().string(), ": ", error.message()));
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.add_whitespace = true;
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(All(), &text, options).ok()) {
    return absl::InternalError("measured times have no JSON form");
  }
  return ReplaceFile(path.parent_path(), path.filename(), text);
}

}  // namespace dmuon::node
