// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/checkpoint/json.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "wire/error.h"

namespace dmuon::checkpoint {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxDepth = 8;

// Walks over the text before anything is built of it. The library's own parser keeps the last of two fields of one
// name, and knows no limit of depth.
class Walk : public nlohmann::json_sax<Json> {
 public:
  [[nodiscard]] const std::string& error() const { return error_; }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return Enter(); }
  bool end_object() override { return Leave(); }
  bool start_array(size_t) override { return Enter(); }
  bool end_array() override { return Leave(); }
  bool key(string_t& name) override {
    if (names_.back().insert(name).second) return true;
    error_ = absl::StrCat("two fields are called \"", name, "\"");
    return false;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    error_ = absl::StrCat("is no JSON at byte ", position);
    return false;
  }

 private:
  bool Enter() {
    names_.emplace_back();
    if (names_.size() <= kMaxDepth) return true;
    error_ = absl::StrCat("more than ", kMaxDepth, " levels of JSON");
    return false;
  }
  bool Leave() {
    names_.pop_back();
    return true;
  }

  std::vector<std::unordered_set<std::string>> names_;  // of each level that is open
  std::string error_;
};

}  // namespace

absl::Status Damaged(absl::string_view message) {
  return wire::Error(absl::StatusCode::kDataLoss, v1::ERROR_REASON_CHECKPOINT, message);
}

absl::Status DamagedAt(absl::string_view where, const absl::Status& status) {
  return status.ok() ? status : Damaged(absl::StrCat(where, ": ", status.message()));
}

absl::Status CheckSha256(absl::string_view where, absl::string_view text) {
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (text.size() == 64 && std::all_of(text.begin(), text.end(), is_digit)) return absl::OkStatus();
  return Damaged(absl::StrCat(where, ": is no SHA-256 in hexadecimal"));
}

absl::Status Prefixed(absl::string_view before, const absl::Status& status) {
  return wire::Error(status.code(), wire::ReasonOf(status), absl::StrCat(before, ": ", status.message()));
}

absl::StatusOr<Json> ParseJson(absl::string_view text) {
  Walk walk;
  if (!Json::sax_parse(text.begin(), text.end(), &walk)) return Damaged(walk.error());
  Json value = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) return Damaged("is no JSON");
  return value;
}

Fields::Fields(const Json& value, std::string where) : value_(&value), where_(std::move(where)) {}

absl::StatusOr<Fields> Fields::Of(const Json& value, std::string where) {
  if (value.is_object()) return Fields(value, std::move(where));
  return Damaged(absl::StrCat(where.empty() ? "the whole" : where, ": is ", value.type_name(), ", must be an object"));
}

std::string Fields::Where(absl::string_view name) const {
  return absl::StrCat(where_, "/", absl::StrReplaceAll(name, {{"~", "~0"}, {"/", "~1"}}));
}

absl::Status Fields::Wrong(absl::string_view name, const Json& value, absl::string_view wanted) const {
  return Damaged(absl::StrCat(Where(name), ": is ", value.type_name(), ", must be ", wanted));
}

absl::StatusOr<const Json*> Fields::Find(const char* name) const {
  const auto field = value_->find(name);
  if (field == value_->end()) return Damaged(absl::StrCat(Where(name), ": is missing"));
  return &*field;
}

absl::StatusOr<std::string> Fields::Text(const char* name) const {
  DMUON_ASSIGN_OR_RETURN(const Json* field, Find(name));
  if (!field->is_string()) return Wrong(name, *field, "a string");
  return field->get_ref<const std::string&>();
}

absl::StatusOr<uint64_t> Fields::Number(const char* name) const {
  DMUON_ASSIGN_OR_RETURN(const Json* field, Find(name));
  if (!field->is_number_unsigned()) return Wrong(name, *field, "a whole number");
  return field->get<uint64_t>();
}

absl::StatusOr<int64_t> Fields::NumberOrMinusOne(const char* name) const {
  DMUON_ASSIGN_OR_RETURN(const Json* field, Find(name));
  const bool whole = field->is_number_integer() &&
                     (!field->is_number_unsigned() || field->get<uint64_t>() <= std::numeric_limits<int64_t>::max());
  if (!whole || field->get<int64_t>() < -1) return Wrong(name, *field, "a whole number of at least -1");
  return field->get<int64_t>();
}

absl::StatusOr<bool> Fields::Bool(const char* name) const {
  DMUON_ASSIGN_OR_RETURN(const Json* field, Find(name));
  if (!field->is_boolean()) return Wrong(name, *field, "true or false");
  return field->get<bool>();
}

absl::StatusOr<std::vector<int64_t>> Fields::Numbers(const char* name, size_t most) const {
  DMUON_ASSIGN_OR_RETURN(const Json* field, List(name));
  if (field->size() > most) return Damaged(absl::StrCat(Where(name), ": ", field->size(), " numbers, allowed are ", most));
  std::vector<int64_t> numbers;
  for (const Json& number : *field) {
    if (!number.is_number_unsigned() || number.get<uint64_t>() > std::numeric_limits<int64_t>::max()) {
      return Damaged(absl::StrCat(Where(name), "/", numbers.size(), ": must be a whole number below 2^63"));
    }
    numbers.push_back(number.get<int64_t>());
  }
  return numbers;
}

absl::StatusOr<const Json*> Fields::List(const char* name) const {
  DMUON_ASSIGN_OR_RETURN(const Json* field, Find(name));
  if (!field->is_array()) return Wrong(name, *field, "an array");
  return field;
}

std::string Quoted(absl::string_view text) {
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"\"", "\\\""}}), "\"");
}

}  // namespace dmuon::checkpoint
