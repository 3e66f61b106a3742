// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// One part of a checkpoint in memory, as it will lie on disk: a safetensors file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/checkpoint/entry.h"
#include "wire/scoped_fd.h"

namespace dmuon::checkpoint {

class Image {
 public:
  struct Memory;
  // Bytes that the values of these valid entries take.
  static uint64_t BytesFor(std::span<const Entry> entries);
  // Allocates without touching the pages; what the values are is not said. `former` may be null, and is used again when
  // it has the size and no image any more. RESOURCE_EXHAUSTED when the kernel refuses; INVALID_ARGUMENT for an entry
  // that is not valid, and for two of one key.
  static absl::StatusOr<Image> Create(std::vector<Entry> entries, std::shared_ptr<Memory> former = nullptr);
  // The same in memory that another process can be given by descriptor, with room for a head of `head_bytes` before the
  // values, a multiple of kHeadAlignment. All pages are there when it returns.
  static absl::StatusOr<Image> CreateShared(std::vector<Entry> entries, uint64_t head_bytes);

  Image(Image&&) noexcept;
  Image& operator=(Image&&) noexcept;
  ~Image();

  [[nodiscard]] const std::vector<Entry>& entries() const;
  // The values of entry `i`, to be filled; any number of threads, each its own entries.
  [[nodiscard]] std::span<float> values(size_t i);
  [[nodiscard]] std::span<const float> values(size_t i) const;
  // All of its values, one after the other in the order of entries, without a gap: safetensors allows none. In the
  // file they begin at a multiple of 64.
  [[nodiscard]] std::span<const std::byte> data() const;
  // Where the values are. Who keeps it beyond the image has it back at once for the next one, unless the kernel has
  // needed the pages meanwhile; what was in them is lost.
  [[nodiscard]] std::shared_ptr<Memory> memory() const;
  // Of CreateShared, with its head: a memfd that nobody can change any more.
  absl::StatusOr<wire::ScopedFd> Seal(absl::string_view head) &&;

 private:
  Image(std::vector<Entry> entries, std::shared_ptr<Memory> memory);

  std::vector<Entry> entries_;
  std::shared_ptr<Memory> memory_;
};

}  // namespace dmuon::checkpoint
