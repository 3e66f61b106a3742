// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A directory with words for its errors, and files that are either whole or not there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/checkpoint/files.h"

namespace dmuon::checkpoint {

// Of an error of a file that is written: RESOURCE_EXHAUSTED for a full disk, UNAVAILABLE otherwise.
absl::Status WriteError(int64_t error, absl::string_view what, absl::string_view path);

// Fills `to`, in as many reads as it takes. 0, or a negative errno; -ENODATA when the file ends before.
int ReadFully(File& file, std::span<std::byte> to, uint64_t offset);

// Errors name the path. Constant after construction; any number of threads.
class Directory {
 public:
  // UNAVAILABLE.
  static absl::StatusOr<Directory> OpenRoot(Files& files, const std::string& path);

  // NOT_FOUND, UNAVAILABLE.
  [[nodiscard]] absl::StatusOr<Directory> Open(const std::string& name) const;
  // Makes it where it is missing, durably.
  [[nodiscard]] absl::StatusOr<Directory> OpenOrMake(const std::string& name) const;

  // Sorted.
  [[nodiscard]] absl::StatusOr<std::vector<std::string>> List() const;
  // NOT_FOUND; DATA_LOSS for what cannot be read, or is no regular file.
  [[nodiscard]] absl::StatusOr<std::unique_ptr<File>> OpenFile(const std::string& name) const;
  // The same, and DATA_LOSS for more than `most` bytes.
  [[nodiscard]] absl::StatusOr<std::string> Read(const std::string& name, uint64_t most) const;
  // Nanoseconds since 1970. As OpenFile.
  [[nodiscard]] absl::StatusOr<int64_t> ChangedAt(const std::string& name) const;
  // One that is missing is no error.
  [[nodiscard]] absl::Status Remove(const std::string& name) const;
  // Makes durable what was made, renamed and removed.
  [[nodiscard]] absl::Status Sync() const;
  [[nodiscard]] absl::StatusOr<uint64_t> FreeBytes() const;

  [[nodiscard]] std::string PathOf(absl::string_view name) const;

 private:
  friend class Draft;
  Directory(std::unique_ptr<Folder> folder, std::string path);

  std::unique_ptr<Folder> folder_;
  std::string path_;
};

// A file that is being written, under a name of its own. Removed by its destructor unless it was published.
class Draft {
 public:
  // `directory` outlives it. UNAVAILABLE, RESOURCE_EXHAUSTED.
  static absl::StatusOr<Draft> Create(const Directory& directory, const std::string& name);
  Draft(Draft&& other) noexcept;
  Draft& operator=(Draft&&) = delete;
  ~Draft();

  // All of it, in as many writes as it takes.
  absl::Status Write(std::span<const std::byte> bytes, uint64_t offset);
  // Syncs it, gives it its name, replacing a file that has it, and syncs the directory. After an error the name may
  // be taken (`renamed`): then whether it still is after a crash, nobody knows. A sync that failed is not tried again,
  // since the kernel may have dropped what it could not write.
  absl::Status Publish(const std::string& name);
  [[nodiscard]] bool renamed() const { return renamed_; }

 private:
  Draft(const Directory& directory, std::string name, std::unique_ptr<File> file);

  const Directory* directory_;  // nullptr: moved from
  std::string name_;
  std::unique_ptr<File> file_;
  bool renamed_ = false;
};

}  // namespace dmuon::checkpoint
