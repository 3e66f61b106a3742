// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What the coordinator tells about its jobs: events, status, plans.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/coordinator/coordinator.h"
#include "daemon/plan/plan.h"
#include "daemon/plan/routes.h"
#include "wire/error.h"

namespace dmuon::coordinator {

uint64_t Coordinator::Job::LastSequence(const std::string& node_id) const {
  uint64_t last = 0;
  for (const auto& [rank, registration] : ranks) {
    if (registration.node_id == node_id) last = std::max(last, registration.sequence);
  }
  return last;
}

v1::WatchPlansResponse Coordinator::Job::PlanEvent(const std::string& node_id) const {
  v1::WatchPlansResponse event;
  *event.mutable_plan() = *plan;
  event.set_last_sequence(LastSequence(node_id));
  if (const auto it = routes.find(node_id); it != routes.end()) *event.mutable_routes() = it->second;
  const auto place = std::find(plan->nodes().begin(), plan->nodes().end(), node_id);
  const bool follows = place != plan->nodes().end() && !plan::HasWorkers(*plan, static_cast<size_t>(place - plan->nodes().begin()));
  if (follows) *event.mutable_job() = spec;
  return event;
}

v1::WatchPlansResponse Coordinator::Job::SuccessorEvent(const std::string& node_id) const {
  v1::WatchPlansResponse event;
  *event.mutable_successor() = successor->plan;
  event.set_last_sequence(LastSequence(node_id));
  if (const auto it = successor->routes.find(node_id); it != successor->routes.end()) *event.mutable_routes() = it->second;
  return event;
}

void Coordinator::Job::TellPlan(const std::string& node_id, std::vector<Outgoing>& outgoing) const {
  outgoing.push_back({node_id, PlanEvent(node_id)});
  if (successor.has_value()) outgoing.push_back({node_id, SuccessorEvent(node_id)});
}

v1::WatchPlansResponse Coordinator::Job::RefusalEvent(const std::string& node_id,
                                                      const absl::Status& why) const {
  v1::WatchPlansResponse event;
  v1::Refusal& refusal = *event.mutable_refusal();
  refusal.set_job_id(spec.job_id());
  refusal.set_code(static_cast<int32_t>(why.code()));
  refusal.set_message(std::string(why.message()));
  refusal.set_reason(std::string(wire::ReasonName(wire::ReasonOf(why))));
  if (plan.has_value()) refusal.set_generation(plan->generation());
  event.set_last_sequence(LastSequence(node_id));
  return event;
}

v1::WatchPlansResponse Coordinator::Job::CallEvent() const {
  v1::WatchPlansResponse event;
  event.mutable_call()->set_job_id(spec.job_id());
  event.mutable_call()->set_generation(plan->generation());
  event.mutable_call()->set_attempt(meeting_point.attempt());
  return event;
}

std::vector<v1::WatchPlansResponse> Coordinator::CurrentEvents(const std::string& node_id) const {
  std::vector<v1::WatchPlansResponse> events;
  for (const auto& [id, job] : jobs_) {
    if (job.plan.has_value() && job.incarnations.count(node_id) > 0) {
      std::vector<Outgoing> told;
      job.TellPlan(node_id, told);
      for (Outgoing& out : told) events.push_back(std::move(out.event));
      if (job.meeting_point.attempt() > 0) events.push_back(job.CallEvent());
    }
  }
  if (const auto member = members_.find(node_id); member != members_.end()) {
    events.insert(events.end(), member->second.ends.begin(), member->second.ends.end());
  }
  return events;
}

v1::GetClusterStatusResponse Coordinator::Status(absl::Time now) const {
  v1::GetClusterStatusResponse status;
  std::map<std::string, uint64_t> units;            // by node id
  std::map<std::string, uint64_t> without_workers;  // jobs, likewise
  for (const auto& [id, job] : jobs_) {
    if (!job.plan.has_value()) continue;
    const std::vector<uint64_t> of_job = plan::UnitsByNode(*job.plan);
    for (size_t node = 0; node < of_job.size(); ++node) {
      const std::string& node_id = job.plan->nodes(static_cast<int>(node));
      units[node_id] += of_job[node];
      if (!plan::HasWorkers(*job.plan, node)) ++without_workers[node_id];
    }
  }
  for (const auto& [id, member] : members_) {
    v1::NodeStatus& node = *status.add_nodes();
    node.mutable_node()->set_node_id(id);
    node.mutable_node()->set_incarnation(member.incarnation);
    node.set_slots(member.slots);
    node.set_lease_remaining_seconds(absl::ToDoubleSeconds(member.lease_end - now));
    node.set_drained(drained_.contains(id));
    node.set_units(units[id]);
    node.set_owns_all(member.owns_all);
    node.set_jobs_without_workers(without_workers[id]);
  }
  for (const auto& [id, job] : jobs_) {
    v1::JobStatus& entry = *status.add_jobs();
    entry.set_job_id(id);
    entry.set_world_size(job.spec.world_size());
    entry.set_registered_ranks(static_cast<uint32_t>(job.ranks.size()));
    entry.set_tensors(static_cast<uint64_t>(job.spec.tensors_size()));
    if (job.plan.has_value()) {
      entry.set_generation(job.plan->generation());
      entry.set_digest(job.plan->digest());
      entry.set_state("planned");
      entry.set_handover_failure(job.handover_failure);
      if (job.successor.has_value()) {
        entry.set_successor_generation(job.successor->plan.generation());
        entry.set_moving_units(plan::MovedUnits(*job.plan, job.successor->plan));
        entry.set_state(absl::StrCat("planned, going over to generation ", job.successor->plan.generation()));
      }
    } else {
      entry.set_state(absl::StrCat("waits for ", job.spec.world_size() - job.ranks.size(), " of ",
                                   job.spec.world_size(), " ranks"));
    }
  }
  status.set_highest_generation(highest_generation_);
  return status;
}

absl::StatusOr<v1::GetPlanResponse> Coordinator::GetPlan(const std::string& job_id) const {
  const auto job = jobs_.find(job_id);
  if (job == jobs_.end() || !job->second.plan.has_value()) {
    return wire::Error(absl::StatusCode::kNotFound, v1::ERROR_REASON_UNKNOWN_JOB,
                       absl::StrCat("job '", job_id, "' has no plan"));
  }
  v1::GetPlanResponse response;
  *response.mutable_plan() = *job->second.plan;
  *response.mutable_job() = job->second.spec;
  std::vector<const v1::Routes*> routes;  // by node
  for (const std::string& node : job->second.plan->nodes()) {
    const auto it = job->second.routes.find(node);
    if (it == job->second.routes.end()) return response;
    routes.push_back(&it->second);
  }
  for (v1::LinkLoad& load : plan::LinkLoads(job->second.spec, *job->second.plan, routes)) {
    *response.add_links() = std::move(load);
  }
  return response;
}

}  // namespace dmuon::coordinator
