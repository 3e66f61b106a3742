// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What a checkpoint is made of: arrays of fp32, each a box of a tensor's master weight or of its optimizer's
// state, and what belongs to it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "wire/box.h"

namespace dmuon::checkpoint {

// The quantity of the fp32 master weight; all others are names of kernels::StateTensors.
inline constexpr char kWeight[] = "weight";

struct Entry {
  std::string tensor;                 // its name in the job
  std::vector<int64_t> tensor_shape;  // global
  std::string optimizer;              // of its group, for people: "muon", "normuon", "adamw", ...
  uint64_t updates = 0;               // that the optimizer has applied to it
  std::string quantity;
  wire::Box box;  // of the unit that it belongs to
  // State that is not shaped as the tensor (norms of rows, a basis) belongs to one of the unit's matrices, by
  // number. -1: the values are those of `box`, row-major, and `shape` is its lengths.
  int matrix = -1;
  std::vector<int64_t> shape;

  [[nodiscard]] uint64_t elements() const;
  // Unique within a checkpoint: "layers.0.wq/momentum", with "[0:64, 0:32]" behind it where the box is not the
  // whole tensor, and "#2" for matrix 2.
  [[nodiscard]] std::string Key() const;

  friend bool operator==(const Entry&, const Entry&) = default;
};

// INVALID_ARGUMENT naming the thing, the number and the bound. Of others neither elements() nor Key() may be asked.
absl::Status ValidateEntry(const Entry& entry);

}  // namespace dmuon::checkpoint
