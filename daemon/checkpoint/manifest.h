// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The manifest: what makes some part files a checkpoint. JSON, written last; no file counts that no manifest names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dmuon::checkpoint {

inline constexpr uint32_t kFormat = 1;
inline constexpr uint64_t kMaxManifestBytes = uint64_t{16} << 20;

// A file of one node.
struct Part {
  std::string node;
  std::string file;           // beside the manifest
  uint64_t bytes = 0;
  uint64_t entries = 0;
  std::string header_sha256;  // of its head, which holds the checksums of all values

  friend bool operator==(const Part&, const Part&) = default;
};

// Equal on all nodes that write it, byte for byte.
struct Manifest {
  std::string job_id;
  std::string name;
  uint64_t step = 0;        // the last applied one
  uint64_t generation = 0;  // of the plan that it was saved under
  bool automatic = false;   // made by the job's schedule, and removed by it
  std::string version;      // of dmuon
  std::vector<Part> parts;  // in the order of the plan's nodes

  friend bool operator==(const Manifest&, const Manifest&) = default;
};

// Indented, in an order of fields that never changes.
std::string ToJson(const Manifest& manifest);
// DATA_LOSS for what is no manifest, FAILED_PRECONDITION for one of a newer format; both say where.
absl::StatusOr<Manifest> ParseManifest(absl::string_view json);

// INVALID_ARGUMENT unless it is 1..128 of [a-z0-9._-] and begins with a letter or digit.
absl::Status ValidateName(absl::string_view name);
// INVALID_ARGUMENT unless it is 1..128 printable characters.
absl::Status ValidateVersion(absl::string_view version);
// INVALID_ARGUMENT naming the field: what ParseManifest would refuse.
absl::Status ValidateManifest(const Manifest& manifest);

// FAILED_PRECONDITION naming both versions; `where` is the field that says the format.
absl::Status NewerFormat(absl::string_view where, uint64_t format, absl::string_view writer);

}  // namespace dmuon::checkpoint
