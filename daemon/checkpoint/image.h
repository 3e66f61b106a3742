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
#include "daemon/checkpoint/entry.h"

namespace dmuon::checkpoint {

class Image {
 public:
  // Bytes that the values of these valid entries take.
  static uint64_t BytesFor(std::span<const Entry> entries);
  // Allocates without touching the pages: all values are 0. RESOURCE_EXHAUSTED when the kernel refuses;
  // INVALID_ARGUMENT for an entry that is not valid, and for two of one key.
  static absl::StatusOr<Image> Create(std::vector<Entry> entries);

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

 private:
  struct Memory;
  Image(std::vector<Entry> entries, std::unique_ptr<Memory> memory);

  std::vector<Entry> entries_;
  std::unique_ptr<Memory> memory_;
};

}  // namespace dmuon::checkpoint
