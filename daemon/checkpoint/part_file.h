// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// One part, written and read. What it consists of stands in head.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/checkpoint/array_source.h"
#include "daemon/checkpoint/directory.h"
#include "daemon/checkpoint/head.h"
#include "daemon/checkpoint/image.h"
#include "daemon/checkpoint/store.h"

namespace dmuon::checkpoint {

// All of it into `draft`: values and their checksums first, the head last. The result has no file yet. CANCELLED when
// `progress` says so.
absl::StatusOr<Part> WritePartFile(Head head, const Image& image, const Progress& progress, Draft& draft);
// Bytes that the file will have. RESOURCE_EXHAUSTED for too many entries.
absl::StatusOr<uint64_t> PartFileBytes(Head head, const Image& image);
// Bytes that its head will have, whatever the checksums are.
absl::StatusOr<uint64_t> PartHeadBytes(Head head, std::vector<Entry> entries);

class DiskPart : public ArraySource {
 public:
  // Reads and proves the head. As Store::OpenPart.
  static absl::StatusOr<std::unique_ptr<DiskPart>> Open(const Directory& directory, const Manifest& manifest, const Part& part);

  // One that no manifest names: its head is proved by its SHA-256 alone. `name` is for errors.
  static absl::StatusOr<std::unique_ptr<DiskPart>> OpenAlone(std::unique_ptr<File> file, std::string name,
                                                             absl::string_view sha256);

  [[nodiscard]] const Head& head() const { return head_; }
  [[nodiscard]] const std::vector<Entry>& entries() const override { return head_.entries; }
  [[nodiscard]] absl::Status Read(size_t i, std::span<float> to) const override;
  // As Read, for nobody; `chunk` is told the bytes of each piece, and ends it with false (CANCELLED).
  [[nodiscard]] absl::Status Check(size_t i, const std::function<bool(uint64_t bytes)>& chunk) const;

 private:
  DiskPart(std::unique_ptr<File> file, std::string path, Head head, uint64_t head_bytes);
  [[nodiscard]] absl::Status ReadChunk(size_t i, std::span<std::byte> to, uint64_t offset) const;
  [[nodiscard]] absl::Status Compare(size_t i, const std::string& sha256) const;

  std::unique_ptr<File> file_;
  std::string path_;
  Head head_;
  std::vector<uint64_t> offsets_;  // of each entry's values in the file
};

}  // namespace dmuon::checkpoint
