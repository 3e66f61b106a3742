// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/checkpoint/manifest.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "daemon/base/version.h"
#include "daemon/checkpoint/json.h"
#include "daemon/checkpoint/names.h"
#include "wire/error.h"
#include "wire/validate.h"

namespace dmuon::checkpoint {
namespace {

constexpr uint64_t kMaxParts = wire::kMaxWorldSize;
constexpr uint64_t kMaxPartBytes = std::numeric_limits<int64_t>::max();  // of a file
constexpr uint64_t kMaxPartEntries = uint64_t{1} << 32;

absl::Status CheckLimit(const Fields& fields, absl::string_view name, uint64_t value, uint64_t most) {
  if (value <= most) return absl::OkStatus();
  return Damaged(absl::StrCat(fields.Where(name), ": is ", value, ", allowed are 0..", most));
}

absl::StatusOr<Part> ParsePart(const nlohmann::json& value, const std::string& where) {
  DMUON_ASSIGN_OR_RETURN(const Fields fields, Fields::Of(value, where));
  Part part;
  DMUON_ASSIGN_OR_RETURN(part.node, fields.Text("node"));
  DMUON_RETURN_IF_ERROR(DamagedAt(fields.Where("node"), wire::ValidateId(part.node, "node")));
  DMUON_ASSIGN_OR_RETURN(part.file, fields.Text("file"));
  if (!IsPlainName(part.file)) return Damaged(fields.Where("file") + ": is no plain file name");
  DMUON_ASSIGN_OR_RETURN(part.bytes, fields.Number("bytes"));
  DMUON_RETURN_IF_ERROR(CheckLimit(fields, "bytes", part.bytes, kMaxPartBytes));
  DMUON_ASSIGN_OR_RETURN(part.entries, fields.Number("entries"));
  DMUON_RETURN_IF_ERROR(CheckLimit(fields, "entries", part.entries, kMaxPartEntries));
  DMUON_ASSIGN_OR_RETURN(part.header_sha256, fields.Text("header_sha256"));
  DMUON_RETURN_IF_ERROR(CheckSha256(fields.Where("header_sha256"), part.header_sha256));
  return part;
}

absl::Status CheckFormat(const Fields& fields) {
  DMUON_ASSIGN_OR_RETURN(const uint64_t format, fields.Number("format"));
  if (format == kFormat) return absl::OkStatus();
  if (format < kFormat) return Damaged(absl::StrCat(fields.Where("format"), ": is ", format, ", which never was one"));
  const absl::StatusOr<std::string> writer = fields.Text("dmuon_version");
  return NewerFormat(fields.Where("format"), format, writer.ok() ? *writer : "");
}

}  // namespace

absl::Status NewerFormat(absl::string_view where, uint64_t format, absl::string_view writer) {
  return wire::Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_CHECKPOINT,
                     absl::StrCat(where, ": was written in format ", format, " by dmuon ",
                                  ValidateVersion(writer).ok() ? writer : "of another version", "; this is dmuon ",
                                  std::string(Version()), ", which reads formats up to ", kFormat));
}

absl::Status ValidateVersion(absl::string_view version) {
  const bool printable = std::all_of(version.begin(), version.end(), [](char c) { return c >= ' ' && c <= '~'; });
  if (!version.empty() && version.size() <= 128 && printable) return absl::OkStatus();
  return wire::InvalidField("dmuon_version: must be 1..128 printable characters");
}

absl::Status ValidateName(absl::string_view name) { return wire::ValidateCheckpointName(name); }

std::string ToJson(const Manifest& manifest) {
  using Json = nlohmann::ordered_json;
  Json parts = Json::array();
  for (const Part& part : manifest.parts) {
    Json value;
    value["node"] = part.node;
    value["file"] = part.file;
    value["bytes"] = part.bytes;
    value["entries"] = part.entries;
    value["header_sha256"] = part.header_sha256;
    parts.push_back(std::move(value));
  }
  Json json;
  json["format"] = kFormat;
  json["job"] = manifest.job_id;
  json["name"] = manifest.name;
  json["step"] = manifest.step;
  json["generation"] = manifest.generation;
  json["automatic"] = manifest.automatic;
  json["dmuon_version"] = manifest.version;
  json["parts"] = std::move(parts);
  return json.dump(2, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace) + "\n";
}

absl::StatusOr<Manifest> ParseManifest(absl::string_view json) {
  if (json.size() > kMaxManifestBytes) {
    return Damaged(absl::StrCat("has ", json.size(), " bytes, allowed are ", kMaxManifestBytes));
  }
  DMUON_ASSIGN_OR_RETURN(const nlohmann::json value, ParseJson(json));
  DMUON_ASSIGN_OR_RETURN(const Fields fields, Fields::Of(value, ""));
  DMUON_RETURN_IF_ERROR(CheckFormat(fields));
  Manifest manifest;
  DMUON_ASSIGN_OR_RETURN(manifest.job_id, fields.Text("job"));
  DMUON_RETURN_IF_ERROR(DamagedAt("/job", wire::ValidateId(manifest.job_id, "job")));
  DMUON_ASSIGN_OR_RETURN(manifest.name, fields.Text("name"));
  DMUON_RETURN_IF_ERROR(DamagedAt("/name", ValidateName(manifest.name)));
  DMUON_ASSIGN_OR_RETURN(manifest.step, fields.Number("step"));
  DMUON_ASSIGN_OR_RETURN(manifest.generation, fields.Number("generation"));
  DMUON_ASSIGN_OR_RETURN(manifest.automatic, fields.Bool("automatic"));
  DMUON_ASSIGN_OR_RETURN(manifest.version, fields.Text("dmuon_version"));
  DMUON_RETURN_IF_ERROR(DamagedAt("/dmuon_version", ValidateVersion(manifest.version)));
  DMUON_ASSIGN_OR_RETURN(const nlohmann::json* parts, fields.List("parts"));
  DMUON_RETURN_IF_ERROR(CheckLimit(fields, "parts", parts->size(), kMaxParts));
  std::set<std::string> nodes;
  std::set<std::string> files;
  for (size_t i = 0; i < parts->size(); ++i) {
    const std::string where = absl::StrCat("/parts/", i);
    DMUON_ASSIGN_OR_RETURN(Part part, ParsePart((*parts)[i], where));
    if (!nodes.insert(part.node).second) return Damaged(absl::StrCat(where, ": a second part of node ", part.node));
    if (!files.insert(part.file).second) return Damaged(absl::StrCat(where, ": a second part in file ", part.file));
    manifest.parts.push_back(std::move(part));
  }
  return manifest;
}

absl::Status ValidateManifest(const Manifest& manifest) {
  const absl::StatusOr<Manifest> again = ParseManifest(ToJson(manifest));
  if (!again.ok()) return wire::InvalidField(again.status().message());
  return absl::OkStatus();
}

}  // namespace dmuon::checkpoint
