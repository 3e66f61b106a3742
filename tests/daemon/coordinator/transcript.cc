// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/daemon/coordinator/transcript.h"

#include <cstdint>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tests/daemon/coordinator/requests.h"
#include "wire/error.h"

namespace dmuon::coordinator {
namespace {

std::string Get(const std::map<std::string, std::string>& words, const std::string& key,
                const std::string& otherwise) {
  const auto found = words.find(key);
  return found == words.end() ? otherwise : found->second;
}

uint64_t GetNumber(const std::map<std::string, std::string>& words, const std::string& key,
                   uint64_t otherwise) {
  uint64_t number = otherwise;
  const auto found = words.find(key);
  if (found != words.end() && !absl::SimpleAtoi(found->second, &number)) return otherwise;
  return number;
}

std::string StatusText(const absl::Status& status) {
  if (status.ok()) return "OK";
  return absl::StrCat(absl::StatusCodeToString(status.code()), "/",
                      wire::ReasonName(wire::ReasonOf(status)), ": ", status.message());
}

std::string PlanText(const v1::Plan& plan) {
  std::string text =
      absl::StrCat("plan of ", plan.job_id(), ", generation ", plan.generation(), ", nodes");
  for (int i = 0; i < plan.nodes_size(); ++i) {
    absl::StrAppend(&text, " ", plan.nodes(i), ":", plan.slots(i));
  }
  return absl::StrCat(text, ", ", plan.units_size(), " units");
}

std::string EventText(const v1::WatchPlansResponse& event) {
  if (event.has_plan()) return absl::StrCat(PlanText(event.plan()), event.has_job() ? ", and the job" : "");
  if (event.has_successor()) return absl::StrCat("successor, ", PlanText(event.successor()));
  if (event.has_call()) return absl::StrCat("call to attempt ", event.call().attempt(), ", generation ", event.call().generation());
  if (event.has_end()) {
    return absl::StrCat("end of ", event.end().job_id(), ", generation ", event.end().generation());
  }
  const v1::Refusal& refusal = event.refusal();
  return absl::StrCat("refusal of ", refusal.job_id(), ", ",
                      absl::StatusCodeToString(static_cast<absl::StatusCode>(refusal.code())), "/",
                      refusal.reason(), ": ", refusal.message());
}

}  // namespace

Transcript::Transcript() : core_(Options{.lease = absl::Seconds(15), .highest_generation = 0}) {}

v1::NodeIdentity Transcript::Identity(const std::string& node, const Words& words) {
  return Node(node, Get(words, "incarnation", incarnations_[node]));
}

v1::HeldJob Transcript::Held(const v1::JoinRequest& request, const Words& words) {
  const std::vector<std::string> parts = absl::StrSplit(words.at("held"), absl::ByAnyChar("@:"));
  const std::vector<std::string> nodes = absl::StrSplit(Get(words, "nodes", request.node().node_id()), '+');
  v1::HeldJob job;
  *job.mutable_job() = ModelOf(parts.at(0), "mlp", static_cast<uint32_t>(nodes.size()));
  job.set_last_step(std::stoull(parts.at(2)));
  job.set_has_state(Get(words, "state", "no") == "yes");
  v1::Plan& plan = *job.mutable_plan();
  plan.set_job_id(parts.at(0));
  plan.set_generation(std::stoull(parts.at(1)));
  for (size_t i = 0; i < nodes.size(); ++i) {
    plan.add_nodes(nodes[i]);
    plan.add_slots(request.slots());
    if (Get(words, "copies", "") == "ring") plan.add_buddies(static_cast<uint32_t>((i + 1) % nodes.size()));
  }
  for (const absl::string_view rank : absl::StrSplit(Get(words, "ranks", ""), '+', absl::SkipEmpty())) {
    v1::HeldShards& shards = *job.add_ranks();
    shards.set_rank(static_cast<uint32_t>(std::stoul(std::string(rank))));
    *shards.mutable_shards() = RankOf(request.node(), job.job(), shards.rank()).shards();
  }
  return job;
}

Outcome Transcript::Join(const std::string& node, const Words& words) {
  v1::JoinRequest request = JoinOf(node, static_cast<uint32_t>(GetNumber(words, "slots", 1)),
                                   Get(words, "incarnation", "1"));
  request.set_highest_generation(GetNumber(words, "generation", 0));
  request.set_protocol_version(
      static_cast<uint32_t>(GetNumber(words, "protocol", request.protocol_version())));
  request.set_owns_all(Get(words, "owns", "local") == "all");
  if (words.contains("held")) *request.add_held() = Held(request, words);
  Outcome outcome = core_.Join(now_, request);
  if (outcome.status.ok()) incarnations_[node] = request.node().incarnation();
  return outcome;
}

Outcome Transcript::Register(const std::string& node, const Words& words) {
  const v1::JobSpec job = ModelOf(Get(words, "job", "demo"), Get(words, "model", "mlp"),
                                  static_cast<uint32_t>(GetNumber(words, "of", 1)));
  return core_.RegisterWorker(
      now_, RankOf(Identity(node, words), job, static_cast<uint32_t>(GetNumber(words, "rank", 0)),
                   Get(words, "split", "rows"), Get(words, "fault", "")));
}

std::vector<std::string> Transcript::Report(const std::string& node, const Words& words) {
  const std::string name = Get(words, "name", "x");
  const uint64_t step = GetNumber(words, "step", 0);
  const v1::NodeIdentity who = Identity(node, words);
  const bool fails = words.contains("failure");
  v1::ReportPartRequest request = fails ? FailureOf(who, name, step, Get(words, "failure", "")) : ReportOf(who, name, step);
  if (const uint64_t part = GetNumber(words, "part", 0); part > 0) {
    *request.mutable_part() = ReportOf(who, name, step, part).part();
  }
  request.set_job_id(Get(words, "job", request.job_id()));
  request.set_generation(GetNumber(words, "generation", request.generation()));
  if (words.contains("file")) request.mutable_part()->set_file(words.at("file"));
  if (words.contains("sha")) request.mutable_part()->set_header_sha256(words.at("sha"));
  if (words.contains("of")) request.mutable_part()->set_node_id(words.at("of"));
  v1::ReportPartResponse response;
  std::vector<std::string> lines = Describe(core_.ReportPart(request, response));
  if (!response.parts().empty()) lines.emplace_back("parts:");
  for (const v1::CheckpointPart& part : response.parts()) {
    absl::StrAppend(&lines.back(), " ", part.node_id(), "#", part.entries());
  }
  if (!response.waiting_for().empty()) {
    lines.push_back(absl::StrCat("waits for: ", absl::StrJoin(response.waiting_for(), " ")));
  }
  if (!response.failure().empty()) lines.push_back("failure: " + response.failure());
  return lines;
}

std::vector<std::string> Transcript::Meet(const std::string& node, const Words& words) {
  v1::Meeting meeting;
  *meeting.mutable_node() = Identity(node, words);
  meeting.set_job_id(Get(words, "job", "demo"));
  meeting.set_generation(GetNumber(words, "generation", 1));
  meeting.set_attempt(GetNumber(words, "attempt", 0));
  uint64_t attempt = 0;
  std::vector<std::string> lines = Describe(core_.NextAttempt(meeting, attempt));
  if (attempt > 0) lines.push_back(absl::StrCat("attempt ", attempt));
  return lines;
}

Outcome Transcript::Release(const std::string& node, const Words& words) {
  v1::ReleaseJobRequest request;
  *request.mutable_node() = Identity(node, words);
  request.set_job_id(Get(words, "job", "demo"));
  const auto planned = core_.GetPlan(request.job_id());
  request.set_generation(planned.ok() ? planned->plan().generation() : 0);
  request.set_in_order(Get(words, "in_order", "no") == "yes");
  request.set_generation(GetNumber(words, "generation", request.generation()));
  request.set_handover_failure(Get(words, "failure", ""));
  return core_.ReleaseJob(now_, request);
}

std::vector<std::string> Transcript::Drain(const std::string& node, bool undo) {
  v1::DrainNodeRequest request;
  request.set_node_id(node);
  request.set_undo(undo);
  return WithPlans(Describe(core_.Drain(request)));
}

// As the host does after what may call for plans.
std::vector<std::string> Transcript::WithPlans(std::vector<std::string> lines) {
  while (core_.NeedsReplan()) {
    const std::vector<std::string> more = Describe(core_.Replan());
    lines.insert(lines.end(), more.begin() + 1, more.end());
  }
  return lines;
}

std::vector<std::string> Transcript::Describe(const Outcome& outcome) const {
  std::vector<std::string> lines = {StatusText(outcome.status)};
  if (!outcome.reason.empty()) lines.push_back("why: " + outcome.reason);
  for (const Outgoing& out : outcome.outgoing) {
    lines.push_back(absl::StrCat("to ", out.node_id, ": ", EventText(out.event)));
  }
  return lines;
}

std::vector<std::string> Transcript::DescribeStatus() const {
  const v1::GetClusterStatusResponse status = core_.Status(now_);
  std::vector<std::string> lines;
  for (const v1::NodeStatus& node : status.nodes()) {
    lines.push_back(absl::StrCat("node ", node.node().node_id(), "#", node.node().incarnation(),
                                 ": ", node.slots(), " slots, lease ends in ",
                                 node.lease_remaining_seconds(), " s", node.drained() ? ", drained" : ""));
  }
  for (const v1::JobStatus& job : status.jobs()) {
    lines.push_back(absl::StrCat("job ", job.job_id(), ": ", job.state(), ", generation ",
                                 job.generation(), ", ", job.registered_ranks(), " of ",
                                 job.world_size(), " ranks, ", job.tensors(), " tensors",
                                 job.handover_failure().empty() ? "" : ", no handover: ", job.handover_failure()));
  }
  lines.push_back(absl::StrCat("highest generation ", status.highest_generation()));
  return lines;
}

std::vector<std::string> Transcript::DescribePlan(const std::string& job) const {
  const auto response = core_.GetPlan(job);
  if (!response.ok()) return {StatusText(response.status())};
  std::vector<std::string> lines = {PlanText(response->plan())};
  for (const v1::Unit& unit : response->plan().units()) {
    const v1::Tensor& tensor = response->job().tensors(static_cast<int>(unit.tensor()));
    const auto box = wire::ParseBox(
        unit.box(), {tensor.shape().data(), static_cast<size_t>(tensor.shape_size())}, "unit");
    lines.push_back(absl::StrCat(tensor.name(), box->ToString(), " on ",
                                 response->plan().nodes(static_cast<int>(unit.owners(0).node())),
                                 "/", unit.owners(0).slot()));
  }
  return lines;
}

std::vector<std::string> Transcript::Run(const std::string& command) {
  const std::vector<std::string> parts = absl::StrSplit(command, ' ', absl::SkipEmpty());
  const std::string& verb = parts.at(0);
  std::string subject;
  Words words;
  for (size_t i = 1; i < parts.size(); ++i) {
    const std::vector<std::string> pair = absl::StrSplit(parts[i], absl::MaxSplits('=', 1));
    if (pair.size() == 2) {
      words[pair[0]] = pair[1];
    } else {
      subject = parts[i];
    }
  }
  if (verb == "join") return WithPlans(Describe(Join(subject, words)));
  if (verb == "register") return Describe(Register(subject, words));
  if (verb == "report") return Report(subject, words);
  if (verb == "status") return DescribeStatus();
  if (verb == "plan") return DescribePlan(Get(words, "job", "demo"));
  if (verb == "beat" || verb == "leave") {
    v1::BeatRequest beat;
    *beat.mutable_node() = Identity(subject, words);
    v1::LeaveRequest leave;
    *leave.mutable_node() = beat.node();
    return verb == "beat" ? Describe(core_.Beat(now_, beat)) : WithPlans(Describe(core_.Leave(now_, leave)));
  }
  if (verb == "release") return Describe(Release(subject, words));
  if (verb == "drain" || verb == "undrain") return Drain(subject, verb == "undrain");
  if (verb == "meet") return Meet(subject, words);
  if (verb == "watch") {
    std::vector<std::string> lines;
    for (const auto& event : core_.CurrentEvents(subject)) lines.push_back(EventText(event));
    return lines;
  }
  absl::Duration duration;
  if (verb == "wait" && absl::ParseDuration(subject, &duration)) {
    now_ += duration;
    return WithPlans(Describe(core_.Tick(now_)));
  }
  return {absl::StrCat("unknown command: ", command)};
}

std::string Replay(const std::string& text) {
  Transcript transcript;
  std::string replayed;
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  for (const std::string& line : lines) {
    if (line.rfind("-> ", 0) == 0) continue;  // said anew below its command
    absl::StrAppend(&replayed, line, "\n");
    if (line.empty() || line[0] == '#') continue;
    for (const std::string& outcome : transcript.Run(line)) {
      absl::StrAppend(&replayed, "-> ", outcome, "\n");
    }
  }
  // Splitting gave one empty line behind the last line break.
  if (!replayed.empty() && replayed.back() == '\n') replayed.pop_back();
  return replayed;
}

}  // namespace dmuon::coordinator
