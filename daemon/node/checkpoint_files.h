// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A checkpoint of a job, as far as its files are in this node's store.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "daemon/checkpoint/store.h"
#include "daemon/node/restore_source.h"

namespace dmuon::node {

class CheckpointFiles final : public RestoreSource {
 public:
  // `store` outlives it; null: node `node_id` keeps no checkpoints, which is an error of Find (FAILED_PRECONDITION).
  CheckpointFiles(const checkpoint::Store* store, std::string node_id, std::string job_id, std::string name);

  [[nodiscard]] std::string name() const override;
  // Its manifest. Errors as of Store::Find.
  [[nodiscard]] absl::StatusOr<Contents> Find() const override;
  // Errors as of ParseManifest and Store::OpenPart.
  [[nodiscard]] absl::StatusOr<Opened> Open(const std::string& contents) const override;

 private:
  const checkpoint::Store* const store_;
  const std::string node_id_;
  const std::string job_id_;
  const std::string name_;
};

// FAILED_PRECONDITION unless the node has a store.
absl::Status CheckStore(const checkpoint::Store* store, const std::string& node_id);

}  // namespace dmuon::node
