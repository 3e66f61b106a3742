// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// How each matrix is orthogonalised. The choice is part of the plan, so all owners of a matrix agree on its bits.
#pragma once

#include <cstdint>
#include <vector>

#include "dmuon/v1/tensor.pb.h"
#include "kernels/optimizer.h"

namespace dmuon::plan {

// What Newton-Schulz works on: the matrix, or as many lines of its shorter side as the optimizer selects.
kernels::MatrixShape OrthogonalizedShape(const kernels::Optimizer& optimizer, const kernels::MatrixShape& matrix);

// Both forms, at the precision that the group asks for, or at both, but none that is not proven for its polynomials
// and iterations (kernels::IsProven); only one where there is no Newton-Schulz.
std::vector<kernels::Method> AllowedMethods(const v1::Group& group);

// The largest rank that top-k has on this matrix.
int64_t LargestRank(const kernels::Optimizer& optimizer, const kernels::MatrixShape& matrix);

// By operation counts, where what bf16 leaves in fp32 counts twice: the Gram form where it saves a twentieth or more,
// if it is proven; in fp32 unless the group asks for bf16. Where there is no Newton-Schulz, standard fp32, which then
// means nothing.
kernels::Method ChooseMethod(const v1::Group& group, const kernels::MatrixShape& matrix);

v1::Method ToProto(const kernels::Method& method);
// Unspecified parts are standard and fp32.
kernels::Method FromProto(const v1::Method& method);

}  // namespace dmuon::plan
