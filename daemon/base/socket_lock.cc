// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/base/socket_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "wire/address.h"
#include "wire/error.h"

namespace dmuon {
namespace {

// Text of the lock file; empty when there is none.
std::string ReadHolder(int fd) {
  std::array<char, 32> text{};
  const ssize_t size = ::pread(fd, text.data(), text.size(), 0);
  if (size <= 0) return "";
  return std::string(absl::StripAsciiWhitespace(
      absl::string_view(text.data(), static_cast<size_t>(size))));
}

absl::Status RemoveStaleSocket(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? absl::OkStatus()
                           : absl::ErrnoToStatus(errno, absl::StrCat("look at ", path));
  }
  if (!S_ISSOCK(info.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " exists and is not a socket; it stays untouched"));
  }
  if (::unlink(path.c_str()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("remove stale socket ", path));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SocketLock> SocketLock::Acquire(const std::string& path) {
  DMUON_RETURN_IF_ERROR(wire::PrepareSocketDirectory(path));
  const std::string lock_path = absl::StrCat(path, ".lock");
  wire::ScopedFd fd(
      ::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, absl::StrCat("open ", lock_path));
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return absl::ErrnoToStatus(errno, absl::StrCat("lock ", lock_path));
    const std::string holder = ReadHolder(fd.get());
    return absl::FailedPreconditionError(absl::StrCat(
        "socket ", path, " is in use", holder.empty() ? "" : absl::StrCat(" by process ", holder)));
  }
  const std::string pid = absl::StrCat(::getpid(), "\n");
  if (::ftruncate(fd.get(), 0) != 0 ||
      ::pwrite(fd.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    return absl::ErrnoToStatus(errno, absl::StrCat("write ", lock_path));
  }
  DMUON_RETURN_IF_ERROR(RemoveStaleSocket(path));
  return SocketLock(std::move(fd));
}

}  // namespace dmuon
