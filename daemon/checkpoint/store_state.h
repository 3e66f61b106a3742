// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What a store knows beside what lies on disk. Of store.cc and store_parts.cc only.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "daemon/checkpoint/directory.h"
#include "daemon/checkpoint/files.h"
#include "daemon/checkpoint/manifest.h"
#include "daemon/checkpoint/store.h"
#include "wire/mutex.h"

namespace dmuon::checkpoint {

struct JobFolder {
  std::string job_id;
  std::string folder;
  Directory directory;

  // NOT_FOUND; DATA_LOSS, also for one of another job or name; FAILED_PRECONDITION for a newer format.
  [[nodiscard]] absl::StatusOr<Manifest> Read(const std::string& name) const;
};

// Files that are being written, or are parts of a checkpoint that is not committed yet. Thread-safe.
class BusyFiles {
 public:
  void Insert(const std::string& folder, const std::string& file);
  void Erase(const std::string& folder, const std::string& file);
  [[nodiscard]] bool Has(const std::string& folder, const std::string& file) const;

 private:
  mutable wire::Mutex mu_;  // leaf lock
  std::set<std::pair<std::string, std::string>> files_ ABSL_GUARDED_BY(mu_);
};

struct Store::State {
  State(std::shared_ptr<Files> from, Directory directory) : files(std::move(from)), root(std::move(directory)) {}

  // INVALID_ARGUMENT, NOT_FOUND, UNAVAILABLE.
  [[nodiscard]] absl::StatusOr<JobFolder> Open(const std::string& job_id) const;
  [[nodiscard]] absl::StatusOr<JobFolder> OpenOrMake(const std::string& job_id) const;

  // Under which node's name manifests are written, so that its Tidy finds them: the last one that wrote or tidied.
  void Remember(const std::string& folder, const std::string& node);
  [[nodiscard]] std::string NodeOf(const std::string& folder, const Manifest& manifest) const;

  const std::shared_ptr<Files> files;
  const Directory root;
  BusyFiles busy;
  wire::Mutex change_mu;  // orders Commit, Discard, Delete and Tidy; `busy` and `mu` are taken under it

  mutable wire::Mutex mu;  // leaf lock
  std::map<std::string, std::string> nodes ABSL_GUARDED_BY(mu);  // by folder
};

// A file that is busy while this lives, or for longer when it is kept.
class Busy {
 public:
  Busy(BusyFiles& files, std::string folder, std::string file)
      : files_(files), folder_(std::move(folder)), file_(std::move(file)) {
    files_.Insert(folder_, file_);
  }
  ~Busy() {
    if (!kept_) files_.Erase(folder_, file_);
  }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

  void Keep() { kept_ = true; }
  [[nodiscard]] const std::string& file() const { return file_; }

 private:
  BusyFiles& files_;
  const std::string folder_;
  const std::string file_;
  bool kept_ = false;
};

}  // namespace dmuon::checkpoint
