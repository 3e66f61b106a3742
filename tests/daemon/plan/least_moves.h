// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The fewest units that have to leave their slots, exactly, for units of few distinct seconds. Slow and obvious: the
// judge of assignments that keep units in place.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "daemon/plan/ownership.h"

namespace dmuon::plan {

class LeastMoves {
 public:
  // Units of `costs` seconds, each with its former slot or kNoSlot.
  LeastMoves(std::span<const double> costs, std::span<const size_t> previous, size_t slots) {
    std::map<double, size_t> size_of;
    for (const double seconds : costs) size_of.emplace(seconds, 0);
    for (auto& [seconds, size] : size_of) {
      size = seconds_.size();
      seconds_.push_back(seconds);
    }
    units_.assign(seconds_.size(), 0);
    had_.assign(slots, units_);
    for (size_t i = 0; i < costs.size(); ++i) {
      ++units_[size_of[costs[i]]];
      if (previous[i] != kNoSlot) ++had_[previous[i]][size_of[costs[i]]];
    }
  }

  // With no slot above `most` seconds. Nothing if that cannot be.
  //
  // Dynamic programming over the slots; a state is how many units of each size have a place, as digits. Only contents
  // that leave no room for a further unit are tried: where they have more places than there are units, some stay empty,
  // and never those of units that were there. A size of which all have a place counts no further.
  std::optional<size_t> Of(double most) const {
    const double limit = most * (1 + 1e-12);
    std::vector<Counts> contents;
    Counts content(units_.size(), 0);
    List(limit, 0, content, contents);
    std::unordered_map<size_t, size_t> moves = {{0, 0}};  // of the slots so far, by state
    for (size_t slot = 0; slot < had_.size(); ++slot) {
      const double room = static_cast<double>(had_.size() - slot) * limit;
      std::unordered_map<size_t, size_t> next;
      for (const auto& [state, moved] : moves) {
        const Counts placed = PlacedIn(state);
        if (SecondsWithout(placed) > room) continue;
        for (const Counts& has : contents) {
          const auto [found, added] = next.emplace(StateAfter(placed, has), moved + Leaving(slot, has));
          if (!added) found->second = std::min(found->second, moved + Leaving(slot, has));
        }
      }
      moves = std::move(next);
    }
    const auto all = moves.find(StateAfter(units_, units_));
    if (all == moves.end()) return std::nullopt;
    return all->second;
  }

 private:
  using Counts = std::vector<size_t>;  // units, by size

  // Every content of a slot of `room` seconds, of sizes from `size`, that has no room for one more unit.
  void List(double room, size_t size, Counts& content, std::vector<Counts>& contents) const {
    if (size == units_.size()) {
      for (size_t k = 0; k < size; ++k) {
        if (content[k] < units_[k] && seconds_[k] <= room) return;
      }
      contents.push_back(content);
      return;
    }
    for (size_t units = 0; units <= units_[size]; ++units) {
      const double left = room - static_cast<double>(units) * seconds_[size];
      if (left < 0.0) break;
      content[size] = units;
      List(left, size + 1, content, contents);
    }
    content[size] = 0;
  }

  double SecondsWithout(const Counts& placed) const {
    double seconds = 0.0;
    for (size_t k = 0; k < placed.size(); ++k) seconds += static_cast<double>(units_[k] - placed[k]) * seconds_[k];
    return seconds;
  }

  Counts PlacedIn(size_t state) const {
    Counts placed;
    for (const size_t units : units_) {
      placed.push_back(state % (units + 1));
      state /= units + 1;
    }
    return placed;
  }

  size_t StateAfter(const Counts& placed, const Counts& has) const {
    size_t state = 0;
    for (size_t k = units_.size(); k-- > 0;) state = state * (units_[k] + 1) + std::min(units_[k], placed[k] + has[k]);
    return state;
  }

  size_t Leaving(size_t slot, const Counts& has) const {
    size_t units = 0;
    for (size_t k = 0; k < has.size(); ++k) units += had_[slot][k] - std::min(had_[slot][k], has[k]);
    return units;
  }

  std::vector<double> seconds_;  // of each size
  Counts units_;
  std::vector<Counts> had_;  // by slot
};

}  // namespace dmuon::plan
