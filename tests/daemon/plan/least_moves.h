// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The fewest units that have to leave their slots, exactly, for units of few distinct seconds. Slow and obvious: the
// judge of assignments that keep units in place.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <optional>
#include <span>
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
    std::vector<Counts> contents;
    Counts content(units_.size(), 0);
    List(most * (1 + 1e-12), 0, content, contents);
    std::vector<size_t> weights;
    size_t states = 1;
    for (const size_t units : units_) {
      weights.push_back(states);
      states *= units + 1;
    }
    std::vector<size_t> moves(states, kNever);  // of the slots so far, by state
    moves[0] = 0;
    for (const Counts& had : had_) {
      std::vector<size_t> next(states, kNever);
      for (const Counts& has : contents) {
        size_t leave = 0;
        for (size_t k = 0; k < has.size(); ++k) leave += had[k] - std::min(had[k], has[k]);
        Counts placed(units_.size(), 0);
        for (size_t state = 0; state < states; ++state, Next(placed)) {
          if (moves[state] == kNever) continue;
          size_t after = 0;
          for (size_t k = 0; k < has.size(); ++k) {
            after += weights[k] * std::min(units_[k], placed[k] + has[k]);
          }
          next[after] = std::min(next[after], moves[state] + leave);
        }
      }
      moves = std::move(next);
    }
    if (moves.back() == kNever) return std::nullopt;
    return moves.back();
  }

 private:
  using Counts = std::vector<size_t>;  // units, by size
  static constexpr size_t kNever = std::numeric_limits<size_t>::max();

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

  // The digits of the next state.
  void Next(Counts& placed) const {
    for (size_t k = 0; k < placed.size() && ++placed[k] > units_[k]; ++k) placed[k] = 0;
  }

  std::vector<double> seconds_;  // of each size
  Counts units_;
  std::vector<Counts> had_;  // by slot
};

}  // namespace dmuon::plan
