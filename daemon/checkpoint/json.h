// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// JSON that nobody has to believe: every look at it is checked, and every error is DATA_LOSS that begins with a
// pointer (RFC 6901) to the field: "/parts/3/bytes: is a string, must be a whole number".
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dmuon::checkpoint {

// DATA_LOSS/CHECKPOINT.
absl::Status Damaged(absl::string_view message);
// OK for OK; any other error as damage of the field `where`.
absl::Status DamagedAt(absl::string_view where, const absl::Status& status);
// Damage unless `text` is a SHA-256 in lower-case hexadecimal.
absl::Status CheckSha256(absl::string_view where, absl::string_view text);
// The same status (code and reason) with `before` and ": " in front of its message.
absl::Status Prefixed(absl::string_view before, const absl::Status& status);

// DATA_LOSS for what is no JSON, for more than 8 levels, and for two fields of one name in an object.
absl::StatusOr<nlohmann::json> ParseJson(absl::string_view text);

// An object's fields. Does not own the value.
class Fields {
 public:
  // `where` is the pointer to the value; "" for the whole.
  static absl::StatusOr<Fields> Of(const nlohmann::json& value, std::string where);

  [[nodiscard]] absl::StatusOr<std::string> Text(const char* name) const;
  [[nodiscard]] absl::StatusOr<uint64_t> Number(const char* name) const;
  // Whole, and -1 or more.
  [[nodiscard]] absl::StatusOr<int64_t> NumberOrMinusOne(const char* name) const;
  [[nodiscard]] absl::StatusOr<bool> Bool(const char* name) const;
  // At most `most` of them.
  [[nodiscard]] absl::StatusOr<std::vector<int64_t>> Numbers(const char* name, size_t most) const;
  // An array; never null.
  [[nodiscard]] absl::StatusOr<const nlohmann::json*> List(const char* name) const;

  // "/parts/3/bytes"
  [[nodiscard]] std::string Where(absl::string_view name) const;

 private:
  Fields(const nlohmann::json& value, std::string where);
  [[nodiscard]] absl::StatusOr<const nlohmann::json*> Find(const char* name) const;
  [[nodiscard]] absl::Status Wrong(absl::string_view name, const nlohmann::json& value, absl::string_view wanted) const;

  const nlohmann::json* value_;
  std::string where_;
};

// A JSON string of printable ASCII, with its quotes.
std::string Quoted(absl::string_view text);

}  // namespace dmuon::checkpoint
