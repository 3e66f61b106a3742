// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What becomes of a job when a node has lost its state: the same conclusion on every node, from the reports that all
// of them have. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/node/round.h"
#include "dmuon/v1/peer.pb.h"
#include "dmuon/v1/plan.pb.h"

namespace dmuon::node {

// The node that `self` keeps copies for; nullopt: without replication.
std::optional<uint32_t> WardOf(const v1::Plan& plan, uint32_t self);

// Of jobs with replication; the plans have buddies.
//
// By node: whose process has no state although there has been one. A node that is at nothing because the job is new is
// not lost: then no other node is beyond the initial parameters, and its buddy has no copy of them. (When all nodes have
// loaded them, and only then, all have copies, and workers may have been told to begin.)
std::vector<bool> LostNodes(const v1::Plan& plan, const Reports& reports);
bool AnyIsLost(const v1::Plan& plan, const Reports& reports);
// A node that owns nothing under `plan`, and has no buddy, has nothing to lose: where its process has begun anew while all
// others are at one state, and no recovery is to be ended, its report becomes as theirs are. Whether there was one.
bool PassOver(const v1::Plan& plan, Reports& reports);
// Whether all nodes must go to a common step before anything else: one is lost, or a recovery has reached some only, or
// broke off, so that some may be at its step and some not yet.
bool NeedRecovery(const v1::Plan& plan, const Reports& reports);
// The largest number of recoveries that a node has begun.
uint64_t MostRecoveries(const Reports& reports);

// The newest step whose state all nodes have: a lost one at its buddy, another one in use or kept.
//   DATA_LOSS/STATE_LOST  there is none, naming the nodes that are lost and what there is of them
absl::StatusOr<uint64_t> CommonStep(const v1::Plan& plan, const Reports& reports, const std::vector<bool>& lost);

// Whether all nodes are to copy their state before the step to `target` changes it: none has, and some have no copy of it,
// because connections broke while it was on its way. Of copies that are on their way it is true as well.
bool LackCopies(const Reports& reports, uint64_t target);

// What the gradients of that step said, of a node whose state in use it is; cleared when there is none.
v1::StepVerdict VerdictOf(const Reports& reports, uint64_t step);

// Whether a node that is at `reached` now, and was at `was_at`, can go on to `target`. FAILED_PRECONDITION/ROLLED_BACK
// naming the steps that are lost when it is not the next one. ABORTED/PEER_LOST when it is, but the node had been there
// and only wanted to know that all are: its workers need not have called for that step. `reports` are those from before.
absl::Status CheckNext(const v1::Plan& plan, const Reports& reports, uint64_t target, uint64_t was_at, uint64_t reached);

// "node-1, node-2".
std::string NamesOf(const v1::Plan& plan, const std::vector<bool>& nodes);

}  // namespace dmuon::node
