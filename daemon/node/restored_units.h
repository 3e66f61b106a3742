// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What a node's units are to become in a restore, beside what they are until all nodes have all of theirs.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "daemon/node/array_transfers.h"
#include "daemon/node/owned_state.h"
#include "daemon/node/saved_job.h"
#include "daemon/node/slot_threads.h"
#include "daemon/node/unit_values.h"

namespace dmuon::node {

// The job's thread only.
class RestoredUnits {
 public:
  using States = std::vector<std::unique_ptr<OwnedState>>;  // by slot
  // Both outlive it.
  RestoredUnits(const SavedJob* saved, const States* states);

  // All that is on this node, every slot its own units. Once. Errors of SavedJob::Read, the first by slot.
  absl::Status ReadHere(SlotThreads& slots);
  // An array that came from another node, to all units that have something of it.
  void Take(const ArrayRef& array, std::span<const float> values);
  // The state becomes this.
  void Apply();

 private:
  struct Place {
    size_t slot = 0;
    size_t unit = 0;
    UnitArray array;
  };
  absl::Status ReadUnit(size_t slot, size_t unit);

  const SavedJob* const saved_;
  const States* const states_;
  std::vector<std::vector<UnitValues>> values_;          // by slot, by unit
  std::map<ArrayRef, std::vector<Place>> from_others_;  // what is not on this node
};

}  // namespace dmuon::node
