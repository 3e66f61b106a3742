// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Where two registrations of one job part ways, in words, for the people who have to mend it.
#pragma once

#include <string>

#include "dmuon/v1/coordinator.pb.h"
#include "dmuon/v1/tensor.pb.h"

namespace dmuon::coordinator {

// The first difference in the order of the specification, such as "tensor 3 is 'b' here and 'c'
// there" or "tensor 'w': shape: 8, 4 here and 8, 5 there"; `here` and `there` name the two sides.
// Something in words even when only unknown fields differ. Not for equal specifications.
std::string SpecDifference(const v1::JobSpec& a, const std::string& here, const v1::JobSpec& b,
                           const std::string& there);

// The first tensor whose shard differs, by name. The two have the same tensors.
std::string ShardDifference(const v1::JobSpec& job, const v1::RegisterWorkerRequest& now,
                            const v1::RegisterWorkerRequest& before);

}  // namespace dmuon::coordinator
