// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A plan that is to take the place of the one that a job runs under, with other owners of the same units.
#pragma once

#include <functional>

#include "daemon/node/memory_budget.h"
#include "dmuon/v1/plan.pb.h"

namespace dmuon::node {

struct Successor {
  v1::Plan plan;
  v1::Routes routes;
  // Whether this node can go over to it now; asked by the job's thread.
  std::function<bool()> ready;
  MemoryBudget* budget = nullptr;  // for the new state, beside the old one until the nodes have gone over
};

}  // namespace dmuon::node
