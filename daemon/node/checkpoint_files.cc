// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/checkpoint_files.h"

#include <array>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/sha256.h"
#include "daemon/checkpoint/manifest.h"
#include "wire/error.h"

namespace dmuon::node {

absl::Status CheckStore(const checkpoint::Store* store, const std::string& node_id) {
  if (store != nullptr) return absl::OkStatus();
  return wire::Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_CHECKPOINT,
                     absl::StrCat("node '", node_id, "' keeps no checkpoints; start dmuond with --checkpoint-dir"));
}

CheckpointFiles::CheckpointFiles(const checkpoint::Store* store, std::string node_id, std::string job_id, std::string name)
    : store_(store), node_id_(std::move(node_id)), job_id_(std::move(job_id)), name_(std::move(name)) {}

std::string CheckpointFiles::name() const { return absl::StrCat("checkpoint '", name_, "'"); }

absl::StatusOr<RestoreSource::Contents> CheckpointFiles::Find() const {
  DMUON_RETURN_IF_ERROR(CheckStore(store_, node_id_));
  DMUON_ASSIGN_OR_RETURN(const checkpoint::Manifest manifest, store_->Find(job_id_, name_));
  Contents contents;
  contents.bytes = checkpoint::ToJson(manifest);
  contents.id = absl::StrCat(name(), " of step ", manifest.step, " (",
                             Sha256Hex(std::array{contents.bytes}).substr(0, 16), ")");
  return contents;
}

absl::StatusOr<RestoreSource::Opened> CheckpointFiles::Open(const std::string& contents) const {
  DMUON_ASSIGN_OR_RETURN(const checkpoint::Manifest manifest, checkpoint::ParseManifest(contents));
  if (manifest.job_id != job_id_ || manifest.name != name_) {
    return wire::Error(absl::StatusCode::kDataLoss, v1::ERROR_REASON_CHECKPOINT,
                       absl::StrCat("another node's manifest is of checkpoint ", manifest.name, " of job ", manifest.job_id,
                                    ", must be ", name_, " of ", job_id_));
  }
  Opened opened;
  opened.step = manifest.step;
  for (const checkpoint::Part& part : manifest.parts) {
    absl::StatusOr<std::unique_ptr<checkpoint::ArraySource>> arrays = store_->OpenPart(manifest, part);
    if (!arrays.ok() && !absl::IsNotFound(arrays.status())) return arrays.status();
    SavedSource& source = opened.sources.emplace_back();
    source.name = part.file;
    source.origin = absl::StrCat("node ", part.node);
    source.count = part.entries;
    source.here = arrays.ok();
    if (arrays.ok()) source.arrays = *std::move(arrays);
  }
  return opened;
}

}  // namespace dmuon::node
