// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/round.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "wire/error.h"

namespace dmuon::node {
namespace {

// As torch.nn.utils.clip_grad_norm_: keeps the factor finite for a norm of zero.
constexpr double kClipEps = 1e-6;

const std::string& NameOf(const v1::Plan& plan, size_t node) { return plan.nodes(static_cast<int>(node)); }

bool Restores(const v1::PeerReport& report) { return !report.restore().empty(); }

absl::Status ErrorOf(const v1::PeerReport& report, const std::string& message) {
  return wire::Error(static_cast<absl::StatusCode>(report.code()), wire::ReasonFromName(report.reason()), message);
}

// Node `restoring` restores the state that another node wants to go on from.
absl::Status CannotRestoreNow(const v1::JobSpec& job, const v1::Plan& plan, const Reports& reports, size_t restoring) {
  const auto other = std::find_if_not(reports.begin(), reports.end(), Restores);
  return wire::Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_CHECKPOINT,
                     absl::StrCat("job '", job.job_id(), "': the workers of node ", NameOf(plan, restoring),
                                  " restore ", reports[restoring].restore(), ", those of node ",
                                  NameOf(plan, static_cast<size_t>(other - reports.begin())), " want step ",
                                  other->target() - kLoaded, "; all must restore"));
}

absl::Status MissingGradient(const v1::JobSpec& job, const Reports& reports, uint64_t step) {
  const auto tensors = static_cast<uint32_t>(job.tensors_size());
  std::vector<uint32_t> ranks;
  uint32_t tensor = std::numeric_limits<uint32_t>::max();  // the first
  for (const v1::PeerReport& report : reports) {
    if (report.target() != step + kLoaded) continue;
    for (const v1::MissingGradients& missing : report.missing()) {
      if (missing.tensor() >= tensors) continue;
      if (missing.tensor() < tensor) ranks.clear();
      tensor = std::min(tensor, missing.tensor());
      if (missing.tensor() != tensor) continue;
      ranks.insert(ranks.end(), missing.ranks().begin(), missing.ranks().end());
    }
  }
  if (ranks.empty()) return absl::OkStatus();
  std::sort(ranks.begin(), ranks.end());
  return wire::Error(
      absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_MISSING_GRADIENT,
      absl::StrCat("step ", step, ": no gradient for tensor '", job.tensors(static_cast<int>(tensor)).name(),
                   "' from rank ", absl::StrJoin(ranks, ", "),
                   "; nothing changed (policies: missing_gradient = error, skip, zero)"));
}

}  // namespace

void SetStatus(const absl::Status& status, v1::PeerReport& report) {
  report.set_code(static_cast<int32_t>(status.code()));
  report.set_reason(std::string(wire::ReasonName(wire::ReasonOf(status))));
  report.set_message(std::string(status.message()));
}

uint64_t LowestTarget(const Reports& reports) {
  return std::min_element(reports.begin(), reports.end(), [](const auto& a, const auto& b) {
           return a.target() < b.target();
         })->target();
}

bool AnyIsBehind(const Reports& reports, uint64_t target) {
  return std::any_of(reports.begin(), reports.end(),
                     [&](const v1::PeerReport& report) { return report.reached() < target; });
}

bool Publishes(const Reports& reports, uint64_t target, const v1::StepVerdict& mine) {
  const bool beyond = std::any_of(reports.begin(), reports.end(),
                                  [&](const v1::PeerReport& report) { return report.reached() > target; });
  return !beyond && !mine.skip();
}

bool AnyResubmitted(const Reports& reports) {
  return std::any_of(reports.begin(), reports.end(), [](const v1::PeerReport& report) { return report.resubmitted(); });
}

uint64_t AgreedSuccessor(const Reports& reports) {
  const v1::PeerReport& first = reports.front();
  const bool all = std::all_of(reports.begin(), reports.end(), [&](const v1::PeerReport& report) {
    return report.successor() == first.successor() && report.reached() == first.reached() && report.code() == 0 &&
           !Restores(report);
  });
  return all && first.reached() >= kLoaded ? first.successor() : 0;
}

bool FollowersLackSuccessor(const Reports& reports) {
  Reports with_workers;
  std::copy_if(reports.begin(), reports.end(), std::back_inserter(with_workers), [](const auto& report) { return !report.follows(); });
  if (with_workers.empty() || AgreedSuccessor(with_workers) == 0 || AgreedSuccessor(reports) != 0) return false;
  const uint64_t reached = with_workers.front().reached();
  return std::all_of(reports.begin(), reports.end(), [&](const v1::PeerReport& report) {
    return report.code() == 0 && report.reached() == reached && (report.follows() || report.target() == reached);
  });
}

bool AllRestore(const Reports& reports) { return std::all_of(reports.begin(), reports.end(), Restores); }

std::string RestoreToFollow(const Reports& reports) {
  std::string name;
  bool all_but_followers = true;
  for (const v1::PeerReport& report : reports) {
    all_but_followers = all_but_followers && (report.follows() || Restores(report));
    if (!report.follows() && name.empty()) name = report.restore_name();
  }
  return all_but_followers && !AllRestore(reports) ? name : "";
}

