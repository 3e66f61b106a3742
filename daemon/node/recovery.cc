// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/recovery.h"

#include <algorithm>
#include <functional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/plan/plan.h"
#include "wire/error.h"

namespace dmuon::node {
namespace {

using Ranges = google::protobuf::RepeatedPtrField<v1::StepRange>;

bool Has(const Ranges& ranges, uint64_t step) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [&](const v1::StepRange& range) { return range.first() <= step && step <= range.last(); });
}

bool IsInUse(const v1::PeerReport& report, uint64_t step) { return report.reached() == step + kLoaded; }

bool CanHave(const v1::Plan& plan, const Reports& reports, const std::vector<bool>& lost, size_t node, uint64_t step) {
  if (!lost[node]) return IsInUse(reports[node], step) || Has(reports[node].kept(), step);
  if (plan::OwnsNothing(plan, node)) return true;
  const uint32_t buddy = plan.buddies(static_cast<int>(node));
  return !lost[buddy] && Has(reports[buddy].copied(), step);
}

std::string Text(const Ranges& ranges) {
  std::vector<std::string> texts;
  for (const v1::StepRange& range : ranges) {
    texts.push_back(range.first() == range.last() ? absl::StrCat(range.first())
                                                  : absl::StrCat(range.first(), "-", range.last()));
  }
  return texts.empty() ? "none" : absl::StrJoin(texts, ", ");
}

// What there is of a lost node's state.
std::string WhatIsLeft(const v1::Plan& plan, const Reports& reports, const std::vector<bool>& lost, size_t node) {
  const uint32_t buddy = plan.buddies(static_cast<int>(node));
  return absl::StrCat("of node ", plan.nodes(static_cast<int>(node)), ", node ", plan.nodes(static_cast<int>(buddy)),
                      lost[buddy] ? " kept the copies, and is lost itself"
                                  : absl::StrCat(" has copies of steps: ", Text(reports[buddy].copied())));
}

}  // namespace

std::optional<uint32_t> WardOf(const v1::Plan& plan, uint32_t self) {
  for (uint32_t node = 0; node < static_cast<uint32_t>(plan.buddies_size()); ++node) {
    if (plan.buddies(static_cast<int>(node)) == self && node != self) return node;
  }
  return std::nullopt;
}

std::vector<bool> LostNodes(const v1::Plan& plan, const Reports& reports) {
  const bool went_on = std::any_of(reports.begin(), reports.end(),
                                   [](const v1::PeerReport& report) { return report.reached() > kLoaded; });
  std::vector<bool> lost;
  for (size_t node = 0; node < reports.size(); ++node) {
    const uint32_t buddy = plan.buddies(static_cast<int>(node));
    const bool was = went_on || reports[node].lost() || !reports[buddy].copied().empty();
    lost.push_back(reports[node].reached() == 0 && was);
  }
  return lost;
}

bool AnyIsLost(const v1::Plan& plan, const Reports& reports) {
  const std::vector<bool> lost = LostNodes(plan, reports);
  return std::find(lost.begin(), lost.end(), true) != lost.end();
}

bool PassOver(const v1::Plan& plan, Reports& reports) {
  const auto beyond = std::find_if(reports.begin(), reports.end(),
                                   [](const v1::PeerReport& report) { return report.reached() >= kLoaded; });
  if (beyond == reports.end()) return false;
  const v1::PeerReport there = *beyond;
  std::vector<size_t> anew;
  for (size_t node = 0; node < reports.size(); ++node) {
    const uint64_t reached = reports[node].reached();
    const bool has_copies = plan.buddies_size() > 0 && plan.buddies(static_cast<int>(node)) != node;
    if (reached == 0 && !has_copies && plan::OwnsNothing(plan, node)) {
      anew.push_back(node);
    } else if (reached != there.reached() || reports[node].recovering() || reports[node].recoveries() != there.recoveries()) {
      return false;
    }
  }
  for (const size_t node : anew) {
    reports[node].set_reached(there.reached());
    *reports[node].mutable_verdict() = there.verdict();
    reports[node].set_recoveries(there.recoveries());
  }
  return !anew.empty();
}

