// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What the nodes of a planned job tell each other by way of the coordinator: where they meet, and their parts of
// checkpoints.
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/coordinator/coordinator.h"
#include "wire/error.h"

namespace dmuon::coordinator {

absl::Status Coordinator::CheckPlanned(const v1::NodeIdentity& node, const std::string& job_id,
                                       uint64_t generation) const {
  DMUON_RETURN_IF_ERROR(CheckMember(node));
  const auto job = jobs_.find(job_id);
  if (job == jobs_.end() || !job->second.plan.has_value()) {
    return wire::Error(absl::StatusCode::kNotFound, v1::ERROR_REASON_UNKNOWN_JOB,
                       absl::StrCat("job '", job_id, "' is not planned"));
  }
  if (job->second.plan->generation() != generation) {
    return wire::Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_STALE_GENERATION,
                       absl::StrCat("generation ", generation, " of job '", job_id, "'; current is ",
                                    job->second.plan->generation()));
  }
  return absl::OkStatus();
}

absl::Status Coordinator::CheckMeeting(const v1::Meeting& meeting) const {
  return CheckPlanned(meeting.node(), meeting.job_id(), meeting.generation());
}

Outcome Coordinator::NextAttempt(const v1::Meeting& meeting, uint64_t& attempt) {
  Outcome outcome;
  if (IsMember(meeting.node())) Promote(meeting.job_id(), meeting.generation(), outcome);
  outcome.status = CheckMeeting(meeting);
  if (!outcome.status.ok()) return outcome;
  Job& job = jobs_.at(meeting.job_id());
  const uint64_t former = job.meeting_point.attempt();
  const auto& [node_id, incarnation] = std::pair(meeting.node().node_id(), meeting.node().incarnation());
  const auto met = job.met.find(node_id);
  // The process before this one took its connections with it.
  const bool broken = met != job.met.end() && met->second != incarnation;
  attempt = job.meeting_point.NextAttempt(broken ? former : meeting.attempt());
  if (attempt != former) job.met.clear();
  job.met[node_id] = incarnation;
  if (attempt == former) return outcome;
  for (const std::string& node : job.plan->nodes()) {
    if (node != meeting.node().node_id()) outcome.outgoing.push_back({node, job.CallEvent()});
  }
  return outcome;
}

absl::Status Coordinator::SetKey(const v1::SetKeyRequest& request) {
  DMUON_RETURN_IF_ERROR(CheckMeeting(request.meeting()));
  return jobs_.at(request.meeting().job_id())
      .meeting_point.Set(request.meeting().attempt(), request.key(), request.value());
}

absl::StatusOr<std::optional<std::string>> Coordinator::GetKey(const v1::GetKeyRequest& request) const {
  DMUON_RETURN_IF_ERROR(CheckMeeting(request.meeting()));
  return jobs_.at(request.meeting().job_id())
      .meeting_point.Get(request.meeting().attempt(), request.key());
}

Outcome Coordinator::ReportPart(const v1::ReportPartRequest& request, v1::ReportPartResponse& response) {
  Outcome outcome;
  if (IsMember(request.node())) Promote(request.job_id(), request.generation(), outcome);
  outcome.status = CheckPlanned(request.node(), request.job_id(), request.generation());
  if (!outcome.status.ok()) return outcome;
  Job& job = jobs_.at(request.job_id());
  auto answer = job.parts.Report(job.plan->nodes(), request);
  if (!answer.ok()) {
    outcome.status = std::move(answer).status();
    return outcome;
  }
  response = std::move(answer->response);
  if (!answer->news.empty()) AddReason(absl::StrCat("job ", request.job_id(), ": ", answer->news), outcome);
  return outcome;
}

}  // namespace dmuon::coordinator
