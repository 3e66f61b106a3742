// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/base/replace_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "wire/error.h"
#include "wire/scoped_fd.h"

namespace dmuon {
namespace {

absl::Status SystemError(absl::string_view what, const std::string& path) {
  return absl::UnavailableError(absl::StrCat(what, " ", path, ": ", std::strerror(errno)));
}

absl::Status WriteAndSync(const std::string& path, const std::string& content) {
  const wire::ScopedFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (fd.get() < 0) return SystemError("cannot create", path);
  const ssize_t written = write(fd.get(), content.data(), content.size());
  if (written < 0) return SystemError("cannot write", path);
  if (static_cast<size_t>(written) != content.size()) {
    return absl::UnavailableError(
        absl::StrCat("cannot write ", path, ": ", written, " of ", content.size(), " bytes fitted"));
  }
  if (fsync(fd.get()) != 0) return SystemError("cannot sync", path);
  return absl::OkStatus();
}

absl::Status SyncDirectory(const std::string& path) {
  const wire::ScopedFd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0 || fsync(fd.get()) != 0) return SystemError("cannot sync", path);
  return absl::OkStatus();
}

}  // namespace

absl::Status ReplaceFile(const std::string& directory, const std::string& name, const std::string& content) {
  const std::string path = absl::StrCat(directory, "/", name);
  // Of this process, so that another one that replaces the same file does not write into it.
  const std::string temporary = absl::StrCat(path, ".", getpid(), ".tmp");
  absl::Status status = WriteAndSync(temporary, content);
  if (status.ok() && rename(temporary.c_str(), path.c_str()) != 0) {
    status = SystemError("cannot rename", temporary);
  }
  if (!status.ok()) {
    unlink(temporary.c_str());
    return status;
  }
  return SyncDirectory(directory);
}

}  // namespace dmuon
