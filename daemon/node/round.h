// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What the nodes of a job conclude from one report of each: which step is done, by whom, whether it may be, and what
// its gradients say. Pure functions of the reports, by node of the plan, which every node has alike; so all come to the
// same conclusion without a leader. step_pipeline.h acts on them. No state, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/node/step_report.h"
#include "dmuon/v1/peer.pb.h"
#include "dmuon/v1/plan.pb.h"
#include "dmuon/v1/tensor.pb.h"

namespace dmuon::node {

using Reports = std::vector<v1::PeerReport>;  // by node, the own one among them; never empty

// Where the state is with the initial parameters; step k takes it to k + kLoaded.
inline constexpr uint64_t kLoaded = 1;

// What is wrong on this node, for the others; OK: nothing.
void SetStatus(const absl::Status& status, v1::PeerReport& report);

// The least that a node wants. It is done first: a node that is a step ahead helps the others to where it is.
uint64_t LowestTarget(const Reports& reports);
// Whether a node has not reached `target`, which it takes work to get to.
bool AnyIsBehind(const Reports& reports, uint64_t target);
// Whether the values of `target` go round, for a node whose own verdict is `mine`. Not those of a skipped step; nor when
// a node has gone beyond, because all nodes had them before, and that node has others by now.
bool Publishes(const Reports& reports, uint64_t target, const v1::StepVerdict& mine);
// Whether a node has been given gradients anew that it had sent before: all start over with them.
bool AnyResubmitted(const Reports& reports);
// The generation that all nodes are ready to go over to, from the same state and with nothing wrong; 0: none.
uint64_t AgreedSuccessor(const Reports& reports);
// Whether only nodes without workers are not known to be ready to, while nobody wants anything else: they are told of it as
// everybody, and do not see it before they are done with the meeting that they are in.
bool FollowersLackSuccessor(const Reports& reports);
bool AllRestore(const Reports& reports);
// Where all nodes with workers restore, and one without does not yet: what they restore, in its own words; else empty.
std::string RestoreToFollow(const Reports& reports);
// What the workers said about the step to `target`, for a node without; null: no node has heard it.
const v1::StepSettings* SettingsOf(const Reports& reports, uint64_t target);

// Whether the round to `target`, the lowest one, can be. DATA_LOSS/STATE_LOST: nodes are more than a step apart,
// one has nothing where another has gone on from the initial parameters, or workers count on state that none has.
// FAILED_PRECONDITION: a gradient is missing where none may be, other hyper-parameters, one restores while another
// steps. Else the first error that a node reports.
absl::Status CheckReports(const v1::JobSpec& job, const v1::Plan& plan, const Reports& reports, uint64_t target);
// The first error of a node that restores; FAILED_PRECONDITION/CHECKPOINT when not all mean the same checkpoint, naming two
// that do not. A node that has no manifest of the name means that of the others.
absl::Status CheckRestore(const v1::JobSpec& job, const v1::Plan& plan, const Reports& reports);

// The verdict of a node that has applied the step, null when none has: it must not be found twice.
const v1::StepVerdict* VerdictOfDone(const Reports& reports, uint64_t target);
// The nodes' own verdicts together, in node order: one skips, all skip.
v1::StepVerdict MergeVerdicts(const Reports& reports);
// What to do with the gradients, and how much of them to take. Not finite `sum_squares` must skip.
Verdict Conclude(const v1::JobSpec& job, const v1::StepVerdict& verdict);

// What a node wants to have saved after the round to `target`: the first one's wish; empty: nothing.
std::string NameToSave(const Reports& reports, uint64_t target);

}  // namespace dmuon::node
