// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The node's bound on memory that jobs may take: arenas, masters, optimizer state, staging.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "wire/mutex.h"

namespace dmuon::node {

class MemoryBudget {
 public:
  explicit MemoryBudget(uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // Bytes taken from a budget, given back on destruction. Movable.
  class Share {
   public:
    Share() = default;
    Share(MemoryBudget* budget, uint64_t bytes) : budget_(budget), bytes_(bytes) {}
    Share(Share&& other) noexcept
        : budget_(std::exchange(other.budget_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    Share& operator=(Share&& other) noexcept {
      if (this != &other) {
        Release();
        budget_ = std::exchange(other.budget_, nullptr);
        bytes_ = std::exchange(other.bytes_, 0);
      }
      return *this;
    }
    ~Share() { Release(); }
    [[nodiscard]] uint64_t bytes() const { return bytes_; }

   private:
    void Release() {
      if (budget_ != nullptr) budget_->Return(bytes_);
      budget_ = nullptr;
    }
    MemoryBudget* budget_ = nullptr;
    uint64_t bytes_ = 0;
  };

  // RESOURCE_EXHAUSTED/LIMIT naming `what`, what it needs, what is left and the limit.
  absl::StatusOr<Share> Take(uint64_t bytes, std::string_view what);

  [[nodiscard]] uint64_t limit_bytes() const { return limit_bytes_; }

 private:
  void Return(uint64_t bytes) {
    wire::MutexLock lock(mu_);
    used_bytes_ -= bytes;
  }

  const uint64_t limit_bytes_;
  wire::Mutex mu_;  // leaf lock
  uint64_t used_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace dmuon::node
