// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Where two registrations of one job part ways, in words, for the people who have to mend it.
#pragma once

#include <string>

#include "dmuon/v1/coordinator.pb.h"
#include "dmuon/v1/tensor.pb.h"

namespace dmuon::coordinator {

// The first difference, groups before tensors before the rest, such as "tensor 3 is 'b' for rank 0
// and 'c' for rank 1" or "tensor 'w': shape is [8, 4] for rank 0 and [8, 5] for rank 1"; `here` and
// `there` name the two sides. Something in words even when only unknown fields differ. Not for
// equal specifications.
std::string SpecDifference(const v1::JobSpec& a, const std::string& here, const v1::JobSpec& b,
                           const std::string& there);

// The first tensor whose shard differs, by name. The two have the same tensors.
std::string ShardDifference(const v1::JobSpec& job, const v1::RegisterWorkerRequest& now,
                            const v1::RegisterWorkerRequest& before);

}  // namespace dmuon::coordinator
