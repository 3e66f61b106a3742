// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Units on slots, and what improves them: exchanges of a few units between two slots.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "daemon/plan/ownership.h"

namespace dmuon::plan {

// What units take where. When a unit's wire bytes are the same for every node, they are part of its
// base, and the costs are uniform.
class Costs {
 public:
  explicit Costs(const Problem& problem);

  [[nodiscard]] size_t units() const { return base_.size(); }
  [[nodiscard]] size_t slots() const { return node_of_.size(); }
  [[nodiscard]] bool uniform() const { return uniform_; }
  // Seconds on the cheapest node, and on the node of `slot`.
  [[nodiscard]] double Base(size_t unit) const { return base_[unit]; }
  [[nodiscard]] std::span<const double> bases() const { return base_; }
  [[nodiscard]] double On(size_t unit, size_t slot) const;
  // 0 without a cap.
  [[nodiscard]] int64_t Bytes(size_t unit) const { return cap() > 0 ? problem_.bytes[unit] : 0; }
  [[nodiscard]] int64_t cap() const { return problem_.slot_bytes; }
  // Longest first; ties by bytes, then by unit.
  [[nodiscard]] bool Before(size_t a, size_t b) const;
  // Nothing tells these slots, or units, apart but their numbers.
  [[nodiscard]] bool Interchangeable(size_t slot, size_t other) const {
    return uniform_ || node_of_[slot] == node_of_[other];
  }
  [[nodiscard]] bool Alike(size_t a, size_t b) const;

 private:
  const Problem& problem_;
  std::vector<size_t> node_of_;  // by slot
  std::vector<double> base_;
  bool uniform_ = true;
};

class Packing {
 public:
  // Empty slots. `homes` has the slot where each unit would rather be, or kNoSlot; empty where that does not matter.
  // `costs` and `homes` must outlive it.
  explicit Packing(const Costs& costs, std::span<const size_t> homes = {});

  [[nodiscard]] bool Fits(size_t unit, size_t slot) const;
  // RESOURCE_EXHAUSTED/LIMIT, naming the room there is, when it does not fit.
  [[nodiscard]] absl::Status CheckRoom(size_t unit, size_t slot) const;
  void Add(size_t unit, size_t slot);
  // Adds each of `units`, in their order, where it ends first among the slots with room.
  //   RESOURCE_EXHAUSTED/LIMIT  no slot has room for one of them
  absl::Status AddWhereFirst(std::span<const size_t> units);
  // Each on the slot where it ends last, but not after `most` seconds (best fit of bin packing).
  // False, and a part added, when one finds none.
  [[nodiscard]] bool AddUnder(std::span<const size_t> units, double most);

  // Exchanges units between the fullest slot and another, until no slot takes longer than `target`
  // seconds, no exchange helps, or kMaxSearchWork is spent. Never makes the makespan larger.
  // Of exchanges that are as good it takes that which leaves most units at home, or moves fewest where homes do not
  // matter.
  void Search(double target);
  // Exchanges units between slots of which one has a unit whose home is the other, so that more units are at home and
  // neither slot takes longer than `target` seconds, until there is no such exchange or kMaxSearchWork is spent.
  void Return(double target);
  // Units that have a home and are elsewhere.
  [[nodiscard]] size_t UnitsAway() const;
  [[nodiscard]] double makespan() const { return by_load_.rbegin()->first; }
  [[nodiscard]] std::vector<size_t> SlotOf() const;

 private:
  // At most this many units go each way in one exchange.
  static constexpr size_t kMaxBundle = 3;
  // Bundles that a slot offers: enough for all of 20 units that differ.
  static constexpr size_t kMaxBundles = 1'500;
  // Pairs of bundles looked at in one search: some 0.3 s.
  static constexpr size_t kMaxSearchWork = 20'000'000;

  // Some units of one slot.
  struct Bundle {
    double seconds = 0.0;  // sum of the bases
    int64_t bytes = 0;
    std::array<size_t, kMaxBundle> units{};
    size_t size = 0;
    int moved = 0;    // sum of Moved
    size_t next = 0;  // where in its slot's list a further unit may be
  };
  // Bundles of one slot, also the empty one: by `moved`, then by seconds.
  struct Offer {
    std::vector<Bundle> bundles;
    std::array<size_t, kMaxBundle + kMaxBundle + 2> begin{};  // by `moved`, from -kMaxBundle; the last is the end
  };
  struct Exchange {
    double worst;          // the larger of both slots afterwards, or the target if that is larger
    int moved = 0;         // sum of Moved
    double seconds = 0.0;  // that the fuller slot loses
    size_t other = kNoSlot;
    Bundle give = {};  // from the fuller slot
    Bundle take = {};  // from the other
  };

  // Moves the fullest slot's longest unit to the emptiest slot if there is room and no exchange can do enough.
  [[nodiscard]] bool Shed(double target);
  [[nodiscard]] bool Improve(double target);
  [[nodiscard]] bool Away(size_t unit, size_t slot) const {
    return !homes_.empty() && homes_[unit] != kNoSlot && homes_[unit] != slot;
  }
  // By how much the units away from home become more when `unit` goes; 1 where homes do not matter.
  [[nodiscard]] int Moved(size_t unit, size_t from, size_t to) const;
  [[nodiscard]] std::vector<size_t> Offered(size_t slot, size_t to) const;
  void List(size_t slot, size_t to, Offer& offer) const;
  void Look(size_t full, size_t other, double target, Exchange& best);
  void Consider(size_t full, size_t other, double target, const Bundle& give, const Bundle& take,
                Exchange& best);
  void Apply(size_t full, const Exchange& exchange);
  [[nodiscard]] double On(const Bundle& bundle, size_t slot) const;
  void Insert(size_t unit, size_t slot);
  void SetLoad(size_t slot, double load);

  const Costs* costs_;
  std::span<const size_t> homes_;
  std::vector<std::vector<size_t>> units_;  // of each slot, as Before orders them
  std::vector<double> loads_;               // seconds
  std::vector<int64_t> bytes_;
  std::set<std::pair<double, size_t>> by_load_;  // every slot
  Offer give_, take_;                            // of the pair that is looked at
  size_t work_ = 0;
};

}  // namespace dmuon::plan
