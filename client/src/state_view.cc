// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "client/src/state_view.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace dmuon::client {

absl::StatusOr<StateView> StateView::Map(wire::ScopedFd fd) {
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  struct stat info {};
  if (seals < 0 || (seals & kSeals) != kSeals || ::fstat(fd.get(), &info) != 0 || info.st_size == 0) {
    return absl::FailedPreconditionError("the daemon gave a state that is in no sealed memfd");
  }
  const auto bytes = static_cast<size_t>(info.st_size);
  void* base = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (base == MAP_FAILED) return absl::ResourceExhaustedError(absl::StrCat("mmap of ", bytes, " bytes: ", std::strerror(errno)));
  return StateView({static_cast<const std::byte*>(base), bytes});
}

StateView::~StateView() {
  if (mapped()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace dmuon::client