bool NeedRecovery(const v1::Plan& plan, const Reports& reports) {
  const uint64_t most = MostRecoveries(reports);
  return AnyIsLost(plan, reports) || std::any_of(reports.begin(), reports.end(), [&](const v1::PeerReport& report) {
           return report.recovering() || report.recoveries() != most;
         });
}

uint64_t MostRecoveries(const Reports& reports) {
  uint64_t most = 0;
  for (const v1::PeerReport& report : reports) most = std::max(most, report.recoveries());
  return most;
}

absl::StatusOr<uint64_t> CommonStep(const v1::Plan& plan, const Reports& reports, const std::vector<bool>& lost) {
  const auto restores = [](const v1::PeerReport& report) { return !report.restore().empty(); };
  if (std::any_of(reports.begin(), reports.end(), restores)) {
    return wire::Error(absl::StatusCode::kDataLoss, v1::ERROR_REASON_STATE_LOST,
                       absl::StrCat("job '", plan.job_id(), "': node ", NamesOf(plan, lost),
                                    " was lost while a checkpoint was being restored; restore it again"));
  }
  std::set<uint64_t, std::greater<>> steps;
  for (const v1::PeerReport& report : reports) {
    if (report.reached() >= kLoaded) steps.insert(report.reached() - kLoaded);
    // Of a range, the last step that all have is the first or last of another one.
    for (const Ranges* ranges : {&report.kept(), &report.copied()}) {
      for (const v1::StepRange& range : *ranges) steps.insert({range.first(), range.last()});
    }
  }
  for (const uint64_t step : steps) {
    bool all = true;
    for (size_t node = 0; all && node < reports.size(); ++node) all = CanHave(plan, reports, lost, node, step);
    if (all) return step;
  }
  std::vector<std::string> left;
  for (size_t node = 0; node < lost.size(); ++node) {
    if (lost[node]) left.push_back(WhatIsLeft(plan, reports, lost, node));
  }
  return wire::Error(absl::StatusCode::kDataLoss, v1::ERROR_REASON_STATE_LOST,
                     absl::StrCat("job '", plan.job_id(), "' has lost the state of node ", NamesOf(plan, lost), ": ",
                                  absl::StrJoin(left, "; "), "; no step is on all nodes"));
}

bool LackCopies(const Reports& reports, uint64_t target) {
  const auto is_there = [&](const v1::PeerReport& report) { return report.reached() >= target; };
  const auto has_copy = [&](const v1::PeerReport& report) { return Has(report.kept(), target - 1 - kLoaded); };
  return std::none_of(reports.begin(), reports.end(), is_there) && !std::all_of(reports.begin(), reports.end(), has_copy);
}

v1::StepVerdict VerdictOf(const Reports& reports, uint64_t step) {
  const auto found = std::find_if(reports.begin(), reports.end(),
                                  [&](const v1::PeerReport& report) { return IsInUse(report, step); });
  return found == reports.end() ? v1::StepVerdict() : found->verdict();
}

absl::Status CheckNext(const v1::Plan& plan, const Reports& reports, uint64_t target, uint64_t was_at, uint64_t reached) {
  if (target <= reached + 1 && was_at < target) return absl::OkStatus();
  if (target <= reached + 1) {
    return wire::Error(absl::StatusCode::kAborted, v1::ERROR_REASON_PEER_LOST,
                       absl::StrCat("job '", plan.job_id(), "': step ", target - kLoaded, ", which no worker was told of, is undone, "
                                    "because node ", NamesOf(plan, LostNodes(plan, reports)), " was lost"));
  }
  return wire::Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_ROLLED_BACK,
                     absl::StrCat("job '", plan.job_id(), "' has gone back from step ", target - 1 - kLoaded, " to step ",
                                  reached - kLoaded, ", the last one that there are copies of, because node ",
                                  NamesOf(plan, LostNodes(plan, reports)), " was lost; begin again"));
}

std::string NamesOf(const v1::Plan& plan, const std::vector<bool>& nodes) {
  std::vector<std::string> names;
  for (size_t node = 0; node < nodes.size(); ++node) {
    if (nodes[node]) names.push_back(plan.nodes(static_cast<int>(node)));
  }
  return absl::StrJoin(names, ", ");
}

}  // namespace dmuon::node
