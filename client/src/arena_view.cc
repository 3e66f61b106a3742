// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "client/src/arena_view.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace dmuon::client {

ArenaView::~ArenaView() {
  if (base_ != nullptr) ::munmap(base_, bytes_);
}

absl::Status ArenaView::Show(int fd, uint64_t bytes) {
  if (base_ != nullptr && bytes != bytes_) {
    return absl::InvalidArgumentError(
        absl::StrCat("new arena has ", bytes, " bytes, the one before had ", bytes_));
  }
  // MAP_FIXED replaces our own mapping only: the range was ours since the first call.
  const int flags = MAP_SHARED | (base_ != nullptr ? MAP_FIXED : 0);
  void* at = ::mmap(base_, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (at == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot map an arena of ", bytes, " bytes: ", std::strerror(errno)));
  }
  base_ = static_cast<std::byte*>(at);
  bytes_ = bytes;
  return absl::OkStatus();
}

}  // namespace dmuon::client
