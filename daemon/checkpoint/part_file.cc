// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/checkpoint/part_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/failpoint.h"
#include "daemon/base/sha256.h"
#include "daemon/checkpoint/json.h"
#include "wire/error.h"

namespace dmuon::checkpoint {
namespace {

// Large enough that calls cost nothing, small enough that it is still in the cache when it is written after hashing.
constexpr size_t kChunk = size_t{1} << 20;

absl::Status GivenUp(const std::string& what) {
  return wire::Error(absl::StatusCode::kCancelled, v1::ERROR_REASON_CHECKPOINT, absl::StrCat(what, " was given up"));
}

std::string HashOf(absl::string_view bytes) {
  Sha256 hash;
  hash.Update(std::as_bytes(std::span(bytes)));
  return hash.Hex();
}

// As long as the head will be.
absl::StatusOr<std::string> DraftHead(Head& head, std::vector<Entry> entries) {
  head.entries = std::move(entries);
  head.sha256.assign(head.entries.size(), std::string(64, '0'));
  return MakeHead(head);
}

absl::Status CheckHead(const Head& head, const Manifest& manifest, const Part& part) {
  const struct {
    absl::string_view what;
    std::string is;
    std::string wanted;
  } fields[] = {
      {"job", head.job_id, manifest.job_id},
      {"name", head.name, manifest.name},
      {"step", absl::StrCat(head.step), absl::StrCat(manifest.step)},
      {"generation", absl::StrCat(head.generation), absl::StrCat(manifest.generation)},
      {"node", head.node, part.node},
      {"dmuon_version", head.version, manifest.version},
      {"number of arrays", absl::StrCat(head.entries.size()), absl::StrCat(part.entries)},
  };
  for (const auto& field : fields) {
    if (field.is == field.wanted) continue;
    return Damaged(absl::StrCat("its ", field.what, " is ", field.is, ", its manifest says ", field.wanted));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> FileBytes(File& file) {
  int64_t size = file.Bytes();
  while (size == -EINTR) size = file.Bytes();
  if (size < 0) return Damaged(absl::StrCat("cannot be read: ", std::strerror(static_cast<int>(-size))));
  return static_cast<uint64_t>(size);
}

// All bytes of the head.
absl::StatusOr<std::string> ReadHeadText(File& file, uint64_t file_bytes) {
  if (file_bytes < kLengthBytes) return Damaged(absl::StrCat("has ", file_bytes, " bytes and no head"));
  std::array<std::byte, kLengthBytes> length{};
  int error = ReadFully(file, length, 0);
  if (error != 0) return Damaged(absl::StrCat("cannot be read: ", std::strerror(-error)));
  DMUON_ASSIGN_OR_RETURN(const uint64_t bytes, HeadBytes(length, file_bytes));
  std::string text(bytes, '\0');
  error = ReadFully(file, std::as_writable_bytes(std::span(text)), 0);
  if (error != 0) return Damaged(absl::StrCat("cannot be read: ", std::strerror(-error)));
  return text;
}

struct ProvedHead {
  Head head;
  uint64_t bytes = 0;
};

absl::StatusOr<ProvedHead> ReadHead(File& file, absl::string_view sha256) {
  DMUON_ASSIGN_OR_RETURN(const uint64_t file_bytes, FileBytes(file));
  DMUON_ASSIGN_OR_RETURN(const std::string text, ReadHeadText(file, file_bytes));
  if (HashOf(text) != sha256) return Damaged("its head is not the one that was saved");
  DMUON_ASSIGN_OR_RETURN(Head head, ParseHead(text, file_bytes));
  return ProvedHead{std::move(head), text.size()};
}

absl::StatusOr<ProvedHead> ReadHead(File& file, const Manifest& manifest, const Part& part) {
  DMUON_ASSIGN_OR_RETURN(const uint64_t file_bytes, FileBytes(file));
  if (file_bytes != part.bytes) {
    return Damaged(absl::StrCat("has ", file_bytes, " bytes, its manifest says ", part.bytes));
  }
  DMUON_ASSIGN_OR_RETURN(ProvedHead proved, ReadHead(file, part.header_sha256));
  DMUON_RETURN_IF_ERROR(CheckHead(proved.head, manifest, part));
  return proved;
}

}  // namespace

absl::StatusOr<uint64_t> PartFileBytes(Head head, const Image& image) {
  DMUON_ASSIGN_OR_RETURN(const std::string made, DraftHead(head, image.entries()));
  return made.size() + image.data().size();
}

absl::StatusOr<uint64_t> PartHeadBytes(Head head, std::vector<Entry> entries) {
  DMUON_ASSIGN_OR_RETURN(const std::string made, DraftHead(head, std::move(entries)));
  return made.size();
}

absl::StatusOr<Part> WritePartFile(Head head, const Image& image, const Progress& progress, Draft& draft) {
  DMUON_ASSIGN_OR_RETURN(std::string made, DraftHead(head, image.entries()));
  const uint64_t total = made.size() + image.data().size();
  uint64_t at = made.size();
  const auto go_on = [&] { return !progress || progress(at, total); };
  for (size_t i = 0; i < head.entries.size(); ++i) {
    std::span<const std::byte> values = std::as_bytes(image.values(i));
    Sha256 hash;
    while (!values.empty()) {
      if (!go_on()) return GivenUp(absl::StrCat("writing checkpoint ", head.name, " of job ", head.job_id));
      const std::span<const std::byte> chunk = values.first(std::min(kChunk, values.size()));
      hash.Update(chunk);
      DMUON_RETURN_IF_ERROR(draft.Write(chunk, at));
      AtFailpoint(Failpoint::kSaveWriting);
      at += chunk.size();
      values = values.subspan(chunk.size());
    }
    head.sha256[i] = hash.Hex();
  }
  DMUON_ASSIGN_OR_RETURN(made, MakeHead(head));
  DMUON_RETURN_IF_ERROR(draft.Write(std::as_bytes(std::span(made)), 0));
  if (!go_on()) return GivenUp(absl::StrCat("writing checkpoint ", head.name, " of job ", head.job_id));
  return Part{head.node, "", total, head.entries.size(), HashOf(made)};
}

DiskPart::DiskPart(std::unique_ptr<File> file, std::string path, Head head, uint64_t head_bytes)
    : file_(std::move(file)), path_(std::move(path)), head_(std::move(head)) {
  for (const Entry& entry : head_.entries) {
    offsets_.push_back(head_bytes);
    head_bytes += entry.elements() * sizeof(float);
  }
}

absl::StatusOr<std::unique_ptr<DiskPart>> DiskPart::Open(const Directory& directory, const Manifest& manifest,
                                                         const Part& part) {
  absl::StatusOr<std::unique_ptr<File>> file = directory.OpenFile(part.file);
  if (absl::IsNotFound(file.status())) return Prefixed(absl::StrCat("the part of node ", part.node), file.status());
  if (!file.ok()) return file.status();
  const std::string path = directory.PathOf(part.file);
  absl::StatusOr<ProvedHead> proved = ReadHead(**file, manifest, part);
  if (!proved.ok()) return Prefixed(path, proved.status());
  return std::unique_ptr<DiskPart>(new DiskPart(*std::move(file), path, std::move(proved->head), proved->bytes));
}

absl::StatusOr<std::unique_ptr<DiskPart>> DiskPart::OpenAlone(std::unique_ptr<File> file, std::string name,
                                                              absl::string_view sha256) {
  absl::StatusOr<ProvedHead> proved = ReadHead(*file, sha256);
  if (!proved.ok()) return Prefixed(name, proved.status());
  return std::unique_ptr<DiskPart>(new DiskPart(std::move(file), std::move(name), std::move(proved->head), proved->bytes));
}

absl::Status DiskPart::ReadChunk(size_t i, std::span<std::byte> to, uint64_t offset) const {
  const int error = ReadFully(*file_, to, offsets_[i] + offset);
  if (error == 0) return absl::OkStatus();
  return Damaged(absl::StrCat(path_, ": ", head_.entries[i].Key(), " cannot be read: ", std::strerror(-error)));
}

absl::Status DiskPart::Compare(size_t i, const std::string& sha256) const {
  if (sha256 == head_.sha256[i]) return absl::OkStatus();
  return Damaged(absl::StrCat(path_, ": the values of ", head_.entries[i].Key(), " are not those that were saved"));
}

absl::Status DiskPart::Read(size_t i, std::span<float> to) const {
  const std::span<std::byte> bytes = std::as_writable_bytes(to);
  if (to.size() != head_.entries[i].elements()) {
    return wire::InvalidField(absl::StrCat(head_.entries[i].Key(), " has ", head_.entries[i].elements(), " values, asked for are ",
                                           to.size()));
  }
  Sha256 hash;
  for (size_t at = 0; at < bytes.size(); at += kChunk) {
    const std::span<std::byte> chunk = bytes.subspan(at, std::min(kChunk, bytes.size() - at));
    DMUON_RETURN_IF_ERROR(ReadChunk(i, chunk, at));
    hash.Update(chunk);
  }
  return Compare(i, hash.Hex());
}

absl::Status DiskPart::Check(size_t i, const std::function<bool(uint64_t bytes)>& chunk) const {
  const uint64_t bytes = head_.entries[i].elements() * sizeof(float);
  std::vector<std::byte> buffer(std::min<uint64_t>(kChunk, bytes));
  Sha256 hash;
  for (uint64_t at = 0; at < bytes; at += kChunk) {
    const std::span<std::byte> piece = std::span(buffer).first(std::min<uint64_t>(kChunk, bytes - at));
    DMUON_RETURN_IF_ERROR(ReadChunk(i, piece, at));
    hash.Update(piece);
    if (!chunk(piece.size())) return GivenUp("checking " + path_);
  }
  return Compare(i, hash.Hex());
}

}  // namespace dmuon::checkpoint
