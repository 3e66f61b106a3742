// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Something that has arrays of a state: a part of a checkpoint, or memory.
#pragma once

#include <span>
#include <vector>

#include "absl/status/status.h"
#include "daemon/checkpoint/entry.h"

namespace dmuon::checkpoint {

// Any number of threads.
class ArraySource {
 public:
  virtual ~ArraySource() = default;
  // All that it has; valid, and never changed.
  [[nodiscard]] virtual const std::vector<Entry>& entries() const = 0;
  // All values of entry `i`, row-major over its shape; `to` has exactly its elements. DATA_LOSS naming what has it, and
  // its key, when they are not what was saved, or cannot be read.
  [[nodiscard]] virtual absl::Status Read(size_t i, std::span<float> to) const = 0;
};

}  // namespace dmuon::checkpoint
