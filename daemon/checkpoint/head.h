// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The head of a part: what makes it a safetensors file, and what that format has no field for.
//
//   part  := head values
//   head  := length:u64 (little-endian, of the JSON with its spaces) JSON spaces, a multiple of 64 bytes
//   JSON  := {"__metadata__": {"format": "dmuon-1", "job", "name", "step", "generation", "node", "dmuon_version",
//             "entries": the JSON of {key: {"tensor", "tensor_shape", "optimizer", "updates", "quantity", "offset",
//             "length", "matrix", "sha256"}}}, key: {"dtype": "F32", "shape", "data_offsets"}}
//
// Values lie one after the other without a gap, which safetensors demands. All fields of "__metadata__" are strings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/checkpoint/entry.h"

namespace dmuon::checkpoint {

// The safetensors package reads no longer ones: about 230,000 entries.
inline constexpr uint64_t kMaxHeadBytes = 100'000'000;
inline constexpr uint64_t kHeadAlignment = 64;
inline constexpr uint64_t kLengthBytes = 8;

struct Head {
  std::string job_id;
  std::string name;
  uint64_t step = 0;
  uint64_t generation = 0;
  std::string node;
  std::string version;
  std::vector<Entry> entries;       // in the order of their values
  std::vector<std::string> sha256;  // of each one's values

  friend bool operator==(const Head&, const Head&) = default;
};

// Its length depends on the hashes' number only, not on the hashes. RESOURCE_EXHAUSTED for too many entries.
absl::StatusOr<std::string> MakeHead(const Head& head);

// Bytes of the head of a file of `file_bytes` that begins with `length`. DATA_LOSS.
absl::StatusOr<uint64_t> HeadBytes(std::span<const std::byte, kLengthBytes> length, uint64_t file_bytes);
// Of all bytes of the head. DATA_LOSS with a pointer to the field; FAILED_PRECONDITION for a newer format.
absl::StatusOr<Head> ParseHead(absl::string_view bytes, uint64_t file_bytes);

}  // namespace dmuon::checkpoint
