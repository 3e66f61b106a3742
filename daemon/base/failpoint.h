// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Faults at exact places, for tests. A daemon that is started with
//
//   DMUON_FAILPOINTS="step.judged=exit@3,NodeService/Step=lose"
//
// dies when it is at step.judged for the third time, as by kill -9, and loses the first answer to NodeService/Step:
//
//   list   := entry ("," entry)*
//   entry  := name "=" action ["@" nth]     nth: 1 and on, 1 without; a name may come several times
//   action := exit                          the process ends at that very place, nothing is cleaned up
//           | lose                          answers only: the call has been carried out, the caller hears UNAVAILABLE
//
// Names are those of kFailpoints, and `Service/Method` for the answers OK of each RPC that the daemon serves. What is
// armed is logged at the start, and again when it strikes. Where nothing is armed a failpoint costs one relaxed load.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace dmuon {

// One a row of kFailpoints, in its order.
enum class Failpoint : uint8_t {
  kStepReduced,
  kStepJudged,
  kStepUnit,
  kStepPublished,
  kStepConcluded,
  kCopyUnit,
  kCopySent,
  kRecoveryFetched,
  kRecoveryPublished,
  kRestoreRead,
  kRestoreApplied,
  kHandoverMet,
  kHandoverGathered,
  kHandoverPublished,
  kHandoverAgreed,
  kHandoverDone,
  kSaveCopied,
  kSaveWriting,
  kSaveWritten,
  kSaveCommitted,
  kGenerationStored,
  kPlanMade,
  kSucceeded,
  kCount,
};

struct FailpointInfo {
  Failpoint point;
  std::string_view name;
  std::string_view where;
};

inline constexpr std::array<FailpointInfo, static_cast<size_t>(Failpoint::kCount)> kFailpoints = {{
    {Failpoint::kStepReduced, "step.reduced", "all gradients of a step are at this node's units"},
    {Failpoint::kStepJudged, "step.judged", "all nodes' verdicts of a step are known here"},
    {Failpoint::kStepUnit, "step.unit", "a unit has its new value, which nobody has been sent"},
    {Failpoint::kStepPublished, "step.published", "this node's part of a step is done, and no other node knows"},
    {Failpoint::kStepConcluded, "step.concluded", "all nodes have done a step, and no worker has been told"},
    {Failpoint::kCopyUnit, "copy.unit", "a unit is in the copy for the buddy"},
    {Failpoint::kCopySent, "copy.sent", "a copy is on its way, and not known to have arrived"},
    {Failpoint::kRecoveryFetched, "recovery.fetched", "a lost node's state is back, and nothing is published"},
    {Failpoint::kRecoveryPublished, "recovery.published", "it is published, and not known to be on all nodes"},
    {Failpoint::kRestoreRead, "restore.read", "all that is restored has been read, and nothing has changed"},
    {Failpoint::kRestoreApplied, "restore.applied", "the state is the restored one, and not known to be on all nodes"},
    {Failpoint::kHandoverMet, "handover.met", "all nodes can hand their state over, and nothing is sent"},
    {Failpoint::kHandoverGathered, "handover.gathered", "this node's new units are here, and not in use"},
    {Failpoint::kHandoverPublished, "handover.published", "they are copied to the buddy, and no other node knows"},
    {Failpoint::kHandoverAgreed, "handover.agreed", "all nodes have everything, and this one has not gone over"},
    {Failpoint::kHandoverDone, "handover.done", "this node has gone over, and the coordinator has not been told"},
    {Failpoint::kSaveCopied, "save.copied", "the state is copied for a checkpoint, and nothing is written"},
    {Failpoint::kSaveWriting, "save.writing", "some of a part is written"},
    {Failpoint::kSaveWritten, "save.written", "a part is there, and no manifest that names it"},
    {Failpoint::kSaveCommitted, "save.committed", "the manifest is there, and nobody has been told"},
    {Failpoint::kGenerationStored, "coordinator.generation_stored", "a generation is on disk, and nothing is planned"},
    {Failpoint::kPlanMade, "coordinator.plan_made", "a plan is made, and no node has been sent it"},
    {Failpoint::kSucceeded, "coordinator.succeeded", "a job has gone over to the next plan, and nobody has been told"},
}};

// As kFailpoints has it.
[[nodiscard]] constexpr std::string_view NameOf(Failpoint point) {
  return kFailpoints[static_cast<size_t>(point)].name;
}

// The environment variable that main() hands over.
inline constexpr const char* kFailpointsVariable = "DMUON_FAILPOINTS";

// Arms what `list` says and nothing else; null or empty: nothing. `services`: full names of those that the daemon
// serves. INVALID_ARGUMENT naming what is wrong, and what there is; nothing is armed then. Before other threads start.
absl::Status ArmFailpoints(const char* list, std::span<const absl::string_view> services);

namespace internal {
inline std::atomic<bool> failpoints_armed = false;
// Counts, and does what is due. True when an answer is to be lost.
bool Strike(std::string_view name);
}  // namespace internal

// The process is at `point`. Any thread.
inline void AtFailpoint(Failpoint point) {
  if (internal::failpoints_armed.load(std::memory_order_relaxed)) internal::Strike(NameOf(point));
}

// Whether the answer OK to a call of `method` ("dmuon.v1.NodeService/Step") is to be lost. Any thread.
inline bool LosesAnswer(std::string_view method) {
  if (!internal::failpoints_armed.load(std::memory_order_relaxed)) return false;
  return internal::Strike(method.substr(method.rfind('.') + 1));
}

}  // namespace dmuon
