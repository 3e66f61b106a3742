// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A job's groups as tables of stages: a variant's row, with what the group says otherwise.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "dmuon/v1/tensor.pb.h"
#include "kernels/optimizer.h"

namespace dmuon::plan {

// Of a group that wire::ValidateJobSpec accepted.
kernels::Optimizer ToOptimizer(const v1::Group& group);

// In the order of the job's groups.
std::vector<kernels::Optimizer> OptimizersOf(const v1::JobSpec& job);

// INVALID_ARGUMENT naming the group where its settings do not fit each other, or mean nothing to its variant.
absl::Status ValidateOptimizers(const v1::JobSpec& job);

}  // namespace dmuon::plan
