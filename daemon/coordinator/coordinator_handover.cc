// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Other owners for a job that runs: which nodes are drained, the plan that follows from that, and when it is the current one.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/coordinator/coordinator.h"
#include "daemon/plan/plan.h"
#include "daemon/plan/routes.h"
#include "wire/error.h"

namespace dmuon::coordinator {
namespace {

std::set<std::string> DrainedOf(const v1::Plan& plan) {
  std::set<std::string> drained;
  for (const uint32_t node : plan.drained()) drained.insert(plan.nodes(static_cast<int>(node)));
  return drained;
}

}  // namespace

std::set<std::string> Coordinator::Job::Among(const std::set<std::string>& nodes) const {
  std::set<std::string> among;
  for (const std::string& node : plan->nodes()) {
    if (nodes.contains(node)) among.insert(node);
  }
  return among;
}

bool Coordinator::Job::OwnsNothing(const std::string& node_id) const {
  const auto node = std::find(plan->nodes().begin(), plan->nodes().end(), node_id);
  return node != plan->nodes().end() && plan::OwnsNothing(*plan, static_cast<size_t>(node - plan->nodes().begin()));
}

Outcome Coordinator::Drain(const v1::DrainNodeRequest& request) {
  const std::string& id = request.node_id();
  bool known = members_.contains(id);
  std::set<std::string> drained = drained_;
  if (request.undo()) {
    drained.erase(id);
  } else {
    drained.insert(id);
  }
  for (const auto& [job_id, job] : jobs_) {
    if (!job.plan.has_value() || !job.incarnations.contains(id)) continue;
    known = true;
    if (job.Among(drained).size() < static_cast<size_t>(job.plan->nodes_size())) continue;
    return Fail(wire::Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_NOT_READY,
                            absl::StrCat("node '", id, "' cannot be drained: job '", job_id, "' has no other node that may own its ",
                                         job.plan->units_size(), " units (its nodes: ", absl::StrJoin(job.plan->nodes(), ", "),
                                         "); save a checkpoint instead")));
  }
  if (!known) {
    return Fail(wire::Error(absl::StatusCode::kNotFound, v1::ERROR_REASON_UNKNOWN_NODE,
                            absl::StrCat("no node '", id, "': it is no member, and no job is planned over it")));
  }
  Outcome outcome;
  // Asked for again, what failed is tried again.
  for (auto& [job_id, job] : jobs_) job.handover_failure.clear();
  if (drained == drained_) return outcome;
  drained_ = std::move(drained);
  outcome.reason = absl::StrCat("node ", id, request.undo() ? " may own units again" : " is drained: it is to own nothing");
  return outcome;
}

bool Coordinator::NeedsReplan(const Job& job) const {
  if (LosesFollower(job)) return true;
  if (!job.plan.has_value() || job.successor.has_value() || !job.released.empty()) return false;
  if (job.ranks.size() < job.spec.world_size()) return false;  // the coordinator has started again: they will come
  if (CanDropFollowers(job) || !FollowersToAdd(job).empty()) return job.handover_failure.empty();
  const std::set<std::string> wanted = ToDrain(job);
  return wanted != DrainedOf(*job.plan) && (job.handover_failure.empty() || wanted != job.refused_drain);
}

bool Coordinator::NeedsReplan() const {
  return std::any_of(jobs_.begin(), jobs_.end(), [&](const auto& job) { return NeedsReplan(job.second); });
}

