// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Makes checkpoints of one job, one at a time, on a thread of its own while steps go on: writes this node's part,
// waits for those of the job's other nodes, and then lets the checkpoint exist.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/base/coordinator_link.h"
#include "daemon/checkpoint/image.h"
#include "daemon/checkpoint/manifest.h"
#include "daemon/checkpoint/store.h"
#include "daemon/node/memory_budget.h"
#include "dmuon/v1/coordinator.pb.h"
#include "wire/mutex.h"

namespace dmuon::node {

class Saver {
 public:
  // Both pointers outlive it. `peer_timeout`: how long the other nodes' parts are waited for.
  Saver(std::string node_id, checkpoint::Store* store, CoordinatorLink* link, absl::Duration peer_timeout);
  ~Saver();  // ends what is being written, after waiting for other nodes for a moment only

  struct Save {
    checkpoint::Manifest manifest;  // without its parts
    checkpoint::Image image;
    MemoryBudget::Share share;  // of the image
    bool alone = true;          // no other node has a part
    uint32_t keep = 0;          // automatic checkpoints that stay, of an automatic one
  };
  // Called once, from the saver's thread: the bytes of this node's part, or why there is no new checkpoint. Errors
  // of the store; ABORTED naming a node that failed; DEADLINE_EXCEEDED naming nodes that said nothing, or the coordinator:
  // others may have the checkpoint then, so the part stays (Store::Tidy).
  using Done = std::function<void(const absl::StatusOr<uint64_t>& bytes)>;
  // Not while it is busy.
  void Start(Save save, Done done);
  // Until it is not busy.
  void Finish();

  // Any thread. In words; empty when nothing is being written.
  [[nodiscard]] std::string Progress() const;

 private:
  absl::StatusOr<uint64_t> Run(Save& save);
  absl::StatusOr<std::vector<checkpoint::Part>> Exchange(const checkpoint::Manifest& manifest,
                                                         const absl::StatusOr<checkpoint::Part>& mine);
  void SetProgress(std::string text);

  const std::string node_id_;
  checkpoint::Store* const store_;
  CoordinatorLink* const link_;
  const absl::Duration peer_timeout_;
  std::atomic<bool> ending_ = false;
  std::thread thread_;

  mutable wire::Mutex mu_;  // leaf lock
  std::string progress_ ABSL_GUARDED_BY(mu_);
};

// A node's report of its part, or of why it has none.
v1::ReportPartRequest PartReport(const checkpoint::Manifest& manifest, const absl::StatusOr<checkpoint::Part>& part);

}  // namespace dmuon::node
