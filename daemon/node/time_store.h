// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Measured times, kept in a file for the next process on the same kind of machine.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dmuon/v1/timing.pb.h"

namespace dmuon::node {

class TimeStore {
 public:
  // `owner`: a UnitTimes without times, which says whose they are. Reads the owner's file in `directory`; one
  // that is damaged, or of another owner, counts as none. An empty `directory` keeps nothing on disk.
  TimeStore(const std::string& directory, v1::UnitTimes owner);

  // nullptr when it was not measured.
  [[nodiscard]] const v1::UnitTime* Find(const std::string& key) const;
  // Replaces one of the same key.
  void Put(v1::UnitTime time);
  // Makes the directory, for this user only, and replaces the file as a whole. UNAVAILABLE naming the path.
  [[nodiscard]] absl::Status Save() const;

  // With all times, sorted.
  [[nodiscard]] v1::UnitTimes All() const;
  // Of the file; empty when there is none.
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  void Load();

  const v1::UnitTimes owner_;
  std::string path_;
  std::map<std::string, v1::UnitTime> times_;  // by plan::KeyOf
};

}  // namespace dmuon::node
