// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/checkpoint/head.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "daemon/checkpoint/json.h"
#include "daemon/checkpoint/manifest.h"
#include "wire/error.h"
#include "wire/validate.h"

namespace dmuon::checkpoint {
namespace {

using Json = nlohmann::json;

static_assert(std::endian::native == std::endian::little, "values lie in files as they lie in memory");

constexpr char kMetadata[] = "__metadata__";
constexpr absl::string_view kFormatWord = "dmuon-";

std::string ListOf(std::span<const int64_t> numbers) { return absl::StrCat("[", absl::StrJoin(numbers, ","), "]"); }

// The JSON of "entries".
std::string DetailsOf(const Head& head) {
  std::string json = "{";
  for (size_t i = 0; i < head.entries.size(); ++i) {
    const Entry& entry = head.entries[i];
    const auto ndim = static_cast<size_t>(entry.box.ndim);
    absl::StrAppend(&json, i == 0 ? "" : ",", Quoted(entry.Key()), ":{\"tensor\":", Quoted(entry.tensor),
                    ",\"tensor_shape\":", ListOf(entry.tensor_shape), ",\"optimizer\":", Quoted(entry.optimizer));
    absl::StrAppend(&json, ",\"updates\":", entry.updates, ",\"quantity\":", Quoted(entry.quantity),
                    ",\"offset\":", ListOf(std::span(entry.box.offset).first(ndim)),
                    ",\"length\":", ListOf(std::span(entry.box.length).first(ndim)), ",\"matrix\":", entry.matrix);
    absl::StrAppend(&json, ",\"sha256\":", Quoted(head.sha256[i]), "}");
  }
  return json + "}";
}

std::string JsonOf(const Head& head) {
  std::string json = "{";
  absl::StrAppend(&json, Quoted(kMetadata), ":{\"format\":", Quoted(absl::StrCat(kFormatWord, kFormat)),
                  ",\"job\":", Quoted(head.job_id), ",\"name\":", Quoted(head.name), ",\"step\":\"", head.step,
                  "\",\"generation\":\"", head.generation, "\",\"node\":", Quoted(head.node));
  absl::StrAppend(&json, ",\"dmuon_version\":", Quoted(head.version), ",\"entries\":", Quoted(DetailsOf(head)), "}");
  uint64_t begin = 0;
  for (const Entry& entry : head.entries) {
    const uint64_t end = begin + entry.elements() * sizeof(float);
    absl::StrAppend(&json, ",", Quoted(entry.Key()), ":{\"dtype\":\"F32\",\"shape\":", ListOf(entry.shape),
                    ",\"data_offsets\":[", begin, ",", end, "]}");
    begin = end;
  }
  return json + "}";
}

// A number of "__metadata__", which has strings only.
absl::StatusOr<uint64_t> NumberIn(const Fields& fields, const char* name) {
  DMUON_ASSIGN_OR_RETURN(const std::string text, fields.Text(name));
  uint64_t number = 0;
  if (absl::SimpleAtoi(text, &number) && absl::StrCat(number) == text) return number;
  return Damaged(fields.Where(name) + ": is no whole number in a string");
}

absl::Status CheckFormat(const Fields& metadata) {
  DMUON_ASSIGN_OR_RETURN(const std::string text, metadata.Text("format"));
  absl::string_view digits = text;
  uint64_t format = 0;
  if (!absl::ConsumePrefix(&digits, kFormatWord) || !absl::SimpleAtoi(digits, &format) || format < kFormat ||
      absl::StrCat(format) != digits) {
    return Damaged(absl::StrCat(metadata.Where("format"), ": must be ", kFormatWord, kFormat));
  }
  if (format == kFormat) return absl::OkStatus();
  const absl::StatusOr<std::string> writer = metadata.Text("dmuon_version");
  return NewerFormat(metadata.Where("format"), format, writer.ok() ? *writer : "");
}

absl::Status ParseMetadata(const Fields& metadata, Head& head) {
  DMUON_ASSIGN_OR_RETURN(head.job_id, metadata.Text("job"));
  DMUON_RETURN_IF_ERROR(DamagedAt(metadata.Where("job"), wire::ValidateId(head.job_id, "job")));
  DMUON_ASSIGN_OR_RETURN(head.name, metadata.Text("name"));
  DMUON_RETURN_IF_ERROR(DamagedAt(metadata.Where("name"), ValidateName(head.name)));
  DMUON_ASSIGN_OR_RETURN(head.step, NumberIn(metadata, "step"));
  DMUON_ASSIGN_OR_RETURN(head.generation, NumberIn(metadata, "generation"));
  DMUON_ASSIGN_OR_RETURN(head.node, metadata.Text("node"));
  DMUON_RETURN_IF_ERROR(DamagedAt(metadata.Where("node"), wire::ValidateId(head.node, "node")));
  DMUON_ASSIGN_OR_RETURN(head.version, metadata.Text("dmuon_version"));
  return DamagedAt(metadata.Where("dmuon_version"), ValidateVersion(head.version));
}

// An array: where its values are, and which.
struct Array {
  int64_t begin = 0;
  int64_t end = 0;
  std::string key;
  std::vector<int64_t> shape;

