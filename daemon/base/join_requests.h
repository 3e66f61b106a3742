// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Joins that a node wants to make because what it holds has changed, and those that its coordinator has heard. Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>

#include "absl/time/time.h"
#include "wire/mutex.h"

namespace dmuon {

class JoinRequests {
 public:
  // What the node holds has changed.
  void Ask() {
    wire::MutexLock lock(mu_);
    ++asked_;
  }
  // Whether it has since the last Begin.
  [[nodiscard]] bool due() const {
    wire::MutexLock lock(mu_);
    return begun_ < asked_;
  }
  // A Join is about to be composed; the number goes to Heard when it has been answered.
  uint64_t Begin() {
    wire::MutexLock lock(mu_);
    begun_ = asked_;
    return begun_;
  }
  void Heard(uint64_t number) {
    {
      wire::MutexLock lock(mu_);
      heard_ = number;
    }
    changed_.NotifyAll();
  }
  // Waits until the coordinator has heard all that was asked before, but no longer than `patience`; whether it has.
  bool Await(absl::Duration patience) {
    const auto end = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(patience);
    wire::MutexLock lock(mu_);
    const uint64_t wanted = asked_;
    while (heard_ < wanted && changed_.WaitUntil(mu_, end)) {
    }
    return heard_ >= wanted;
  }

 private:
  mutable wire::Mutex mu_;  // leaf lock
  wire::CondVar changed_;
  uint64_t asked_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t begun_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t heard_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace dmuon
