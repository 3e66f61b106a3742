// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/checkpoint/directory.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/log.h"
#include "daemon/checkpoint/json.h"
#include "wire/error.h"

namespace dmuon::checkpoint {
namespace {

template <typename Call>
auto RetryInterrupted(Call&& call) {
  auto result = call();
  while (result == -EINTR) result = call();
  return result;
}

std::string Text(int64_t error, absl::string_view what, absl::string_view path) {
  return absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(static_cast<int>(-error)));
}

absl::Status Missing(absl::string_view path) {
  return wire::Error(absl::StatusCode::kNotFound, v1::ERROR_REASON_CHECKPOINT, absl::StrCat(path, " is not there"));
}

absl::Status ReadError(int64_t error, absl::string_view path) {
  return error == -ENOENT ? Missing(path) : Damaged(Text(error, "read", path));
}

}  // namespace

absl::Status WriteError(int64_t error, absl::string_view what, absl::string_view path) {
  const bool full = error == -ENOSPC || error == -EDQUOT || error == -EFBIG;
  return wire::Error(full ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kUnavailable,
                     v1::ERROR_REASON_CHECKPOINT, Text(error, what, path));
}

int ReadFully(File& file, std::span<std::byte> to, uint64_t offset) {
  while (!to.empty()) {
    const int64_t count = RetryInterrupted([&] { return file.Read(to, offset); });
    if (count < 0) return static_cast<int>(count);
    if (count == 0) return -ENODATA;
    to = to.subspan(static_cast<size_t>(count));
    offset += static_cast<uint64_t>(count);
  }
  return 0;
}

Directory::Directory(std::unique_ptr<Folder> folder, std::string path) : folder_(std::move(folder)), path_(std::move(path)) {}

absl::StatusOr<Directory> Directory::OpenRoot(Files& files, const std::string& path) {
  std::unique_ptr<Folder> folder;
  const int error = RetryInterrupted([&] { return files.OpenRoot(path, folder); });
  if (error != 0) return WriteError(error, "open", path);
  return Directory(std::move(folder), path);
}

absl::StatusOr<Directory> Directory::Open(const std::string& name) const {
  std::unique_ptr<Folder> folder;
  const int error = RetryInterrupted([&] { return folder_->OpenFolder(name, folder); });
  if (error == -ENOENT) return Missing(PathOf(name));
  if (error != 0) return WriteError(error, "open", PathOf(name));
  return Directory(std::move(folder), PathOf(name));
}

absl::StatusOr<Directory> Directory::OpenOrMake(const std::string& name) const {
  const int error = RetryInterrupted([&] { return folder_->MakeFolder(name); });
  if (error != 0 && error != -EEXIST) return WriteError(error, "make", PathOf(name));
  // One that was there, too: whoever made it, an earlier process or another node, may not have come to this.
  DMUON_RETURN_IF_ERROR(Sync());
  return Open(name);
}

absl::StatusOr<std::vector<std::string>> Directory::List() const {
  std::vector<std::string> names;
  const int error = RetryInterrupted([&] { return folder_->List(names); });
  if (error != 0) return WriteError(error, "list", path_);
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<std::unique_ptr<File>> Directory::OpenFile(const std::string& name) const {
  std::unique_ptr<File> file;
  const int error = RetryInterrupted([&] { return folder_->OpenFile(name, file); });
  if (error != 0) return ReadError(error, PathOf(name));
  return file;
}

absl::StatusOr<std::string> Directory::Read(const std::string& name, uint64_t most) const {
  DMUON_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, OpenFile(name));
  const int64_t bytes = RetryInterrupted([&] { return file->Bytes(); });
  if (bytes < 0) return ReadError(bytes, PathOf(name));
  if (static_cast<uint64_t>(bytes) > most) {
    return Damaged(absl::StrCat(PathOf(name), " has ", bytes, " bytes, allowed are ", most));
  }
  std::string content(static_cast<size_t>(bytes), '\0');
  const int error = ReadFully(*file, std::as_writable_bytes(std::span(content)), 0);
  if (error != 0) return Damaged(Text(error, "read", PathOf(name)));
  return content;
}

absl::StatusOr<int64_t> Directory::ChangedAt(const std::string& name) const {
  DMUON_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, OpenFile(name));
  const int64_t time = RetryInterrupted([&] { return file->ChangedAt(); });
  if (time < 0) return ReadError(time, PathOf(name));
  return time;
}

absl::Status Directory::Remove(const std::string& name) const {
  const int error = RetryInterrupted([&] { return folder_->Remove(name); });
  return error == 0 || error == -ENOENT ? absl::OkStatus() : WriteError(error, "remove", PathOf(name));
}

absl::Status Directory::Sync() const {
  const int error = folder_->Sync();
  return error == 0 ? absl::OkStatus() : WriteError(error, "sync", path_);
}

absl::StatusOr<uint64_t> Directory::FreeBytes() const {
  const int64_t bytes = RetryInterrupted([&] { return folder_->FreeBytes(); });
  if (bytes < 0) return WriteError(bytes, "ask for the room of", path_);
  return static_cast<uint64_t>(bytes);
}

std::string Directory::PathOf(absl::string_view name) const { return absl::StrCat(path_, "/", name); }

Draft::Draft(const Directory& directory, std::string name, std::unique_ptr<File> file)
    : directory_(&directory), name_(std::move(name)), file_(std::move(file)) {}

Draft::Draft(Draft&& other) noexcept
    : directory_(std::exchange(other.directory_, nullptr)),
      name_(std::move(other.name_)),
      file_(std::move(other.file_)),
      renamed_(other.renamed_) {}

Draft::~Draft() {
  if (directory_ == nullptr || renamed_) return;
  file_.reset();
  if (const absl::Status removed = directory_->Remove(name_); !removed.ok()) LogWarning(removed.message());
}

absl::StatusOr<Draft> Draft::Create(const Directory& directory, const std::string& name) {
  std::unique_ptr<File> file;
  const int error = RetryInterrupted([&] { return directory.folder_->CreateFile(name, file); });
  if (error != 0) return WriteError(error, "create", directory.PathOf(name));
  return Draft(directory, name, std::move(file));
}

absl::Status Draft::Write(std::span<const std::byte> bytes, uint64_t offset) {
  while (!bytes.empty()) {
    int64_t count = RetryInterrupted([&] { return file_->Write(bytes, offset); });
    if (count == 0) count = -EIO;  // or it would be tried for ever
    if (count < 0) return WriteError(count, "write", directory_->PathOf(name_));
    bytes = bytes.subspan(static_cast<size_t>(count));
    offset += static_cast<uint64_t>(count);
  }
  return absl::OkStatus();
}

absl::Status Draft::Publish(const std::string& name) {
  if (const int error = file_->Sync(); error != 0) return WriteError(error, "sync", directory_->PathOf(name_));
  file_.reset();
  const int error = RetryInterrupted([&] { return directory_->folder_->Rename(name_, name); });
  if (error != 0) return WriteError(error, "rename", directory_->PathOf(name_));
  renamed_ = true;
  return directory_->Sync();
}

}  // namespace dmuon::checkpoint
