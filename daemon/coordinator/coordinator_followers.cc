// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Nodes that own units of jobs without workers on them (`dmuond --owns all`): when they come into the plan of one that runs, and
// when they leave it. Both are successors of the plan over other nodes. They come at the end of its order and own nothing until
// the successor of that one, and go from its end when they own nothing any more.
#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/coordinator/coordinator.h"
#include "daemon/plan/plan.h"

namespace dmuon::coordinator {

std::vector<std::string> Coordinator::FollowersToAdd(const Job& job) const {
  if (FollowersToKeep(job) < static_cast<size_t>(job.plan->nodes_size())) return {};
  const std::set<std::string> nodes(job.plan->nodes().begin(), job.plan->nodes().end());
  const auto known = std::find_if(nodes.begin(), nodes.end(), [&](const std::string& node) { return members_.contains(node); });
  return known == nodes.end() ? std::vector<std::string>() : NodesForAll(nodes, members_.at(*known).backend);
}

// Places in a plan stay as they are, so the first one that leaves takes those behind it along; who is still wanted comes again.
size_t Coordinator::FollowersToKeep(const Job& job) const {
  const auto nodes = static_cast<size_t>(job.plan->nodes_size());
  for (size_t node = 0; node < nodes; ++node) {
    if (plan::HasWorkers(*job.plan, node)) continue;
    const std::string& id = job.plan->nodes(static_cast<int>(node));
    if (drained_.contains(id) || (!members_.contains(id) && plan::OwnsNothing(*job.plan, node))) return node;
  }
  return nodes;
}

bool Coordinator::CanDropFollowers(const Job& job) const {
  const auto nodes = static_cast<size_t>(job.plan->nodes_size());
  const size_t kept = FollowersToKeep(job);
  bool can = kept < nodes;
  for (size_t node = kept; node < nodes; ++node) {
    const bool free = !plan::HasWorkers(*job.plan, node) && plan::OwnsNothing(*job.plan, node);
    const bool keeps_copies = job.plan->buddies_size() > 0 && job.plan->buddies(static_cast<int>(node)) != node;
    can = can && free && !keeps_copies;
  }
  return can;
}

std::set<std::string> Coordinator::ToDrain(const Job& job) const {
  std::set<std::string> drained = job.Among(drained_);
  for (auto node = static_cast<int>(FollowersToKeep(job)); node < job.plan->nodes_size(); ++node) drained.insert(job.plan->nodes(node));
  return drained;
}

v1::Plan Coordinator::WithOtherFollowers(const Job& job, uint64_t generation) const {
  const size_t kept = FollowersToKeep(job);
  std::vector<plan::NodeSlots> more;
  for (const std::string& id : FollowersToAdd(job)) more.push_back({id, members_.at(id).slots});
  std::vector<std::string> words;
  for (auto node = static_cast<int>(kept); node < job.plan->nodes_size(); ++node) {
    words.push_back(absl::StrCat("node ", job.plan->nodes(node), " leaves"));
  }
  for (const plan::NodeSlots& node : more) words.push_back(absl::StrCat("node ", node.node_id, " joins"));
  return plan::WithNodes(job.spec, *job.plan, kept, more, generation, absl::StrJoin(words, ", "));
}

void Coordinator::TakeFollowers(const v1::Plan& former, Job& job, Outcome& outcome) {
  const std::set<std::string> before(former.nodes().begin(), former.nodes().end());
  const std::set<std::string> after(job.plan->nodes().begin(), job.plan->nodes().end());
  if (before == after) return;
  for (const std::string& id : before) {
    if (after.contains(id)) continue;
    job.incarnations.erase(id);
    job.lost.erase(id);
    job.holders.erase(id);
    TellEnd(id, former, outcome);
  }
  for (const std::string& id : after) {
    if (before.contains(id)) continue;
    const auto member = members_.find(id);
    job.incarnations[id] = member == members_.end() ? "" : member->second.incarnation;
    outcome.outgoing.push_back({id, job.PlanEvent(id)});
  }
}

bool Coordinator::LosesFollower(const Job& job) const {
  if (!job.plan.has_value() || !CanDropFollowers(job)) return false;
  const auto& nodes = job.plan->nodes();
  return std::any_of(nodes.begin() + static_cast<std::ptrdiff_t>(FollowersToKeep(job)), nodes.end(),
                     [&](const std::string& node) { return !members_.contains(node); });
}

void Coordinator::DropFollowers(Job& job, Outcome& outcome) {
  v1::Plan plan = WithOtherFollowers(job, ++highest_generation_);
  const v1::Plan former = *std::exchange(job.plan, std::move(plan));
  job.successor.reset();
  for (auto node = job.plan->nodes_size(); node < former.nodes_size(); ++node) job.routes.erase(former.nodes(node));
  TakeFollowers(former, job, outcome);
  for (const std::string& node : job.plan->nodes()) outcome.outgoing.push_back({node, job.PlanEvent(node)});
  outcome.planning = Planning::kPlanned;
  AddReason(absl::StrCat("job ", job.spec.job_id(), ": generation ", highest_generation_, ", ", job.plan->reason()), outcome);
}

}  // namespace dmuon::coordinator
