// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/transport/checks.h"

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "wire/error.h"

namespace dmuon::transport {
namespace {

// Adds the messages of one direction to `bytes`, which stays within the limit.
template <typename Message>
absl::Status CheckMessages(const Mesh& mesh, uint64_t limit_bytes,
                           const std::vector<Message>& messages, uint64_t& bytes) {
  std::set<uint32_t> peers;
  for (const Message& message : messages) {
    if (message.peer >= mesh.nodes.size()) {
      return wire::InvalidField(absl::StrCat(mesh.prefix, ": peer ", message.peer, " is not below ",
                                             mesh.nodes.size(), " nodes"));
    }
    if (message.peer == mesh.self) {
      return wire::InvalidField(
          absl::StrCat(mesh.prefix, ": node '", mesh.nodes[mesh.self], "' is its own peer"));
    }
    if (!peers.insert(message.peer).second) {
      return wire::InvalidField(absl::StrCat(mesh.prefix, ": two messages of one batch for node '",
                                             mesh.nodes[message.peer], "'"));
    }
    if (message.bytes.size() > limit_bytes - bytes) {
      return wire::InvalidField(absl::StrCat(mesh.prefix, ": a batch of more than ", limit_bytes,
                                             " B, with ", message.bytes.size(), " B for node '",
                                             mesh.nodes[message.peer], "'"));
    }
    bytes += message.bytes.size();
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckMesh(const Mesh& mesh) {
  if (mesh.prefix.empty()) return wire::InvalidField("a mesh without a prefix");
  if (mesh.self >= mesh.nodes.size()) {
    return wire::InvalidField(absl::StrCat(mesh.prefix, ": own index ", mesh.self, " is not below ",
                                           mesh.nodes.size(), " nodes"));
  }
  std::set<std::string> seen;
  for (const std::string& node : mesh.nodes) {
    if (!seen.insert(node).second) {
      return wire::InvalidField(absl::StrCat(mesh.prefix, ": node '", node, "' is there twice"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBatch(const Mesh& mesh, const Options& options, const Batch& batch) {
  uint64_t bytes = 0;
  DMUON_RETURN_IF_ERROR(CheckMessages(mesh, options.max_batch_bytes, batch.out, bytes));
  return CheckMessages(mesh, options.max_batch_bytes, batch.in, bytes);
}

absl::Status PeerError(absl::StatusCode code, const Mesh& mesh, uint32_t peer,
                       absl::string_view what) {
  return absl::Status(code, absl::StrCat(mesh.prefix, ": node '", mesh.nodes[peer], "' ", what));
}

absl::Status LateError(const Mesh& mesh, uint32_t peer, bool incoming, uint64_t bytes,
                       uint64_t tag) {
  return PeerError(absl::StatusCode::kDeadlineExceeded, mesh, peer,
                   absl::StrCat("did not ", incoming ? "send" : "take", " the ", bytes,
                                " B of batch ", tag, " in time"));
}

}  // namespace dmuon::transport