absl::StatusOr<Coordinator::Successor> Coordinator::MakeSuccessor(const Job& job) const {
  DMUON_RETURN_IF_ERROR(plan::ValidatePlan(job.spec, *job.plan, {}));
  const auto shards = job.Shards();
  if (!shards.has_value()) return absl::InternalError("the workers' shards cannot be read");
  if (CanDropFollowers(job) || !FollowersToAdd(job).empty()) {
    const v1::Plan other = WithOtherFollowers(job, highest_generation_ + 1);
    return Successor{other, Job::RoutesOf(other, *shards)};
  }
  const std::set<std::string> drained = ToDrain(job);
  std::vector<plan::NodeSlots> nodes;
  for (int n = 0; n < job.plan->nodes_size(); ++n) {
    const std::string& id = job.plan->nodes(n);
    const auto member = members_.find(id);
    plan::NodeSlots& node = nodes.emplace_back();
    node.node_id = id;
    node.slots = job.plan->slots(n);
    node.memory_bytes = member == members_.end() ? 0 : member->second.memory_bytes;
    node.drained = drained.contains(id);
    for (int rank = 0; rank < job.plan->rank_nodes_size(); ++rank) {
      if (job.plan->rank_nodes(rank) == static_cast<uint32_t>(n)) node.ranks.push_back(static_cast<uint32_t>(rank));
    }
  }
  std::set<std::string> back = DrainedOf(*job.plan);
  for (const std::string& node : drained) back.erase(node);
  std::vector<std::string> words;
  if (!drained.empty()) words.push_back(absl::StrCat("drained: ", absl::StrJoin(drained, ", ")));
  if (!back.empty()) words.push_back(absl::StrCat("may own units now: ", absl::StrJoin(back, ", ")));
  const std::string why = absl::StrJoin(words, "; ");
  Successor successor;
  DMUON_ASSIGN_OR_RETURN(successor.plan,
                         plan::MakeSuccessor(job.spec, *shards, *job.plan, nodes, highest_generation_ + 1, why));
  successor.routes = Job::RoutesOf(successor.plan, *shards);
  return successor;
}

Outcome Coordinator::Replan() {
  Outcome outcome;
  const auto found = std::find_if(jobs_.begin(), jobs_.end(), [&](const auto& job) { return NeedsReplan(job.second); });
  if (found == jobs_.end()) return outcome;
  auto& [id, job] = *found;
  if (LosesFollower(job)) {
    DropFollowers(job, outcome);
    return outcome;
  }
  absl::StatusOr<Successor> successor = MakeSuccessor(job);
  if (!successor.ok()) {
    job.refused_drain = ToDrain(job);
    job.handover_failure = std::string(successor.status().message());
    outcome.planning = Planning::kRefused;
    outcome.reason = absl::StrCat("job ", id, " keeps its plan: ", job.handover_failure);
    return outcome;
  }
  ++highest_generation_;
  job.successor = *std::move(successor);
  job.handover_failure.clear();
  outcome.planning = Planning::kPlanned;
  outcome.reason = absl::StrCat("job ", id, ": generation ", highest_generation_, " is to succeed ", job.plan->generation(), ", ",
                                plan::MovedUnits(*job.plan, job.successor->plan), " of ", job.plan->units_size(),
                                " units move (", job.successor->plan.reason(), ")");
  for (const std::string& node : job.plan->nodes()) outcome.outgoing.push_back({node, job.SuccessorEvent(node)});
  return outcome;
}

bool Coordinator::HasMoved(absl::Time now, const v1::RegisterWorkerRequest& request, const Job& job) const {
  if (job.incarnations.contains(request.node().node_id())) return false;
  if (!plan::ValidatePlan(job.spec, *job.plan, {}).ok()) return false;  // a node has reported it so
  const std::string& from = job.plan->nodes(static_cast<int>(job.plan->rank_nodes(static_cast<int>(request.rank()))));
  // A coordinator that has just started has not seen all nodes yet.
  return !members_.contains(from) && now >= started_ + options_.lease;
}

