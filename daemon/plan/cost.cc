// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include "daemon/plan/cost.h"

#include <cstdint>

#include "kernels/coefficients.h"

namespace dmuon::plan {
namespace {

// fp32 buffers beside the master weight: momentum; momentum and second moment.
// Of optimizer state, beside the weight.
int StateBuffers(const v1::Group& group) { return group.has_muon() ? 1 : 2; }

}  // namespace

double UnitSeconds(const v1::Group& group, const wire::Box& box, const SlotSpeed& speed) {
  const int64_t elements = box.elements();
  double seconds = speed.seconds_per_unit +
                   kernels::ElementwiseBytes(elements, StateBuffers(group)) / speed.bytes_per_second;
  if (group.has_muon()) {
    const int64_t rows = box.length[0];
    seconds += kernels::NewtonSchulzFlops(rows, elements / rows, group.muon().iterations()) /
               speed.flops_per_second;
  }
  return seconds;
}

int64_t UnitBytes(const v1::Group& group, const wire::Box& box) {
  constexpr int kWeightAndGradient = 2;
  return box.elements() * static_cast<int64_t>(sizeof(float)) * (kWeightAndGradient + StateBuffers(group));
}

}  // namespace dmuon::plan
