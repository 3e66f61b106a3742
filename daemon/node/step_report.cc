// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/step_report.h"

#include <vector>

namespace dmuon::node {

void NewtonSchulzWork::Add(const NewtonSchulzWork& other) {
  calls += other.calls;
  iterations += other.iterations;
  flops += other.flops;
  recomputed += other.recomputed;
  for (size_t i = 0; i < by_method.size(); ++i) by_method[i] += other.by_method[i];
}

absl::Status RunSlots(SlotThreads& slots, StepReport& report,
                      const std::function<void(size_t, SlotWork&)>& work) {
  std::vector<SlotWork> done(slots.size());
  slots.Run([&](size_t slot) { work(slot, done[slot]); });
  absl::Status first;
  report.slot_seconds.resize(done.size());
  for (size_t i = 0; i < done.size(); ++i) {
    const SlotWork& slot = done[i];
    first.Update(slot.status);
    for (const Stage stage : {Stage::kOrthogonalize, Stage::kApply}) {
      report.slot_seconds[i] += slot.seconds[static_cast<size_t>(stage)];
    }
    report.newton_schulz.Add(slot.newton_schulz);
    for (size_t stage = 0; stage < slot.seconds.size(); ++stage) {
      report.stage_seconds[stage] += slot.seconds[stage] / static_cast<double>(done.size());
    }
  }
  return first;
}

}  // namespace dmuon::node
