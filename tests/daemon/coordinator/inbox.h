// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Where a test waits for what another thread delivers.
#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <utility>

#include "wire/mutex.h"

namespace dmuon::coordinator {

template <typename Item>
class Inbox {
 public:
  void Put(Item item) {
    wire::MutexLock lock(mu_);
    items_.push_back(std::move(item));
    arrived_.NotifyAll();
  }
  // The next item; nothing after half a minute, which no healthy run comes near.
  std::optional<Item> Take() {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    wire::MutexLock lock(mu_);
    while (items_.empty()) {
      if (!arrived_.WaitUntil(mu_, deadline)) return std::nullopt;
    }
    Item item = std::move(items_.front());
    items_.pop_front();
    return item;
  }
  [[nodiscard]] bool empty() {
    wire::MutexLock lock(mu_);
    return items_.empty();
  }

 private:
  wire::Mutex mu_;
  wire::CondVar arrived_;
  std::deque<Item> items_ ABSL_GUARDED_BY(mu_);
};

}  // namespace dmuon::coordinator
