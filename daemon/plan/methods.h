// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// How each matrix is orthogonalised. The choice is part of the plan, so all owners of a matrix agree on its bits.
#pragma once

#include <cstdint>

#include "dmuon/v1/tensor.pb.h"
#include "kernels/optimizer.h"
#include "wire/box.h"

namespace dmuon::plan {

// A box as a matrix: rows of the first dimension, all else in a row. A scalar is 1 x 1.
kernels::MatrixShape MatrixOf(const wire::Box& box);

// What Newton-Schulz works on: the unit as a matrix, or as many lines of its shorter side as the optimizer
// selects.
kernels::MatrixShape OrthogonalizedShape(const kernels::Optimizer& optimizer, const wire::Box& box);

// The largest rank that top-k has on this unit.
int64_t LargestRank(const kernels::Optimizer& optimizer, const wire::Box& box);

// By operation counts: the Gram form where it saves a twentieth or more, at the precision that the group asks
// for. Only for groups with Newton-Schulz.
kernels::Method ChooseMethod(const v1::Group& group, const wire::Box& box);

v1::Method ToProto(const kernels::Method& method);
// Unspecified parts are standard and fp32.
kernels::Method FromProto(const v1::Method& method);

}  // namespace dmuon::plan
