// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/checkpoint/names.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "daemon/base/sha256.h"
#include "wire/error.h"
#include "wire/validate.h"

namespace dmuon::checkpoint {
namespace {

constexpr absl::string_view kManifestEnd = ".json";
constexpr absl::string_view kPartEnd = ".safetensors";
constexpr absl::string_view kDraftEnd = ".tmp";
// With the longest name, step and generation, a part's name still fits a file system.
constexpr size_t kMaxNodeText = 64;

enum class Dots { kEscape, kEscapeFirst };

bool IsText(char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-'; }

std::string Escape(absl::string_view id, Dots dots) {
  std::string text;
  for (size_t i = 0; i < id.size(); ++i) {
    if (IsText(id[i]) || (id[i] == '.' && i > 0 && dots == Dots::kEscapeFirst)) {
      text.push_back(id[i]);
    } else {
      absl::StrAppend(&text, "%", absl::AsciiStrToUpper(absl::BytesToHexString(id.substr(i, 1))));
    }
  }
  return text;
}

bool IsNumber(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

absl::StatusOr<std::string> FolderOf(const std::string& job_id) {
  DMUON_RETURN_IF_ERROR(wire::ValidateId(job_id, "job_id"));
  std::string folder = Escape(job_id, Dots::kEscapeFirst);
  if (folder.size() <= kMaxFileName) return folder;
  return wire::InvalidField(absl::StrCat("job_id: its folder's name has ", folder.size(), " characters, allowed are ",
                                         kMaxFileName, "; letters, digits, '_', '-' and '.' count once, others three times"));
}

std::optional<std::string> JobOf(absl::string_view folder) {
  std::string id;
  for (size_t i = 0; i < folder.size(); ++i) {
    if (folder[i] != '%') {
      id.push_back(folder[i]);
      continue;
    }
    const absl::string_view digits = folder.substr(i + 1, 2);
    if (digits.size() < 2 || !absl::ascii_isxdigit(static_cast<unsigned char>(digits[0])) ||
        !absl::ascii_isxdigit(static_cast<unsigned char>(digits[1]))) {
      return std::nullopt;
    }
    id += absl::HexStringToBytes(digits);
    i += 2;
  }
  const absl::StatusOr<std::string> again = FolderOf(id);
  if (!again.ok() || *again != folder) return std::nullopt;
  return id;
}

std::string AutomaticName(uint64_t step) { return absl::StrFormat("step-%012d", step); }

absl::StatusOr<std::string> ManifestFile(const std::string& name) {
  DMUON_RETURN_IF_ERROR(ValidateName(name));
  return absl::StrCat(name, kManifestEnd);
}

std::optional<std::string> NameOf(absl::string_view file) {
  if (!absl::ConsumeSuffix(&file, kManifestEnd) || !ValidateName(file).ok()) return std::nullopt;
  return std::string(file);
}

std::string NodeText(const std::string& node) {
  const std::string text = Escape(node, Dots::kEscape);
  if (text.size() <= kMaxNodeText) return text;
  const std::string hash = absl::StrCat("%%", Sha256Hex(std::array{node}).substr(0, 16));
  return text.substr(0, kMaxNodeText - hash.size()) + hash;
}

std::string PartFile(const Manifest& of, const std::string& node, int again) {
  const std::string other = again > 0 ? absl::StrCat("%r", again) : "";
  return absl::StrCat(of.name, ".", of.step, ".", of.generation, ".", NodeText(node), other, kPartEnd);
}

std::string DraftFile(const std::string& node) {
  std::random_device device;
  const uint64_t random = (uint64_t{device()} << 32) | device();
  return absl::StrCat(NodeText(node), ".", ::getpid(), ".", absl::Hex(random, absl::kZeroPad16), kDraftEnd);
}

std::optional<Owner> OwnerOf(absl::string_view file) {
  if (absl::ConsumeSuffix(&file, kDraftEnd)) {
    const std::vector<absl::string_view> pieces = absl::StrSplit(file, '.');
    if (pieces.size() != 3 || pieces[0].empty() || !IsNumber(pieces[1]) || pieces[2].size() != 16) return std::nullopt;
    return Owner{std::string(pieces[0]), ""};
  }
  if (!absl::ConsumeSuffix(&file, kPartEnd)) return std::nullopt;
  std::array<absl::string_view, 2> last;  // generation and step; what is left is the name
  absl::string_view node;
  for (absl::string_view* piece : {&node, &last[0], &last[1]}) {
    const size_t dot = file.rfind('.');
    if (dot == absl::string_view::npos) return std::nullopt;
    *piece = file.substr(dot + 1);
    file = file.substr(0, dot);
  }
  if (node.empty() || !IsNumber(last[0]) || !IsNumber(last[1]) || !ValidateName(file).ok()) return std::nullopt;
  Owner owner{std::string(node.substr(0, node.find("%r"))), std::string(file)};
  if (!absl::SimpleAtoi(last[1], &owner.step)) return std::nullopt;
  return owner;
}

bool IsPlainName(absl::string_view file) {
  return !file.empty() && file.size() <= kMaxFileName && file[0] != '.' &&
         std::all_of(file.begin(), file.end(), [](char c) { return IsText(c) || c == '.' || c == '%'; });
}

}  // namespace dmuon::checkpoint
