// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What there is to own: a job's tensors cut into units.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/plan/cover.h"
#include "dmuon/v1/tensor.pb.h"
#include "kernels/optimizer.h"
#include "wire/box.h"

namespace dmuon::plan {

// The part of a tensor that one slot owns.
struct Unit {
  uint32_t tensor;  // index into the job's tensors
  wire::Box box;    // never empty

  friend bool operator==(const Unit&, const Unit&) = default;
};

// Sorted by tensor, then by box; together the units hold every element of the job exactly once.
//
//   matrix optimizers   one unit a matrix: the whole tensor, one of a stack, a row block; blocks that are
//                       interleaved are no boxes, so that all of a matrix's (or of a stack's matrix's) are one unit
//   element-wise        one unit a distinct parameter box when these tile the tensor, so that an
//                       owner can be next to the worker that wants it; the whole tensor otherwise
//
// A tensor without elements has no unit. The job must be valid and its coverage proved.
std::vector<Unit> MakeUnits(const v1::JobSpec& job, ShardsByRank shards);

// What a unit of `tensor` holds, in the order of row_blocks; more than one when they are interleaved. A unit of
// an element-wise optimizer counts as one matrix, rows of its first dimension.
std::vector<kernels::MatrixShape> MatricesOf(const v1::Tensor& tensor, const wire::Box& unit);

}  // namespace dmuon::plan
