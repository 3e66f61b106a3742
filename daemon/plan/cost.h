// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The price of a unit: estimated seconds of one step on the slot that owns it, by formula. Plans
// compare prices with each other, so their ratios matter more than their size.
#pragma once

#include <cstdint>
#include <vector>

#include "dmuon/v1/tensor.pb.h"
#include "kernels/optimizer.h"

namespace dmuon::plan {

// Speed of one slot. The defaults are those of one core of a server CPU: a few tens of GFLOP/s of
// fp32 matrix products, and a core's share of the memory bandwidth. A lower flops_per_second makes
// matrices weigh more against element-wise units.
struct SlotSpeed {
  double flops_per_second = 5e10;
  // In double, on matrices that the core's cache holds.
  double small_flops_per_second = 5e9;
  double bytes_per_second = 8e9;
  // Bookkeeping of any unit, so that a thousand tiny ones are not free.
  double seconds_per_unit = 5e-6;
};

// What a byte between two nodes costs the slot that owns the unit: Ethernet of 10 Gbit/s, near enough.
// More keeps units next to the workers that hold them, on slots that are fuller.
inline constexpr double kSecondsPerWireByte = 1e-9;

// Newton-Schulz, or top-k at its largest rank, plus the bytes that the step reads and writes, of all that a unit
// holds (MatricesOf). No matrix is empty. Depends on shapes and optimizer alone.
double UnitSeconds(const v1::Group& group, const std::vector<kernels::MatrixShape>& matrices,
                   const SlotSpeed& speed = {});

// Weight and optimizer state of a unit, in fp32.
int64_t StateBytes(const v1::Group& group, const std::vector<kernels::MatrixShape>& matrices);

// What a unit takes on its owner: weight, staged gradient and optimizer state, in fp32.
int64_t UnitBytes(const v1::Group& group, const std::vector<kernels::MatrixShape>& matrices);

}  // namespace dmuon::plan
