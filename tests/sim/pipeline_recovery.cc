// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A model of daemon/node/step_recovery.cc.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/node/recovery.h"
#include "tests/sim/pipeline.h"
#include "wire/error.h"

namespace dmuon::sim {

using node::kLoaded;
using node::Reports;

absl::StatusOr<uint64_t> Pipeline::StepToGoTo(const Reports& reports, const std::vector<bool>& lost) {
  absl::StatusOr<uint64_t> step = node::CommonStep(*plan_, reports, lost);
  if (step.ok() || !cluster_->Planted(Plant::kFreshStart)) return step;
  uint64_t most = kLoaded;
  for (const v1::PeerReport& report : reports) most = std::max(most, report.reached());
  return most - kLoaded;
}

Task<absl::Status> Pipeline::Recover(Reports reports, absl::Time until) {
  const std::vector<bool> lost = node::LostNodes(*plan_, reports);
  const absl::StatusOr<uint64_t> step = StepToGoTo(reports, lost);
  if (!step.ok()) co_return step.status();
  if (deaf_) co_return wire::Error(absl::StatusCode::kAborted, v1::ERROR_REASON_PEER_LOST, "planted");
  deaf_ = cluster_->Planted(Plant::kDeafRecovery);
  recoveries_ = node::MostRecoveries(reports) + 1;
  recovering_ = true;
  Event event = EventOf(What::kRecovered);
  event.before = reached_;
  absl::Status status = co_await Settle(until);
  if (!status.ok()) co_return status;
  const bool stays = cluster_->Planted(Plant::kOwnStep) && !lost[self_];
  if (!lost[self_] && !stays) status = GoBack(*step);
  if (!status.ok()) co_return status;
  copies_.ForgetAfter(*step);
  const bool planted = !node::CommonStep(*plan_, reports, lost).ok();
  if (planted && lost[self_] && arenas_.begin()->second != nullptr) masters_ = arenas_.begin()->second->params;
  if (!planted) status = co_await copies_.GiveBack(lost, *step, until, &masters_);
  if (!status.ok()) co_return status;
  if (!stays) reached_ = *step + kLoaded;
  verdict_ = node::VerdictOf(reports, *step);
  event.step = reached_ - kLoaded;
  event.digest = DigestOf(masters_);
  event.digests = Owned();
  event.number = recoveries_;
  cluster_->Record(std::move(event));
  cluster_->world.Trace(process_->name, "recovery ", recoveries_, ": is at step ", *step, lost[self_] ? ", from its copies" : "");
  status = co_await PublishAll(until);
  if (!status.ok()) co_return status;
  v1::PeerReport mine = ReportOf(reached_);
  mine.clear_missing();
  const auto ends = co_await Tell(std::move(mine), until);
  if (!ends.ok()) co_return ends.status();
  status = node::CheckReports(*job_, *plan_, *ends, reached_);
  if (!status.ok()) co_return status;
  recovering_ = false;
  MarkDelivered(*step);
  Event safe = EventOf(What::kSafe);
  safe.number = recoveries_;
  cluster_->Record(std::move(safe));
  OpenGradients();
  co_return absl::OkStatus();
}

Task<absl::Status> Pipeline::Readmit(Reports reports, absl::Time until) {
  const v1::PeerReport mine = reports[self_];
  absl::Status status = co_await Settle(until);
  if (!status.ok()) co_return status;
  status = co_await PublishAll(until);
  if (!status.ok()) co_return status;
  const auto ends = co_await Tell(mine, until);
  if (!ends.ok()) co_return ends.status();
  const bool readmitted = reached_ == 0;
  reached_ = mine.reached();
  verdict_ = mine.verdict();
  if (readmitted) {
    readmitted_ = true;
    cluster_->Record(EventOf(What::kReadmitted));
    cluster_->world.Trace(process_->name, "owns nothing and goes on after step ", reached_ - kLoaded);
  }
  MarkDelivered(reached_ - kLoaded);
  OpenGradients();
  co_return absl::OkStatus();
}

absl::Status Pipeline::GoBack(uint64_t step) {
  if (reached_ == step + kLoaded) return absl::OkStatus();
  std::optional<Values> masters = copies_.GoBack(step);
  if (!masters.has_value()) {
    if (cluster_->Planted(Plant::kFreshStart)) return absl::OkStatus();
    return wire::Error(absl::StatusCode::kInternal, v1::ERROR_REASON_STATE_LOST, "no copy where one was reported");
  }
  masters_ = *std::move(masters);
  reached_ = step + kLoaded;
  verdict_.Clear();
  went_back_ = true;
  return absl::OkStatus();
}

Task<absl::Status> Pipeline::Settle(absl::Time until) {
  absl::Status status = co_await GiveUpReduction(until);
  if (status.ok() && copies_.underway()) status = co_await copies_.End(until);
  co_return status;
}

// Workers that read their parameters meanwhile find some of both states.
Task<absl::Status> Pipeline::PublishAll(absl::Time until) {
  peers_->Open();
  for (const auto& [rank, arena] : arenas_) {
    if (arena != nullptr) arena->delivered = 0;
  }
  const absl::Status status = co_await ExchangeParameters(until);
  if (!status.ok()) co_return status;
  for (const auto& [rank, arena] : arenas_) CopyOut(rank);
  co_return co_await copies_.Exchange(reached_ - kLoaded, masters_, until);
}

}  // namespace dmuon::sim
