// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include "daemon/coordinator/generation_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "daemon/base/replace_file.h"
#include "wire/error.h"
#include "wire/scoped_fd.h"

namespace dmuon::coordinator {
namespace {

absl::Status SystemError(absl::string_view what, const std::string& path) {
  return absl::UnavailableError(absl::StrCat(what, " ", path, ": ", std::strerror(errno)));
}

absl::StatusOr<uint64_t> ReadNumber(const std::string& path) {
  const wire::ScopedFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) {
    if (errno == ENOENT) return 0;
    return SystemError("cannot open", path);
  }
  std::array<char, 64> buffer{};
  const ssize_t bytes = read(fd.get(), buffer.data(), buffer.size());
  if (bytes < 0) return SystemError("cannot read", path);
  const absl::string_view content(buffer.data(), static_cast<size_t>(bytes));
  uint64_t number = 0;
  // The line break proves that the number is whole.
  if (content.empty() || content.back() != '\n' ||
      !absl::SimpleAtoi(content.substr(0, content.size() - 1), &number)) {
    return absl::DataLossError(absl::StrCat(
        path, " holds '", content, "', not a generation; write a number into it that is not below "
        "any generation ever given out"));
  }
  return number;
}

}  // namespace

absl::StatusOr<GenerationStore> GenerationStore::Open(const std::string& directory) {
  GenerationStore store;
  store.directory_ = directory;
  if (mkdir(directory.c_str(), S_IRWXU) != 0 && errno != EEXIST) {
    return SystemError("cannot make", directory);
  }
  const std::string lock = directory + "/generation.lock";
  store.lock_ =
      wire::ScopedFd(open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (store.lock_.get() < 0) return SystemError("cannot open", lock);
  if (flock(store.lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("another coordinator uses ", directory, " (it holds ", lock, ")"));
  }
  DMUON_ASSIGN_OR_RETURN(store.highest_, ReadNumber(directory + "/generation"));
  return store;
}

absl::Status GenerationStore::Reserve(uint64_t generation) {
  if (generation <= highest_) return absl::OkStatus();
  if (!directory_.empty()) {
    DMUON_RETURN_IF_ERROR(ReplaceFile(directory_, "generation", absl::StrCat(generation, "\n")));
  }
  highest_ = generation;
  return absl::OkStatus();
}

}  // namespace dmuon::coordinator
