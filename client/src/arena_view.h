// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The addresses that the trainer sees. A reconnect brings a new arena, but its layout follows from
// the registration alone, so the new one is mapped over the old one and no pointer of the trainer
// moves.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace dmuon::client {

// A range of addresses that shows one arena at a time. Not copyable; unmaps on destruction.
class ArenaView {
 public:
  ArenaView() = default;
  ArenaView(const ArenaView&) = delete;
  ArenaView& operator=(const ArenaView&) = delete;
  ~ArenaView();

  // Shows `bytes` of the memory behind `fd`: the first time anywhere, later in place of what was
  // there. The descriptor may be closed afterwards. INVALID_ARGUMENT when the size differs from the
  // first one's; RESOURCE_EXHAUSTED when the kernel refuses. The old content stays on error.
  absl::Status Show(int fd, uint64_t bytes);

  // Null before the first Show.
  [[nodiscard]] std::byte* base() const { return base_; }

 private:
  std::byte* base_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace dmuon::client
