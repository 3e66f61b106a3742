// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/step_report.h"

#include <vector>

namespace dmuon::node {

absl::Status RunSlots(SlotThreads& slots, StepReport& report,
                      const std::function<void(size_t, SlotWork&)>& work) {
  std::vector<SlotWork> done(slots.size());
  slots.Run([&](size_t slot) { work(slot, done[slot]); });
  absl::Status first;
  for (const SlotWork& slot : done) {
    first.Update(slot.status);
    report.newton_schulz_calls += slot.calls;
    report.newton_schulz_iterations += slot.iterations;
    report.newton_schulz_flops += slot.flops;
    for (size_t stage = 0; stage < slot.seconds.size(); ++stage) {
      report.stage_seconds[stage] += slot.seconds[stage] / static_cast<double>(done.size());
    }
  }
  return first;
}

}  // namespace dmuon::node
