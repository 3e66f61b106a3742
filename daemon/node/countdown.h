// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace dmuon::node {

// For each of several things, how many parts of it are not done yet.
class Countdown {
 public:
  // One more part of `thing`; before the first Reset.
  void Add(size_t thing) {
    if (thing >= parts_.size()) parts_.resize(thing + 1, 0);
    ++parts_[thing];
  }
  // No part of anything is done. While no other thread is here.
  void Reset() {
    if (left_ == nullptr) left_ = std::make_unique<std::atomic<uint32_t>[]>(parts_.size());
    for (size_t i = 0; i < parts_.size(); ++i) left_[i] = parts_[i];
  }
  // One part of `thing` is done. True for the last: then this thread sees what all others did to it.
  bool Done(size_t thing) { return left_[thing].fetch_sub(1, std::memory_order_acq_rel) == 1; }

 private:
  std::vector<uint32_t> parts_;
  std::unique_ptr<std::atomic<uint32_t>[]> left_;
};

}  // namespace dmuon::node
