// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What nodes hold, and what is lost when one comes back without: jobs that are known again, or over.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/coordinator/coordinator.h"
#include "daemon/plan/plan.h"
#include "daemon/plan/routes.h"
#include "wire/error.h"

namespace dmuon::coordinator {
namespace {

// Jobs of which the end is remembered: far more than nodes may still hold.
constexpr size_t kMostOver = 4096;

bool Holds(const v1::JoinRequest& request, const std::string& job_id) {
  return std::any_of(request.held().begin(), request.held().end(),
                     [&](const v1::HeldJob& held) { return held.job().job_id() == job_id; });
}

}  // namespace

void Coordinator::DropLost(const v1::JoinRequest& request, Outcome& outcome) {
  const std::string& id = request.node().node_id();
  for (auto job = jobs_.begin(); job != jobs_.end();) {
    const auto current = job++;  // Refuse erases it
    const auto planned_for = current->second.incarnations.find(id);
    if (planned_for == current->second.incarnations.end() ||
        planned_for->second == request.node().incarnation()) {
      continue;
    }
    if (Holds(request, current->first)) {
      planned_for->second = request.node().incarnation();
      continue;
    }
    const bool replicated = current->second.plan.has_value() && !current->second.plan->buddies().empty();
    if (current->second.plan.has_value() && !replicated && current->second.OwnsNothing(id)) {
      planned_for->second = request.node().incarnation();
      AddReason(absl::StrCat("job ", current->first, ": node ", id, " came back, which owns nothing"), outcome);
      continue;
    }
    // One whose workers have left will not ask for them.
    if (current->second.HasCopiesWithout(id) && !current->second.released.contains(id)) {
      planned_for->second = request.node().incarnation();
      current->second.lost.insert(id);
      AddReason(absl::StrCat("job ", current->first, ": node ", id, " came back without its state, which another node has "
                             "copies of"),
                outcome);
      continue;
    }
    const absl::Status lost =
        wire::Error(absl::StatusCode::kDataLoss, v1::ERROR_REASON_STATE_LOST,
                    absl::StrCat("node '", id, "' came back without the state of job '",
                                 current->first, "'; register again for a new plan"));
    AddReason(absl::StrCat("job ", current->first, " is forgotten: its state on node ", id,
                           " is lost"),
              outcome);
    Refuse(current, lost, id, outcome);
  }
}

bool Coordinator::Job::HasCopiesWithout(const std::string& another) const {
  if (!plan.has_value() || plan->buddies().empty()) return false;
  const auto is_lost = [&](const std::string& node) { return node == another || lost.contains(node); };
  for (int node = 0; node < plan->nodes_size(); ++node) {
    const auto buddy = static_cast<int>(plan->buddies(node));
    if (buddy == node) continue;  // it owns nothing
    if (buddy >= plan->nodes_size() || (is_lost(plan->nodes(node)) && is_lost(plan->nodes(buddy)))) return false;
  }
  return true;
}

v1::WatchPlansResponse Coordinator::EndEvent(const v1::Plan& plan) {
  v1::WatchPlansResponse event;
  event.mutable_end()->set_job_id(plan.job_id());
  event.mutable_end()->set_generation(plan.generation());
  return event;
}

void Coordinator::TellEnd(const std::string& node_id, const v1::Plan& plan, Outcome& outcome) {
  outcome.outgoing.push_back({node_id, EndEvent(plan)});
}

void Coordinator::Erase(Jobs::iterator job) {
  const auto& [id, over] = *job;
  if (over.plan.has_value()) {
    const uint64_t successor = over.successor.has_value() ? over.successor->plan.generation() : 0;
    over_[id] = std::max(over.plan->generation(), successor);
  }
  jobs_.erase(job);
  if (over_.size() <= kMostOver) return;
  over_.erase(std::min_element(over_.begin(), over_.end(), [](const auto& a, const auto& b) { return a.second < b.second; }));
}

void Coordinator::TellOver(const std::string& node_id, const v1::Plan& plan, Outcome& outcome) {
  AddReason(absl::StrCat("job ", plan.job_id(), ": generation ", plan.generation(), " on node ", node_id, " is over"), outcome);
  TellEnd(node_id, plan, outcome);
  members_[node_id].ends.push_back(EndEvent(plan));
}

bool Coordinator::IsOver(const v1::Plan& plan) const {
  const auto over = over_.find(plan.job_id());
  return over != over_.end() && plan.generation() <= over->second;
}

Coordinator::Job Coordinator::JobOf(const std::string& reporter, const v1::HeldJob& held) const {
  Job job;
  job.spec = held.job();
  job.spec_bytes = held.job().SerializeAsString();
  job.plan = held.plan();
  for (const std::string& node : held.plan().nodes()) {
    // Empty for a node that has not come back yet: whatever process it comes back as, it must
    // hold the job.
    const auto member = members_.find(node);
    job.incarnations[node] = member == members_.end() ? "" : member->second.incarnation;
  }
  // It has yet to get its state back, or there is none.
  if (!held.has_state() && !job.plan->buddies().empty()) job.lost.insert(reporter);
  return job;
}

void Coordinator::AdoptHeld(const v1::JoinRequest& request, Outcome& outcome) {
  for (const v1::HeldJob& held : request.held()) {
    highest_generation_ = std::max(highest_generation_, held.plan().generation());
    const std::string& id = held.job().job_id();
    if (IsOver(held.plan())) {
      TellOver(request.node().node_id(), held.plan(), outcome);
      continue;
    }
    const auto known = jobs_.find(id);
    if (known != jobs_.end() && held.has_state()) known->second.lost.erase(request.node().node_id());
    Promote(id, held.plan().generation(), outcome);
    if (known != jobs_.end()) known->second.holders[request.node().node_id()] = held.plan().generation();
    // A plan of ours that is as new stays: the node hears of it when its watch begins.
    if (known != jobs_.end() && known->second.plan.has_value() &&
        known->second.plan->generation() >= held.plan().generation()) {
      if (known->second.plan->generation() == held.plan().generation()) LearnShards(request, held, known->second);
      // Another node has taken its place.
      if (!known->second.incarnations.contains(request.node().node_id())) TellEnd(request.node().node_id(), held.plan(), outcome);
      AnswerEarly(known->second, outcome);
      continue;
    }
    Job job = JobOf(request.node().node_id(), held);
    if (known != jobs_.end()) job.holders = known->second.holders;
    job.holders[request.node().node_id()] = held.plan().generation();
    // It is over, and its workers have begun to register anew: they are not disturbed.
    const bool waiting = known != jobs_.end() && !known->second.plan.has_value();
    const absl::Status lost = FindLost(id, job, request.node().node_id());
    if (waiting && !lost.ok()) {
      AddReason(absl::StrCat("job ", id, " of generation ", held.plan().generation(), " is over: ", lost.message()), outcome);
      outcome.outgoing.push_back({request.node().node_id(), job.RefusalEvent(request.node().node_id(), lost)});
      continue;
    }
    if (waiting) TakeEarly(known->second, job);
    LearnDrained(held.plan());
    LearnShards(request, held, job);
    const auto adopted = jobs_.insert_or_assign(id, std::move(job)).first;
    AddReason(absl::StrCat("job ", id, " is known again from node ", request.node().node_id(), ": generation ",
                           held.plan().generation(), ", step ", held.last_step()), outcome);
    if (!lost.ok()) {
      AddReason(absl::StrCat("job ", id, " is forgotten: ", lost.message()), outcome);
      Refuse(adopted, lost, "", outcome);
    }
    if (const auto kept = jobs_.find(id); kept != jobs_.end()) AnswerEarly(kept->second, outcome);
  }
}

// Who came before the job was known again has registered for what it is a part of.
void Coordinator::TakeEarly(Job& waiting, Job& job) {
  if (waiting.spec_bytes != job.spec_bytes) return;
  for (auto& [rank, registration] : waiting.ranks) {
    if (!job.incarnations.contains(registration.node_id)) continue;
    job.early.insert(registration.node_id);
    job.ranks[rank] = std::move(registration);
  }
}

// What an operator has told the coordinator before this one.
void Coordinator::LearnDrained(const v1::Plan& plan) {
  for (const uint32_t node : plan.drained()) {
    // One without workers is only about to own something, or to leave the plan.
    const bool is_drained = static_cast<int>(node) < plan.nodes_size() && plan::HasWorkers(plan, node);
    if (is_drained) drained_.insert(plan.nodes(static_cast<int>(node)));
  }
}

absl::Status Coordinator::FindLost(const std::string& job_id, Job& job, const std::string& reporter) const {
  for (const std::string& node : job.plan->nodes()) {
    if (node == reporter || !members_.contains(node)) continue;
    // Has not heard yet that the others have gone over from the plan that it holds; it is ready to.
    const auto held = job.holders.find(node);
    const uint64_t former = job.plan->former_generation();
    if (former != 0 && held != job.holders.end() && held->second == former) continue;
    if (job.plan->buddies().empty() && job.OwnsNothing(node)) continue;
    if (job.HasCopiesWithout(node)) {
      job.lost.insert(node);
      continue;
    }
    return wire::Error(absl::StatusCode::kDataLoss, v1::ERROR_REASON_STATE_LOST,
                       absl::StrCat("node '", node, "' has joined without the state of job '", job_id,
                                    "'; register again for a new plan"));
  }
  return absl::OkStatus();
}

// A coordinator that has started again learns who has what from the nodes, each of its own workers, or from workers
// that register again.
void Coordinator::LearnShards(const v1::JoinRequest& request, const v1::HeldJob& held, Job& job) {
  for (const v1::HeldShards& rank : held.ranks()) {
    if (rank.rank() >= job.spec.world_size() || job.ranks.contains(rank.rank())) continue;
    v1::RegisterWorkerRequest shards;
    *shards.mutable_shards() = rank.shards();
    job.ranks[rank.rank()] = {request.node().node_id(), 0, shards.SerializeAsString(), {}};
  }
  CompleteRoutes(job);
}

void Coordinator::AnswerEarly(Job& job, Outcome& outcome) {
  if (!job.has_routes()) return;
  for (const std::string& node : std::exchange(job.early, {})) job.TellPlan(node, outcome.outgoing);
}

void Coordinator::CompleteRoutes(Job& job) {
  if (job.has_routes()) return;
  // Nullopt: a node says what cannot be, and whoever needs the routes waits in vain.
  if (const auto shards = job.Shards(); shards.has_value()) job.routes = Job::RoutesOf(*job.plan, *shards);
}

std::optional<std::vector<std::vector<wire::ShardBoxes>>> Coordinator::Job::Shards() const {
  if (ranks.size() < spec.world_size()) return std::nullopt;
  std::vector<std::vector<wire::ShardBoxes>> shards;
  for (const auto& [rank, registration] : ranks) {
    v1::RegisterWorkerRequest request;
    request.ParseFromString(registration.shards);
    auto parsed = ParseShards(spec, request, rank);
    if (!parsed.ok()) return std::nullopt;
    shards.push_back(*std::move(parsed));
  }
  return shards;
}

std::map<std::string, v1::Routes> Coordinator::Job::RoutesOf(const v1::Plan& plan,
                                                             const std::vector<std::vector<wire::ShardBoxes>>& shards) {
  std::map<std::string, v1::Routes> routes;
  std::vector<v1::Routes> by_node = plan::MakeRoutes(shards, plan);
  for (int node = 0; node < plan.nodes_size(); ++node) {
    routes[plan.nodes(node)] = std::move(by_node[static_cast<size_t>(node)]);
  }
  return routes;
}

}  // namespace dmuon::coordinator
