// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Checkpoints on disk:
//
//   <root>/<job>/<name>.json                    a manifest: this checkpoint exists
//   <root>/<job>/<part file>.safetensors        what manifests name
//   <root>/<job>/*.tmp                          being written, or left by a crash
//
// A file is written under a temporary name, synced, renamed, and its directory synced; manifests come last. So
// whoever reads sees a former checkpoint or the new one, whole. Several nodes may share one root, or each have its
// own. Names come from clients, so every path is opened beneath the root, by openat2, and follows no link.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/checkpoint/array_source.h"
#include "daemon/checkpoint/files.h"
#include "daemon/checkpoint/image.h"
#include "daemon/checkpoint/manifest.h"

namespace dmuon::checkpoint {

// Told the bytes done and in all; false: give up (CANCELLED).
using Progress = std::function<bool(uint64_t done, uint64_t total)>;

// Thread-safe.
class Store {
 public:
  // Makes the root where it is missing. UNAVAILABLE naming path and cause.
  static absl::StatusOr<std::unique_ptr<Store>> Open(const std::string& root,
                                                     std::shared_ptr<Files> files = DiskFiles());
  ~Store();

  // Checksums and writes this node's part of a checkpoint; on disk when it returns, and part of nothing before
  // Commit. RESOURCE_EXHAUSTED when the file system lacks the room, which is asked first; UNAVAILABLE for other
  // errors; nothing is left behind by any of them. The result's `file` is `<name>.<step>.<generation>.<node>.safetensors`,
  // and another one where a manifest names that already. names.h tells how ids are spelled in file names.
  absl::StatusOr<Part> WritePart(const Manifest& of, const std::string& node, const Image& image,
                                 const Progress& progress);
  // Makes the checkpoint exist, in place of a former one of the name, whose parts go. All nodes may do it, at once.
  // INVALID_ARGUMENT naming the field; UNAVAILABLE, RESOURCE_EXHAUSTED; FAILED_PRECONDITION when a part that this
  // process wrote for it is gone, because a later one of the name was committed meanwhile.
  absl::Status Commit(const Manifest& manifest);
  // Removes a part that was written for a checkpoint that will not be committed. Not one that a manifest names.
  void Discard(const Manifest& of, const Part& part);

  // NOT_FOUND naming the job, the name, and what there is instead; DATA_LOSS.
  [[nodiscard]] absl::StatusOr<Manifest> Find(const std::string& job_id, const std::string& name) const;
  // Sorted by step, then by name. One that cannot be read is left out and logged.
  [[nodiscard]] absl::StatusOr<std::vector<Manifest>> List(const std::string& job_id) const;
  [[nodiscard]] absl::StatusOr<std::vector<std::string>> Jobs() const;

  // A part, whose head has been proved against the manifest. NOT_FOUND naming file and node when it is not here;
  // DATA_LOSS when it is not what the manifest says.
  [[nodiscard]] absl::StatusOr<std::unique_ptr<ArraySource>> OpenPart(const Manifest& manifest, const Part& part) const;
  // Of its parts those that are not here, in their order; nothing is read.
  [[nodiscard]] std::vector<std::string> AbsentFiles(const Manifest& manifest) const;
  // Reads everything that is here: the first error of OpenPart and Read, and NOT_FOUND of the first part that is not here
  // only when all others are as they were saved.
  [[nodiscard]] absl::Status Verify(const Manifest& manifest, const Progress& progress) const;

  // The manifest first, then the parts that no other manifest names. One whose manifest is damaged goes, too.
  // NOT_FOUND; FAILED_PRECONDITION for one of a newer format.
  absl::Status Delete(const std::string& job_id, const std::string& name);
  // Keeps the last `keep` automatic checkpoints of the job, by the time of their manifests, then by step: after going
  // back to an earlier step the new ones are the last, too. 0 keeps all.
  absl::Status Prune(const std::string& job_id, uint32_t keep);
  // Removes what an earlier process of `node` left in the job and nobody can want any more: its temporary files, and its
  // parts that no manifest names and that are out of date. A part that no manifest names here may be named elsewhere, by
  // nodes with roots of their own, since the process may have ended between their Commit and its own. It is out of date when
  // a later checkpoint of its name is here, or, for an automatic one, when `keep` later automatic ones are (as of Prune).
  // Nothing of other nodes, and nothing that this store is writing. Where a manifest cannot be read, all parts stay.
  absl::Status Tidy(const std::string& job_id, const std::string& node, uint32_t keep = 0);

 private:
  struct State;
  explicit Store(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace dmuon::checkpoint