  bool operator<(const Array& other) const {
    return std::tie(begin, end, key) < std::tie(other.begin, other.end, other.key);
  }
};

absl::StatusOr<Array> ParseArray(const std::string& key, const Json& value, const Fields& whole) {
  DMUON_ASSIGN_OR_RETURN(const Fields fields, Fields::Of(value, whole.Where(key)));
  DMUON_ASSIGN_OR_RETURN(const std::string dtype, fields.Text("dtype"));
  if (dtype != "F32") return Damaged(fields.Where("dtype") + ": must be F32");
  Array array;
  array.key = key;
  DMUON_ASSIGN_OR_RETURN(array.shape, fields.Numbers("shape", wire::kMaxDims));
  DMUON_ASSIGN_OR_RETURN(const std::vector<int64_t> offsets, fields.Numbers("data_offsets", 2));
  if (offsets.size() != 2 || offsets[0] > offsets[1]) {
    return Damaged(fields.Where("data_offsets") + ": must be a beginning and an end");
  }
  array.begin = offsets[0];
  array.end = offsets[1];
  return array;
}

// In the order of their values, which must fill the file.
absl::StatusOr<std::vector<Array>> ParseArrays(const Json& json, const Fields& whole, uint64_t data_bytes) {
  std::vector<Array> arrays;
  for (const auto& [key, value] : json.items()) {
    if (key == kMetadata) continue;
    DMUON_ASSIGN_OR_RETURN(Array array, ParseArray(key, value, whole));
    arrays.push_back(std::move(array));
  }
  std::sort(arrays.begin(), arrays.end());
  int64_t at = 0;
  for (const Array& array : arrays) {
    if (array.begin != at) {
      return Damaged(absl::StrCat(whole.Where(array.key), "/data_offsets: values begin at ", array.begin,
                                  ", those before them end at ", at));
    }
    at = array.end;
  }
  if (static_cast<uint64_t>(at) == data_bytes) return arrays;
  return Damaged(absl::StrCat("the values of all arrays are ", at, " bytes, the file has ", data_bytes));
}

absl::StatusOr<Entry> ParseEntry(const Fields& fields, const Array& array) {
  Entry entry;
  DMUON_ASSIGN_OR_RETURN(entry.tensor, fields.Text("tensor"));
  DMUON_ASSIGN_OR_RETURN(entry.tensor_shape, fields.Numbers("tensor_shape", wire::kMaxDims));
  DMUON_ASSIGN_OR_RETURN(entry.optimizer, fields.Text("optimizer"));
  DMUON_ASSIGN_OR_RETURN(entry.updates, fields.Number("updates"));
  DMUON_ASSIGN_OR_RETURN(entry.quantity, fields.Text("quantity"));
  DMUON_ASSIGN_OR_RETURN(const std::vector<int64_t> offset, fields.Numbers("offset", wire::kMaxDims));
  DMUON_ASSIGN_OR_RETURN(const std::vector<int64_t> length, fields.Numbers("length", wire::kMaxDims));
  if (offset.size() != length.size()) return Damaged(fields.Where("offset") + ": has not as many numbers as length");
  entry.box.ndim = static_cast<int>(offset.size());
  std::copy(offset.begin(), offset.end(), entry.box.offset.begin());
  std::copy(length.begin(), length.end(), entry.box.length.begin());
  DMUON_ASSIGN_OR_RETURN(const int64_t matrix, fields.NumberOrMinusOne("matrix"));
  entry.matrix = static_cast<int>(std::min<int64_t>(matrix, std::numeric_limits<int>::max()));
  entry.shape = array.shape;
  if (const absl::Status valid = ValidateEntry(entry); !valid.ok()) {
    return Damaged(absl::StrCat(fields.Where("tensor"), ": ", valid.message()));
  }
  const uint64_t bytes = entry.elements() * sizeof(float);
  if (bytes != static_cast<uint64_t>(array.end - array.begin)) {
    return Damaged(absl::StrCat("/", array.key, ": has ", array.end - array.begin, " bytes, its shape asks for ", bytes));
  }
  if (entry.Key() != array.key) return Damaged(absl::StrCat(fields.Where("tensor"), ": is what is called ", entry.Key()));
  return entry;
}

absl::Status ParseDetails(const std::string& text, const std::vector<Array>& arrays, Head& head) {
  const std::string where = absl::StrCat("/", kMetadata, "/entries");
  const absl::StatusOr<Json> json = ParseJson(text);
  if (!json.ok()) return Prefixed(where, json.status());
  DMUON_ASSIGN_OR_RETURN(const Fields all, Fields::Of(*json, where));
  if (json->size() != arrays.size()) {
    return Damaged(absl::StrCat(where, ": tells of ", json->size(), " arrays, the file has ", arrays.size()));
  }
  for (const Array& array : arrays) {
    const auto detail = json->find(array.key);
    if (detail == json->end()) return Damaged(all.Where(array.key) + ": is missing");
    DMUON_ASSIGN_OR_RETURN(const Fields fields, Fields::Of(*detail, all.Where(array.key)));
    DMUON_ASSIGN_OR_RETURN(Entry entry, ParseEntry(fields, array));
    DMUON_ASSIGN_OR_RETURN(std::string sha256, fields.Text("sha256"));
    DMUON_RETURN_IF_ERROR(CheckSha256(fields.Where("sha256"), sha256));
    head.entries.push_back(std::move(entry));
    head.sha256.push_back(std::move(sha256));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> MakeHead(const Head& head) {
  std::string json = JsonOf(head);
  const uint64_t bytes = (kLengthBytes + json.size() + kHeadAlignment - 1) / kHeadAlignment * kHeadAlignment;
  const uint64_t length = bytes - kLengthBytes;
  if (length > kMaxHeadBytes) {
    return wire::Error(absl::StatusCode::kResourceExhausted, v1::ERROR_REASON_LIMIT,
                       absl::StrCat("the head of a part of ", head.entries.size(), " arrays takes ", length,
                                    " bytes, allowed are ", kMaxHeadBytes, "; more nodes make smaller parts"));
  }
  json.resize(length, ' ');
  std::string made(kLengthBytes, '\0');
  std::memcpy(made.data(), &length, kLengthBytes);
  return made + json;
}

absl::StatusOr<uint64_t> HeadBytes(std::span<const std::byte, kLengthBytes> length, uint64_t file_bytes) {
  uint64_t bytes = 0;
  std::memcpy(&bytes, length.data(), kLengthBytes);
  if (file_bytes >= kLengthBytes && bytes <= kMaxHeadBytes && bytes <= file_bytes - kLengthBytes) return kLengthBytes + bytes;
  return Damaged(absl::StrCat("says that its head has ", bytes, " bytes; the file has ", file_bytes, ", allowed are ",
                              kMaxHeadBytes));
}

absl::StatusOr<Head> ParseHead(absl::string_view bytes, uint64_t file_bytes) {
  if (bytes.size() < kLengthBytes || bytes.size() > file_bytes) return Damaged("is shorter than its head");
  DMUON_ASSIGN_OR_RETURN(const Json json, ParseJson(bytes.substr(kLengthBytes)));
  DMUON_ASSIGN_OR_RETURN(const Fields whole, Fields::Of(json, ""));
  const auto found = json.find(kMetadata);
  if (found == json.end()) return Damaged(whole.Where(kMetadata) + ": is missing; no part of a checkpoint of dmuon");
  DMUON_ASSIGN_OR_RETURN(const Fields metadata, Fields::Of(*found, whole.Where(kMetadata)));
  DMUON_RETURN_IF_ERROR(CheckFormat(metadata));
  Head head;
  DMUON_RETURN_IF_ERROR(ParseMetadata(metadata, head));
  DMUON_ASSIGN_OR_RETURN(const std::vector<Array> arrays, ParseArrays(json, whole, file_bytes - bytes.size()));
  DMUON_ASSIGN_OR_RETURN(const std::string details, metadata.Text("entries"));
  DMUON_RETURN_IF_ERROR(ParseDetails(details, arrays, head));
  return head;
}

}  // namespace dmuon::checkpoint