absl::Status Coordinator::CheckReplacement(const Member& member, const std::string& node_id, int place, const Job& job) const {
  const std::string& from = job.plan->nodes(place);
  const std::string what = absl::StrCat("node '", node_id, "' cannot take the place of '", from, "' in job '", job.spec.job_id(), "'");
  if (!job.HasCopiesWithout(from)) {
    return wire::Error(absl::StatusCode::kDataLoss, v1::ERROR_REASON_STATE_LOST,
                       absl::StrCat("node '", from, "' of job '", job.spec.job_id(), "' is out, its workers have come back on node '",
                                    node_id, "', and nobody has copies of its state; register again, and load a checkpoint"));
  }
  if (member.slots < job.plan->slots(place)) {
    return wire::Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_NOT_READY,
                       absl::StrCat(what, ": it has ", member.slots, " slots, and needs ", job.plan->slots(place)));
  }
  for (const std::string& other : job.plan->nodes()) {
    const auto known = members_.find(other);
    if (known == members_.end() || known->second.backend == member.backend) continue;
    return wire::Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_SPEC_MISMATCH,
                       absl::StrCat(what, ": it computes with '", member.backend, "', node '", other, "' with '",
                                    known->second.backend, "', which gives other bits"));
  }
  return absl::OkStatus();
}

void Coordinator::ReplaceNode(const v1::RegisterWorkerRequest& request, Job& job, Outcome& outcome) {
  const std::string& id = request.node().node_id();
  const auto place = static_cast<int>(job.plan->rank_nodes(static_cast<int>(request.rank())));
  const std::string from = job.plan->nodes(place);
  const Member& member = members_.at(id);
  outcome.status = CheckReplacement(member, id, place, job);
  if (!outcome.status.ok()) {
    outcome.reason = std::string(outcome.status.message());
    return;
  }
  v1::Plan plan = *job.plan;
  plan.set_nodes(place, id);
  plan.set_former_generation(plan.generation());
  plan.set_generation(++highest_generation_);
  plan.set_reason(absl::StrCat("node ", id, " in the place of ", from));
  plan.set_digest(plan::Digest(job.spec, plan));
  job.plan = std::move(plan);
  job.successor.reset();
  if (auto routes = job.routes.extract(from); !routes.empty()) job.routes[id] = std::move(routes.mapped());
  job.incarnations.erase(from);
  job.incarnations[id] = member.incarnation;
  job.lost.erase(from);
  job.lost.insert(id);
  for (auto& [rank, registration] : job.ranks) {
    if (registration.node_id != from) continue;
    registration.node_id = id;
    registration.sequence = 0;
  }
  outcome.planning = Planning::kPlanned;
  outcome.reason = absl::StrCat("job ", job.spec.job_id(), ": generation ", highest_generation_, ", ", job.plan->reason(),
                                ", whose state other nodes have copies of");
  for (const std::string& node : job.plan->nodes()) {
    if (node != id) outcome.outgoing.push_back({node, job.PlanEvent(node)});
  }
}

void Coordinator::GiveUpSuccessor(const v1::ReleaseJobRequest& request, Job& job, Outcome& outcome) {
  if (!job.successor.has_value() || job.successor->plan.generation() != request.generation()) return;
  job.handover_failure = request.handover_failure();
  job.refused_drain = DrainedOf(job.successor->plan);
  job.successor.reset();
  AddReason(absl::StrCat("job ", request.job_id(), " keeps generation ", job.plan->generation(), ": ", job.handover_failure),
            outcome);
}

void Coordinator::Promote(const std::string& job_id, uint64_t generation, Outcome& outcome) {
  const auto found = jobs_.find(job_id);
  if (found == jobs_.end()) return;
  Job& job = found->second;
  if (!job.successor.has_value() || job.successor->plan.generation() != generation) return;
  AddReason(absl::StrCat("job ", job_id, " has gone over to generation ", generation), outcome);
  const v1::Plan former = *std::exchange(job.plan, std::move(job.successor->plan));
  job.routes = std::move(job.successor->routes);
  job.successor.reset();
  TakeFollowers(former, job, outcome);
  outcome.succeeded = true;
}

}  // namespace dmuon::coordinator
