// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// How things are called on disk:
//
//   folder   := text of the job's id, a dot at its beginning escaped
//   manifest := name ".json"
//   part     := name "." step "." generation "." node ["%r" number] ".safetensors"
//   draft    := node "." process "." random ".tmp"
//   node     := text of the node's id, every dot escaped; a long one's beginning "%%" hash
//   text     := letters, digits, "_" and "-"; any other character is "%" and two hexadecimal digits
//
// Read from the right, a part's name has one meaning, whatever dots are in `name`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/checkpoint/manifest.h"

namespace dmuon::checkpoint {

inline constexpr size_t kMaxFileName = 255;  // of Linux

// INVALID_ARGUMENT for what is no id, or when its folder's name would be too long.
absl::StatusOr<std::string> FolderOf(const std::string& job_id);
// The id whose folder it is; nothing for any other name.
std::optional<std::string> JobOf(absl::string_view folder);

// "step-000000000042". Checkpoints of such names come and go by the schedule.
std::string AutomaticName(uint64_t step);

// INVALID_ARGUMENT for what is no name.
absl::StatusOr<std::string> ManifestFile(const std::string& name);
// The name whose manifest it is; nothing for any other file.
std::optional<std::string> NameOf(absl::string_view file);

// At most 64 characters, without a dot.
std::string NodeText(const std::string& node);
// `again` > 0: another one for the same values, because a manifest names the former.
std::string PartFile(const Manifest& of, const std::string& node, int again);
std::string DraftFile(const std::string& node);

// Whose a file is; nothing for what is neither part nor draft.
struct Owner {
  std::string node;  // as NodeText
  std::string name;  // of its checkpoint; empty for a draft
  uint64_t step = 0;

  friend bool operator==(const Owner&, const Owner&) = default;
};
std::optional<Owner> OwnerOf(absl::string_view file);

// [A-Za-z0-9._%-], and no dot at the beginning: what a manifest may name.
bool IsPlainName(absl::string_view file);

}  // namespace dmuon::checkpoint
