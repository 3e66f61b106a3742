// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The smallest makespan there is, exactly, for units of few distinct sizes. Slow and obvious: the
// judge of fast assignments.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

namespace dmuon::plan {

// Units of one size.
struct Size {
  double seconds;
  size_t units;
};

class ExactMakespan {
 public:
  explicit ExactMakespan(const std::vector<Size>& sizes) : sizes_(sizes) {
    for (const Size& size : sizes_) {
      weights_.push_back(states_);
      states_ *= size.units + 1;
    }
  }

  // The smallest sum of a slot's units, as one of all sums that a slot can have, that is enough for
  // all units to find a place.
  double Of(size_t slots) {
    std::vector<double> sums;
    for (size_t state = 0; state < states_; ++state) sums.push_back(SecondsOf(state));
    std::sort(sums.begin(), sums.end());
    return *std::partition_point(sums.begin(), sums.end(),
                                 [&](double sum) { return SlotsUnder(sum) > slots; });
  }

 private:
  static constexpr size_t kNever = std::numeric_limits<size_t>::max();

  size_t CountOf(size_t state, size_t k) const {
    return state / weights_[k] % (sizes_[k].units + 1);
  }

  double SecondsOf(size_t state) const {
    double seconds = 0.0;
    for (size_t k = 0; k < sizes_.size(); ++k) {
      seconds += static_cast<double>(CountOf(state, k)) * sizes_[k].seconds;
    }
    return seconds;
  }

  bool Contains(size_t state, size_t part) const {
    for (size_t k = 0; k < sizes_.size(); ++k) {
      if (CountOf(part, k) > CountOf(state, k)) return false;
    }
    return true;
  }

  // How many slots hold all units when none may take longer than `most`: by dynamic programming
  // over the numbers of units of each size that are left. A state is such numbers, as digits.
  size_t SlotsUnder(double most) const {
    std::vector<size_t> contents;  // of one slot
    for (size_t state = 1; state < states_; ++state) {
      if (SecondsOf(state) <= most * (1 + 1e-12)) contents.push_back(state);
    }
    std::vector<size_t> slots(states_, kNever);
    slots[0] = 0;
    for (size_t state = 1; state < states_; ++state) {
      for (const size_t part : contents) {
        if (part > state) break;
        if (!Contains(state, part)) continue;
        if (slots[state - part] == kNever) continue;
        slots[state] = std::min(slots[state], slots[state - part] + 1);
      }
    }
    return slots.back();
  }

  const std::vector<Size> sizes_;
  std::vector<size_t> weights_;
  size_t states_ = 1;
};

}  // namespace dmuon::plan
