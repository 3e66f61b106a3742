// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include "daemon/coordinator/coordinator.h"

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/coordinator/spec_difference.h"
#include "daemon/plan/optimizers.h"
#include "daemon/plan/plan.h"
#include "daemon/plan/routes.h"
#include "daemon/plan/timings.h"
#include "wire/error.h"
#include "wire/grpc_status.h"

namespace dmuon::coordinator {
namespace {

absl::Status SpecMismatch(absl::string_view message) {
  return wire::Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_SPEC_MISMATCH,
                     message);
}

std::string SerializeShards(const v1::RegisterWorkerRequest& request) {
  v1::RegisterWorkerRequest only_shards;
  *only_shards.mutable_shards() = request.shards();
  return only_shards.SerializeAsString();
}

absl::Status CheckJoin(const v1::JoinRequest& request) {
  DMUON_RETURN_IF_ERROR(wire::ValidateId(request.node().node_id(), "node_id"));
  DMUON_RETURN_IF_ERROR(wire::ValidateId(request.node().incarnation(), "incarnation"));
  if (request.protocol_version() != wire::kProtocolVersion) {
    return wire::Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_PROTOCOL_VERSION,
                       absl::StrCat("node '", request.node().node_id(),
                                    "' speaks protocol version ",
                                    request.protocol_version(), ", the coordinator ",
                                    wire::kProtocolVersion));
  }
  if (request.slots() < 1 || request.slots() > kMaxSlotsPerNode) {
    return wire::InvalidField(absl::StrCat("slots is ", request.slots(), ", allowed are 1..",
                                           kMaxSlotsPerNode));
  }
  if (request.highest_generation() > kMaxReportedGeneration) {
    return wire::InvalidField(absl::StrCat("highest_generation is ", request.highest_generation(),
                                           ", at most ", kMaxReportedGeneration));
  }
  for (const v1::HeldJob& held : request.held()) {
    DMUON_RETURN_IF_ERROR(wire::ValidateJobSpec(held.job()));
    if (held.plan().job_id() != held.job().job_id() || held.plan().generation() < 1 ||
        held.plan().generation() > kMaxReportedGeneration) {
      return wire::InvalidField(absl::StrCat(
          "held job '", held.job().job_id(), "' comes with a plan of job '", held.plan().job_id(),
          "', generation ", held.plan().generation()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<wire::ShardBoxes>> ParseShards(const v1::JobSpec& job,
                                                          const v1::RegisterWorkerRequest& request, uint32_t rank) {
  const std::vector<const v1::Shard*> shards(request.shards().pointer_begin(), request.shards().pointer_end());
  return wire::ParseShards(job, shards, rank);
}

Outcome Fail(absl::Status status) {
  Outcome outcome;
  outcome.status = std::move(status);
  return outcome;
}

void AddReason(absl::string_view text, Outcome& outcome) {
  absl::StrAppend(&outcome.reason, outcome.reason.empty() ? "" : "; ", text);
}

Coordinator::Coordinator(Options options)
    : options_(options), highest_generation_(options.highest_generation) {}

absl::Status Coordinator::CheckMember(const v1::NodeIdentity& node) const {
  if (IsMember(node)) return absl::OkStatus();
  return wire::Error(absl::StatusCode::kNotFound, v1::ERROR_REASON_UNKNOWN_NODE,
                     absl::StrCat("node '", node.node_id(), "' in incarnation '",
                                  node.incarnation(), "' is no member; join again"));
}

bool Coordinator::IsMember(const v1::NodeIdentity& node) const {
  const auto member = members_.find(node.node_id());
  return member != members_.end() && member->second.incarnation == node.incarnation();
}

absl::Status Coordinator::CheckNotReplaced(const v1::NodeIdentity& node) const {
  const auto member = members_.find(node.node_id());
  if (member == members_.end() || node.incarnation() >= member->second.incarnation) return absl::OkStatus();
  return wire::Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_UNKNOWN_NODE,
                     absl::StrCat("node '", node.node_id(), "' in incarnation '", node.incarnation(),
                                  "' was followed by another process, incarnation '", member->second.incarnation, "'; end it"));
}

Outcome Coordinator::Join(absl::Time now, const v1::JoinRequest& request) {
  absl::Status status = CheckJoin(request);
  if (status.ok()) status = CheckNotReplaced(request.node());
  if (!status.ok()) return Fail(std::move(status));
  Outcome outcome;
  const std::string& id = request.node().node_id();
  if (!IsMember(request.node())) {
    const bool replaces = members_.count(id) > 0;
    if (replaces) ForgetWaiting(id);
    AddReason(absl::StrCat("node ", id, replaces ? " joins anew with " : " joins with ",
                           request.slots(), " slots"),
              outcome);
  }
  started_ = std::min(started_, now);
  DropLost(request, outcome);
  members_[id] = Member{request.node().incarnation(), request.slots(), request.memory_bytes(), request.backend(),
                        request.owns_all(), now + options_.lease, {}};
  highest_generation_ = std::max(highest_generation_, request.highest_generation());
  AdoptHeld(request, outcome);
  return outcome;
}

void Coordinator::ForgetWaiting(const std::string& node_id) {
  for (auto job = jobs_.begin(); job != jobs_.end();) {
    const auto current = job++;
    if (!current->second.plan.has_value()) ForgetWaiting(node_id, current);
  }
}

void Coordinator::ForgetWaiting(const std::string& node_id, Jobs::iterator job) {
  std::erase_if(job->second.ranks,
                [&](const auto& rank) { return rank.second.node_id == node_id; });
  if (job->second.ranks.empty()) jobs_.erase(job);
}

Outcome Coordinator::Beat(absl::Time now, const v1::BeatRequest& request) {
  if (absl::Status status = CheckMember(request.node()); !status.ok()) {
    return Fail(std::move(status));
  }
  members_[request.node().node_id()].lease_end = now + options_.lease;
  return {};
}

Outcome Coordinator::Leave(absl::Time /*now*/, const v1::LeaveRequest& request) {
  if (absl::Status status = CheckMember(request.node()); !status.ok()) {
    return Fail(std::move(status));
  }
  members_.erase(request.node().node_id());
  ForgetWaiting(request.node().node_id());
  Outcome outcome;
  outcome.reason = absl::StrCat("node ", request.node().node_id(), " leaves");
  EndReleased(outcome);
  return outcome;
}

Outcome Coordinator::Tick(absl::Time now) {
  Outcome outcome;
  for (auto member = members_.begin(); member != members_.end();) {
    if (member->second.lease_end > now) {
      ++member;
      continue;
    }
    const absl::Duration silent = now - member->second.lease_end + options_.lease;
    AddReason(absl::StrCat("node ", member->first, " is out: silent for ",
                           absl::FormatDuration(silent), ", lease ",
                           absl::FormatDuration(options_.lease)),
              outcome);
    ForgetWaiting(member->first);
    member = members_.erase(member);
  }
  EndReleased(outcome);
  return outcome;
}

Outcome Coordinator::RegisterWorker(absl::Time now, const v1::RegisterWorkerRequest& request) {
  if (absl::Status status = CheckMember(request.node()); !status.ok()) {
    return Fail(std::move(status));
  }
  members_[request.node().node_id()].lease_end = now + options_.lease;
  absl::Status valid = wire::ValidateJobSpec(request.job());
  if (valid.ok()) valid = plan::ValidateOptimizers(request.job());
  const std::vector<v1::UnitTime> times(request.times().begin(), request.times().end());
  if (valid.ok()) valid = plan::ValidateTimes(times);
  if (!valid.ok()) return Fail(std::move(valid));
  if (request.rank() >= request.job().world_size()) {
    return Fail(wire::InvalidField(absl::StrCat("rank is ", request.rank(), ", world_size ",
                                                request.job().world_size())));
  }
  if (auto parsed = ParseShards(request.job(), request, request.rank()); !parsed.ok()) {
    return Fail(std::move(parsed).status());
  }
  const auto job = jobs_.find(request.job().job_id());
  if (job != jobs_.end() && job->second.plan.has_value()) {
    return RegisterPlanned(now, request, job);
  }
  return RegisterWaiting(request);
}

Outcome Coordinator::RegisterWaiting(const v1::RegisterWorkerRequest& request) {
  Outcome outcome;
  const std::string& id = request.job().job_id();
  const auto job = jobs_.try_emplace(id).first;
  Job& waiting = job->second;
  std::string spec_bytes = request.job().SerializeAsString();
  waiting.ranks.erase(request.rank());
  if (waiting.ranks.empty()) {
    waiting.spec = request.job();
    waiting.spec_bytes = std::move(spec_bytes);
  } else if (waiting.spec_bytes != spec_bytes) {
    // One of them is wrong, and nobody can tell which: all are told, so that none waits for the
    // rest.
    const absl::Status why = SpecMismatch(absl::StrCat(
        "job '", id, "': ",
        SpecDifference(request.job(), absl::StrCat("rank ", request.rank()), waiting.spec,
                       absl::StrCat("rank ", waiting.ranks.begin()->first))));
    outcome.status = why;
    RefusePlan(job, why, outcome);
    return outcome;
  }
  waiting.ranks[request.rank()] = {request.node().node_id(), request.sequence(), SerializeShards(request),
                                   {request.times().begin(), request.times().end()}};
  if (waiting.ranks.size() == waiting.spec.world_size()) {
    PlanJob(job, outcome);
  } else {
    outcome.reason = absl::StrCat("job ", id, ": rank ", request.rank(), " is in, ",
                                  waiting.ranks.size(), " of ", waiting.spec.world_size());
  }
  return outcome;
}

Outcome Coordinator::RegisterPlanned(absl::Time now, const v1::RegisterWorkerRequest& request, Jobs::iterator planned) {
  Job& job = planned->second;
  const std::string& id = request.job().job_id();
  const std::string who = absl::StrCat("rank ", request.rank());
  if (job.spec_bytes != request.job().SerializeAsString()) {
    return Fail(SpecMismatch(
        absl::StrCat("job '", id, "' runs and has another specification: ",
                     SpecDifference(request.job(), who, job.spec, "the running job"))));
  }
  std::string shards = SerializeShards(request);
  const auto before = job.ranks.find(request.rank());
  if (before != job.ranks.end() && before->second.shards != shards) {
    v1::RegisterWorkerRequest old;
    old.ParseFromString(before->second.shards);
    return Fail(SpecMismatch(absl::StrCat("job '", id, "' runs and ", who, " has other shards: ",
                                          ShardDifference(job.spec, request, old))));
  }
  const std::string& node_id = request.node().node_id();
  Outcome outcome;
  if (HasMoved(now, request, job)) {
    ReplaceNode(request, job, outcome);
    if (wire::ReasonOf(outcome.status) == v1::ERROR_REASON_STATE_LOST) return BeginAnew(request, planned, std::move(outcome));
    if (!outcome.status.ok()) return outcome;
  }
  const auto& nodes = job.plan->nodes();
  if (std::find(nodes.begin(), nodes.end(), node_id) == nodes.end()) {
    return Fail(wire::Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_NOT_READY,
                            absl::StrCat("job '", id, "': ", who, " is on node '", node_id,
                                         "', which generation ", job.plan->generation(),
                                         " was not planned for (it knows ",
                                         absl::StrJoin(nodes, ", "), ")")));
  }
  job.ranks[request.rank()] = {node_id, request.sequence(), std::move(shards), {}};
  CompleteRoutes(job);
  if (!job.has_routes()) {
    return Fail(absl::UnavailableError(absl::StrCat("job '", id, "': the coordinator has started again and knows the "
                                                    "workers of ", job.ranks.size(), " of ", job.spec.world_size(),
                                                    " ranks; retry")));
  }
  AddReason(absl::StrCat("job ", id, ": ", who, " is back, generation ", job.plan->generation(), " stays"), outcome);
  job.TellPlan(node_id, outcome.outgoing);
  return outcome;
}

Outcome Coordinator::BeginAnew(const v1::RegisterWorkerRequest& request, Jobs::iterator lost, Outcome outcome) {
  Refuse(lost, std::exchange(outcome.status, absl::OkStatus()), request.node().node_id(), outcome);
  Outcome waiting = RegisterWaiting(request);
  AddReason(waiting.reason, outcome);
  waiting.reason = std::move(outcome.reason);
  waiting.outgoing.insert(waiting.outgoing.begin(), outcome.outgoing.begin(), outcome.outgoing.end());
  return waiting;
}

absl::Status Coordinator::CheckBackends(const Job& job) const {
  const Member* first = nullptr;
  for (const auto& [rank, registration] : job.ranks) {
    const Member& member = members_.at(registration.node_id);
    if (first == nullptr) first = &member;
    if (member.backend == first->backend) continue;
    return SpecMismatch(absl::StrCat("job '", job.spec.job_id(), "': node '", registration.node_id, "' of rank ", rank,
                                     " computes with '", member.backend, "', that of rank ",
                                     job.ranks.begin()->first, " with '", first->backend,
                                     "', which gives other bits; start all daemons with one --backend"));
  }
  return absl::OkStatus();
}

void Coordinator::RefusePlan(Jobs::iterator job, const absl::Status& why, Outcome& outcome) {
  outcome.planning = Planning::kRefused;
  outcome.reason = absl::StrCat("job ", job->first, " is refused: ", absl::string_view(why.message()));
  Refuse(job, why, "", outcome);
}

void Coordinator::PlanJob(Jobs::iterator job, Outcome& outcome) {
  Job& ready = job->second;
  std::vector<std::vector<wire::ShardBoxes>> shards;
  std::map<std::string, std::vector<uint32_t>> ranks_of;       // by node id
  std::map<std::string, std::vector<v1::UnitTime>> times_of;  // likewise
  for (auto& [rank, registration] : ready.ranks) {  // in rank order, whoever came first
    v1::RegisterWorkerRequest request;
    request.ParseFromString(registration.shards);
    auto parsed = ParseShards(ready.spec, request, rank);
    if (!parsed.ok()) return Refuse(job, parsed.status(), "", outcome);
    shards.push_back(*std::move(parsed));
    ranks_of[registration.node_id].push_back(rank);
    times_of[registration.node_id] = std::exchange(registration.times, {});  // ranks of a node say the same
  }
  if (absl::Status status = CheckBackends(ready); !status.ok()) return RefusePlan(job, status, outcome);
  std::vector<std::vector<v1::UnitTime>> times;
  for (auto& [id, of_node] : times_of) times.push_back(std::move(of_node));
  std::vector<plan::NodeSlots> nodes;
  for (const auto& [id, ranks] : ranks_of) {
    const Member& member = members_.at(id);
    nodes.push_back({id, member.slots, ranks, member.memory_bytes, drained_.contains(id)});
    ready.incarnations[id] = member.incarnation;
  }
  const Member& first = members_.at(ready.ranks.begin()->second.node_id);
  std::set<std::string> with_workers;
  for (const auto& [id, ranks] : ranks_of) with_workers.insert(id);
  for (const std::string& id : NodesForAll(with_workers, first.backend)) {
    const Member& member = members_.at(id);
    nodes.push_back({id, member.slots, {}, member.memory_bytes, false});
    ready.incarnations[id] = member.incarnation;
  }
  const std::string why = absl::StrCat("all ", ready.spec.world_size(), " ranks registered");
  auto plan = plan::MakePlan(ready.spec, shards, nodes, highest_generation_ + 1, why,
                             plan::Timings::Of(times));
  if (!plan.ok()) return RefusePlan(job, plan.status(), outcome);
  ++highest_generation_;
  ready.plan = *std::move(plan);
  ready.routes = Job::RoutesOf(*ready.plan, shards);
  outcome.planning = Planning::kPlanned;
  outcome.reason = absl::StrCat("job ", job->first, ": generation ", highest_generation_, ", ",
                                ready.plan->units_size(), " units on ", nodes.size(), " nodes (",
                                ready.plan->reason(), ")");
  for (const std::string& id : ready.plan->nodes()) outcome.outgoing.push_back({id, ready.PlanEvent(id)});
}

std::vector<std::string> Coordinator::NodesForAll(const std::set<std::string>& nodes, const std::string& backend) const {
  std::vector<std::string> ids;
  for (const auto& [id, member] : members_) {
    if (member.owns_all && member.backend == backend && !nodes.contains(id) && !drained_.contains(id)) ids.push_back(id);
  }
  return ids;
}

void Coordinator::Refuse(Jobs::iterator job, const absl::Status& why, absl::string_view except,
                         Outcome& outcome) {
  std::set<std::string> concerned;
  for (const auto& [rank, registration] : job->second.ranks) concerned.insert(registration.node_id);
  for (const auto& [node_id, incarnation] : job->second.incarnations) concerned.insert(node_id);
  for (const std::string& node_id : concerned) {
    if (node_id == except) continue;
    outcome.outgoing.push_back({node_id, job->second.RefusalEvent(node_id, why)});
  }
  Erase(job);
}

Outcome Coordinator::ReleaseJob(absl::Time /*now*/, const v1::ReleaseJobRequest& request) {
  if (absl::Status status = CheckMember(request.node()); !status.ok()) {
    return Fail(std::move(status));
  }
  Outcome outcome;
  const bool failed = !request.handover_failure().empty();
  if (!failed) Promote(request.job_id(), request.generation(), outcome);
  const auto job = jobs_.find(request.job_id());
  if (job == jobs_.end()) return outcome;
  if (failed) {
    GiveUpSuccessor(request, job->second, outcome);
    return outcome;
  }
  const std::string& node_id = request.node().node_id();
  const uint64_t generation = job->second.plan.has_value() ? job->second.plan->generation() : 0;
  if (generation != request.generation()) return outcome;
  AddReason(absl::StrCat("job ", request.job_id(), " is released by node ", node_id), outcome);
  // It had nothing of it yet; the state and its copies are on the other nodes.
  if (!request.in_order() && job->second.lost.contains(node_id) && job->second.HasCopiesWithout(node_id)) {
    AddReason("it has yet to get its state back, and the job stays", outcome);
    return outcome;
  }
  if (generation == 0) {
    ForgetWaiting(node_id, job);
  } else if (request.in_order()) {
    job->second.released.insert(node_id);
    EndReleased(outcome);
  } else {
    EndJob(job, node_id, outcome);
  }
  return outcome;
}

void Coordinator::EndJob(Jobs::iterator job, absl::string_view except, Outcome& outcome) {
  for (const std::string& node : job->second.plan->nodes()) {
    if (node != except) TellEnd(node, *job->second.plan, outcome);
  }
  Erase(job);
}

void Coordinator::EndReleased(Outcome& outcome) {
  for (auto job = jobs_.begin(); job != jobs_.end();) {
    const auto current = job++;
    const Job& ended = current->second;
    if (ended.released.empty()) continue;
    bool needed = false;
    for (int n = 0; n < ended.plan->nodes_size(); ++n) {
      const std::string& node = ended.plan->nodes(n);
      // One that this coordinator has not seen yet may come back.
      const bool alive = members_.contains(node) || ended.incarnations.at(node).empty();
      needed = needed || (alive && plan::HasWorkers(*ended.plan, static_cast<size_t>(n)) && !ended.released.contains(node));
    }
    if (needed) continue;
    AddReason(absl::StrCat("job ", current->first, " has ended"), outcome);
    EndJob(current, "", outcome);
  }
}

}  // namespace dmuon::coordinator
