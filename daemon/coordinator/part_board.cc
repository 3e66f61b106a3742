// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include "daemon/coordinator/part_board.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "wire/error.h"
#include "wire/validate.h"

namespace dmuon::coordinator {
namespace {

using Nodes = google::protobuf::RepeatedPtrField<std::string>;

constexpr size_t kShaCharacters = 64;

// A name beside the manifest: no way into another directory, nothing hidden, nothing that a shell would mind.
absl::Status CheckFile(absl::string_view file) {
  if (file.empty() || file.size() > PartBoard::kMaxFileBytes) {
    return wire::InvalidField(absl::StrCat("part.file has ", file.size(), " characters, allowed are 1..",
                                           PartBoard::kMaxFileBytes));
  }
  for (size_t i = 0; i < file.size(); ++i) {
    if (absl::ascii_isalnum(file[i]) || (i > 0 && absl::StrContains("._%-", file.substr(i, 1)))) continue;
    return wire::InvalidField(absl::StrCat("part.file: character ", i, " is none of letters, digits",
                                           i > 0 ? " and . _ % -" : ", as the first must be"));
  }
  return absl::OkStatus();
}

absl::Status CheckSha(absl::string_view sha) {
  const auto hex = [](char c) { return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f'); };
  if (sha.size() == kShaCharacters && std::all_of(sha.begin(), sha.end(), hex)) return absl::OkStatus();
  return wire::InvalidField(absl::StrCat("part.header_sha256 has ", sha.size(), " characters, must be ",
                                         kShaCharacters, " of 0-9 and a-f"));
}

absl::Status Check(const Nodes& nodes, const v1::ReportPartRequest& request) {
  const std::string& node = request.node().node_id();
  if (std::find(nodes.begin(), nodes.end(), node) == nodes.end()) {
    return wire::InvalidField(absl::StrCat("node '", node, "' is none of the ", nodes.size(), " nodes of job '",
                                           request.job_id(), "'"));
  }
  DMUON_RETURN_IF_ERROR(wire::ValidateCheckpointName(request.name()));
  if (request.has_part() == !request.failure().empty()) {
    return wire::InvalidField(absl::StrCat("part and failure are both ", request.has_part() ? "set" : "unset",
                                           ", must be one of them"));
  }
  if (!request.has_part()) return absl::OkStatus();
  if (request.part().node_id() != node) {
    return wire::InvalidField(absl::StrCat("part.node_id is '", request.part().node_id(),
                                           "', must be the node that reports, '", node, "'"));
  }
  DMUON_RETURN_IF_ERROR(CheckFile(request.part().file()));
  return CheckSha(request.part().header_sha256());
}

// At most `most` bytes, and whole characters of UTF-8.
absl::string_view Cut(absl::string_view text, size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0U) == 0x80U) --most;
  return text.substr(0, most);
}

bool Same(const v1::CheckpointPart& a, const v1::CheckpointPart& b) {
  return a.file() == b.file() && a.bytes() == b.bytes() && a.entries() == b.entries() &&
         a.header_sha256() == b.header_sha256();
}

}  // namespace

PartBoard::Board& PartBoard::BoardOf(const std::string& name, uint64_t step) {
  for (Board& board : boards_) {
    if (board.name == name && board.step == step) return board;
  }
  if (boards_.size() == kMaxBoards) boards_.pop_front();
  Board& board = boards_.emplace_back();
  board.name = name;
  board.step = step;
  return board;
}

absl::StatusOr<PartBoard::Answer> PartBoard::Report(const Nodes& nodes, const v1::ReportPartRequest& request) {
  DMUON_RETURN_IF_ERROR(Check(nodes, request));
  const std::string& node = request.node().node_id();
  Board& board = BoardOf(request.name(), request.step());
  const bool was_complete = board.parts.size() == static_cast<size_t>(nodes.size());
  const std::string former_failure = board.failure;
  const bool again = was_complete ? !request.has_part() || !Same(board.parts.at(node), request.part())
                                  : board.told.contains(node);
  if (again) {
    board.parts.clear();
    board.failure.clear();
    board.told.clear();
  }
  if (request.has_part()) {
    if (board.failure.empty()) board.parts[node] = request.part();
  } else {
    board.parts.clear();
    board.failure = absl::StrCat("node '", node, "': ", Cut(request.failure(), kMaxFailureBytes));
  }

  Answer answer;
  const std::string what = absl::StrCat("checkpoint ", board.name, " of step ", board.step);
  if (!board.failure.empty()) {
    board.told.insert(node);
    answer.response.set_failure(board.failure);
    if (board.failure != former_failure) answer.news = absl::StrCat(what, " fails: ", board.failure);
    return answer;
  }
  if (board.parts.size() < static_cast<size_t>(nodes.size())) {
    for (const std::string& other : nodes) {
      if (!board.parts.contains(other)) answer.response.add_waiting_for(other);
    }
    return answer;
  }
  for (const std::string& of : nodes) *answer.response.add_parts() = board.parts.at(of);
  if (again || !was_complete) answer.news = absl::StrCat(what, " is complete, ", nodes.size(), " parts");
  return answer;
}

}  // namespace dmuon::coordinator