const v1::StepSettings* SettingsOf(const Reports& reports, uint64_t target) {
  const auto found = std::find_if(reports.begin(), reports.end(), [&](const v1::PeerReport& report) {
    return report.has_settings() && report.settings().target() == target;
  });
  return found == reports.end() ? nullptr : &found->settings();
}

absl::Status CheckReports(const v1::JobSpec& job, const v1::Plan& plan, const Reports& reports, uint64_t target) {
  const v1::PeerReport* first = nullptr;
  const bool loads = target == kLoaded && AnyIsBehind(reports, kLoaded);
  for (size_t node = 0; node < reports.size(); ++node) {
    const v1::PeerReport& report = reports[node];
    // Nor are initial parameters loaded beside a state that has gone on from them.
    if (report.target() > target + 1 || report.reached() + 1 < target || (loads && report.reached() > kLoaded)) {
      return wire::Error(absl::StatusCode::kDataLoss, v1::ERROR_REASON_STATE_LOST,
                         absl::StrCat("node ", NameOf(plan, node), " is at ", report.reached(), " and wants ",
                                      report.target(), ", another wants ", target));
    }
    // Its workers have trained with a state that no node of this job has.
    if (loads && report.reached() == 0 && report.lost()) {
      return wire::Error(absl::StatusCode::kDataLoss, v1::ERROR_REASON_STATE_LOST,
                         absl::StrCat("the workers of node ", NameOf(plan, node), " count on the state of job '", job.job_id(),
                                      "', and no node has it"));
    }
    if (report.target() != target) continue;
    if (Restores(report)) return CannotRestoreNow(job, plan, reports, node);
    if (report.code() != 0) return ErrorOf(report, report.message());
    if (report.hypers().empty()) continue;
    if (first == nullptr) first = &report;
    if (report.hypers() != first->hypers()) {
      return wire::Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_HYPER_MISMATCH,
                         absl::StrCat("the workers of node ", NameOf(plan, node),
                                      " sent other hyper-parameters for step ", target - kLoaded, " of job '",
                                      job.job_id(), "' than those of ",
                                      NameOf(plan, static_cast<size_t>(first - reports.data()))));
    }
  }
  if (target == kLoaded || job.missing_gradient() != v1::MISSING_GRADIENT_ERROR) return absl::OkStatus();
  return MissingGradient(job, reports, target - kLoaded);
}

absl::Status CheckRestore(const v1::JobSpec& job, const v1::Plan& plan, const Reports& reports) {
  for (size_t node = 0; node < reports.size(); ++node) {
    if (reports[node].code() == 0) continue;
    return ErrorOf(reports[node], absl::StrCat("node ", NameOf(plan, node), ": ", reports[node].message()));
  }
  const auto known =
      std::find_if(reports.begin(), reports.end(), [](const v1::PeerReport& report) { return !report.restore_unknown(); });
  const v1::PeerReport& first = known == reports.end() ? reports.front() : *known;
  for (size_t node = 0; node < reports.size(); ++node) {
    const v1::PeerReport& report = reports[node];
    const bool same = report.restore() == first.restore() ||
                      (report.restore_unknown() && absl::StartsWith(first.restore(), absl::StrCat(report.restore(), " ")));
    if (same) continue;
    return wire::Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_CHECKPOINT,
                       absl::StrCat("job '", job.job_id(), "': node ",
                                    NameOf(plan, static_cast<size_t>(&first - reports.data())), " restores ",
                                    first.restore(), ", node ", NameOf(plan, node), " ", report.restore()));
  }
  return absl::OkStatus();
}

const v1::StepVerdict* VerdictOfDone(const Reports& reports, uint64_t target) {
  const auto done = std::find_if(reports.begin(), reports.end(),
                                 [&](const v1::PeerReport& report) { return report.reached() >= target; });
  return done == reports.end() ? nullptr : &done->verdict();
}

v1::StepVerdict MergeVerdicts(const Reports& reports) {
  v1::StepVerdict verdict;
  for (const v1::PeerReport& report : reports) {
    if (report.verdict().skip() && !verdict.skip()) {
      verdict.set_skip(true);
      verdict.set_skip_reason(report.verdict().skip_reason());
    }
    verdict.set_sum_squares(verdict.sum_squares() + report.verdict().sum_squares());
  }
  return verdict;
}

Verdict Conclude(const v1::JobSpec& job, const v1::StepVerdict& verdict) {
  Verdict result;
  if (verdict.skip()) {
    result.skip = true;
    result.skip_reason = verdict.skip_reason();
    result.grad_norm = std::numeric_limits<double>::quiet_NaN();
    return result;
  }
  result.grad_norm = std::sqrt(verdict.sum_squares());
  if (job.max_grad_norm() > 0.0) {
    result.clip = std::min(1.0, job.max_grad_norm() / (result.grad_norm + kClipEps));
  }
  return result;
}

std::string NameToSave(const Reports& reports, uint64_t target) {
  for (const v1::PeerReport& report : reports) {
    if (report.target() == target && !report.save().empty()) return report.save();
  }
  return {};
}

}  // namespace dmuon::node
