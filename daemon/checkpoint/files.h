// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Everything that a store does to a disk. Each function is one call of the system: it answers 0 or a count, or a
// negative errno, and retries nothing, so that whoever stands in for a disk can give any answer that a disk can.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "wire/scoped_fd.h"

namespace dmuon::checkpoint {

// An open file. Closed by its destructor.
class File {
 public:
  virtual ~File() = default;
  // Bytes read; fewer than asked for at any time, 0 at the end.
  virtual int64_t Read(std::span<std::byte> to, uint64_t offset) = 0;
  // Bytes written; fewer than asked for at any time.
  virtual int64_t Write(std::span<const std::byte> from, uint64_t offset) = 0;
  virtual int64_t Bytes() = 0;
  // Nanoseconds since 1970 of the last change of its content.
  virtual int64_t ChangedAt() = 0;
  virtual int Sync() = 0;
};

// An open directory. Names are single components: neither empty, nor "." or "..", nor with a '/'; -EINVAL for others.
// Links are never followed (-ELOOP).
class Folder {
 public:
  virtual ~Folder() = default;
  virtual int OpenFolder(const std::string& name, std::unique_ptr<Folder>& folder) = 0;
  // For this user only.
  virtual int MakeFolder(const std::string& name) = 0;
  // To read. -EINVAL for what is no regular file.
  virtual int OpenFile(const std::string& name, std::unique_ptr<File>& file) = 0;
  // To write; readable by this user only. -EEXIST.
  virtual int CreateFile(const std::string& name, std::unique_ptr<File>& file) = 0;
  // Replaces a file called `to`.
  virtual int Rename(const std::string& from, const std::string& to) = 0;
  virtual int Remove(const std::string& name) = 0;
  // Without "." and "..", in no order.
  virtual int List(std::vector<std::string>& names) = 0;
  // Of names: what was made, renamed and removed.
  virtual int Sync() = 0;
  // What this user may still write to its file system.
  virtual int64_t FreeBytes() = 0;
};

class Files {
 public:
  virtual ~Files() = default;
  // Makes the directory and those above it where they are missing.
  virtual int OpenRoot(const std::string& path, std::unique_ptr<Folder>& root) = 0;
};

// What this descriptor is open for.
std::unique_ptr<File> FileOf(wire::ScopedFd fd);

// The machine's, by openat2: Linux 5.6 or later.
std::shared_ptr<Files> DiskFiles();

}  // namespace dmuon::checkpoint
