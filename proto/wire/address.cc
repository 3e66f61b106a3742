// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "wire/address.h"

#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace dmuon::wire {
namespace {

// The arena channel listens at the path with ".arena" appended.
constexpr size_t kLongestSuffix = 6;
constexpr size_t kMaxSocketPath = sizeof(sockaddr_un::sun_path) - 1 - kLongestSuffix;

std::string FromEnvironment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::string DefaultAddress() {
  if (std::string address = FromEnvironment("DMUON_ADDRESS"); !address.empty()) return address;
  if (const std::string dir = FromEnvironment("XDG_RUNTIME_DIR"); !dir.empty()) {
    return absl::StrCat("unix:", dir, "/dmuon/dmuond.sock");
  }
  if (::geteuid() == 0) return "unix:/run/dmuon/dmuond.sock";
  return absl::StrCat("unix:/tmp/dmuon-", ::geteuid(), "/dmuond.sock");
}

std::optional<std::string> UnixPath(std::string_view address) {
  if (address.substr(0, kUnixPrefix.size()) != kUnixPrefix) return std::nullopt;
  address.remove_prefix(kUnixPrefix.size());
  if (address.substr(0, 3) == "///") address.remove_prefix(2);
  return std::string(address);
}

absl::Status PrepareSocketDirectory(const std::string& path) {
  if (path.empty() || path.size() > kMaxSocketPath) {
    return absl::InvalidArgumentError(absl::StrCat("socket path \"", path, "\" has ", path.size(),
                                                   " bytes; 1..", kMaxSocketPath, " are possible"));
  }
  const size_t slash = path.rfind('/');
  const std::string directory =
      slash == std::string::npos ? "." : (slash == 0 ? "/" : path.substr(0, slash));
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::ErrnoToStatus(errno, absl::StrCat("make socket directory ", directory));
  }
  struct stat info {};
  if (::stat(directory.c_str(), &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("look at socket directory ", directory));
  }
  if (!S_ISDIR(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(directory, " is not a directory"));
  }
  if (info.st_uid != ::geteuid() && info.st_uid != 0) {
    return absl::PermissionDeniedError(absl::StrCat("socket directory ", directory,
                                                    " belongs to user ", info.st_uid,
                                                    ", neither to user ", ::geteuid(), " nor root"));
  }
  return absl::OkStatus();
}

}  // namespace dmuon::wire
