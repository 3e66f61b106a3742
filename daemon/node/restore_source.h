// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What one node has of a state that a job is to be restored from. The state consists of sources of arrays, which all nodes
// number alike; which of them a node has is its own affair. Files of a checkpoint (checkpoint_files.h), or
// what a worker has brought (state_exchange.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/checkpoint/array_source.h"

namespace dmuon::node {

// Where arrays of a state are.
struct SavedSource {
  std::string name;  // of its file, or what else people call it
  std::shared_ptr<const checkpoint::ArraySource> arrays;  // null: nothing is known of them on this node
  bool here = true;    // they can be read on this node
  std::string origin;  // whose it is, for who has to look for it: "node node-1"
  uint64_t count = 0;  // of its arrays
};

// One thread.
class RestoreSource {
 public:
  virtual ~RestoreSource() = default;

  // "checkpoint 'best'", as people call the state; the same on all nodes that restore the same.
  [[nodiscard]] virtual std::string name() const = 0;

  // Which sources the state has; the same on all nodes that know.
  struct Contents {
    std::string id;  // stands for `bytes`; begins with the name, then a blank
    std::string bytes;
  };
  // NOT_FOUND: this node does not know, and takes what another one says; other errors end the restore.
  [[nodiscard]] virtual absl::StatusOr<Contents> Find() const = 0;

  struct Opened {
    uint64_t step = 0;
    std::vector<SavedSource> sources;  // all, in the order of the contents; with arrays those that are here
  };
  // Opens what is here. DATA_LOSS for what is here and damaged, and for contents that are none.
  [[nodiscard]] virtual absl::StatusOr<Opened> Open(const std::string& contents) const = 0;
};

}  // namespace dmuon::node
