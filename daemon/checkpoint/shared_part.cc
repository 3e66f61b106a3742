// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/checkpoint/shared_part.h"

#include <fcntl.h>

#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/sha256.h"
#include "daemon/checkpoint/files.h"
#include "wire/error.h"

namespace dmuon::checkpoint {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

}  // namespace

absl::StatusOr<Image> CreateSharedImage(Head head, std::vector<Entry> entries) {
  DMUON_ASSIGN_OR_RETURN(const uint64_t head_bytes, PartHeadBytes(std::move(head), entries));
  return Image::CreateShared(std::move(entries), head_bytes);
}

absl::StatusOr<SharedPart> SealPart(Head head, Image image) {
  head.entries = image.entries();
  for (size_t i = 0; i < head.entries.size(); ++i) {
    Sha256 hash;
    hash.Update(std::as_bytes(image.values(i)));
    head.sha256.push_back(hash.Hex());
  }
  DMUON_ASSIGN_OR_RETURN(const std::string made, MakeHead(head));
  SharedPart part;
  part.bytes = made.size() + image.data().size();
  DMUON_ASSIGN_OR_RETURN(part.fd, std::move(image).Seal(made));
  return part;
}

absl::StatusOr<std::unique_ptr<DiskPart>> OpenReceived(wire::ScopedFd fd, uint64_t max_bytes, absl::string_view sha256) {
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0) return wire::InvalidField(absl::StrCat(kReceived, " is in no memfd"));
  if ((seals & kSeals) != kSeals) {
    return wire::InvalidField(absl::StrCat(kReceived, " is in a memfd that is not sealed against shrinking, growing and writing"));
  }
  std::unique_ptr<File> file = FileOf(std::move(fd));
  const int64_t bytes = file->Bytes();
  if (bytes < 0 || static_cast<uint64_t>(bytes) > max_bytes) {
    return wire::InvalidField(absl::StrCat(kReceived, " has ", bytes, " bytes, allowed are ", max_bytes));
  }
  // Read by pread, not mapped: reading a hole of a mapped memfd would allocate it.
  return DiskPart::OpenAlone(std::move(file), kReceived, sha256);
}

}  // namespace dmuon::checkpoint
