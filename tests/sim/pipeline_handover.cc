// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A model of daemon/node/step_handover.cc. The rounds of arrays are one mail with all that a node owns.

#include <utility>

#include "tests/sim/pipeline.h"
#include "wire/error.h"

namespace dmuon::sim {
namespace {

bool IsLost(const absl::Status& status) {
  const v1::ErrorReason reason = wire::ReasonOf(status);
  return reason == v1::ERROR_REASON_PEER_LOST || reason == v1::ERROR_REASON_DRAINING;
}

}  // namespace

Pipeline::Heir Pipeline::TakeHeir() {
  if (!is_over_) return {};
  is_over_ = false;
  Heir heir = std::exchange(heir_, Heir());
  heir.pipeline->arenas_ = arenas_;
  return heir;
}

Event Pipeline::HandedOver() const {
  Event event = EventOf(What::kHandedOver);
  event.digests = Owned();
  return event;
}

Task<absl::Status> Pipeline::HandOver(absl::Time until) {
  absl::Status status = co_await MakeHeir(until);
  if (IsLost(status)) co_return status;
  is_over_ = status.ok();
  if (is_over_ && cluster_->Strikes(Plant::kKeptPlan)) {
    is_over_ = false;
    heir_ = Heir();
    successor_ = nullptr;
    OpenGradients();
    co_return absl::OkStatus();
  }
  if (is_over_) {
    heir_.pipeline->OpenGradients();
    co_return absl::OkStatus();
  }
  handover_failure_ = std::move(status);
  heir_ = Heir();
  successor_ = nullptr;
  co_return absl::OkStatus();
}

// The teller of a restore: all have the first error.
Task<absl::Status> Pipeline::TellHandover(absl::Status mine, absl::Time until) {
  v1::PeerReport report;
  report.set_target(reached_ + 1);
  report.set_reached(reached_);
  report.set_restore("handover");
  node::SetStatus(mine, report);
  const auto reports = co_await Tell(std::move(report), until);
  if (!reports.ok()) co_return reports.status();
  co_return node::CheckRestore(*job_, *plan_, *reports);
}

Task<absl::Status> Pipeline::MakeHeir(absl::Time until) {
  const std::shared_ptr<const Successor> next = successor_;
  absl::Status share;
  if (cluster_->no_memory > 0 && cluster_->world.random.Chance(cluster_->no_memory)) {
    share = wire::Error(absl::StatusCode::kResourceExhausted, v1::ERROR_REASON_UNSPECIFIED, "no memory for a second state");
  }
  absl::Status status = co_await TellHandover(std::move(share), until);
  if (!status.ok()) co_return status;
  Heir heir{next, std::make_unique<Pipeline>(cluster_, process_, job_, &next->plan, self_, peers_)};
  Pipeline& after = *heir.pipeline;
  status = co_await Settle(until);
  if (!status.ok()) co_return status;
  peers_->Open();
  std::vector<std::string> in;
  std::vector<std::string> out(static_cast<size_t>(plan_->nodes_size()), ToBytes(masters_));
  status = co_await peers_->Close('h', std::move(out), until, &in);
  if (!status.ok()) co_return status;
  const bool planted = cluster_->Planted(Plant::kLostInHandover);
  for (uint32_t unit = 0; unit < units_; ++unit) {
    if (after.OwnerOf(unit) != self_) continue;
    const bool mine = OwnerOf(unit) == self_;
    after.masters_[unit] = mine ? masters_[unit] : FromBytes<Digest>(in[OwnerOf(unit)])[unit];
    if (planted && !mine) after.masters_[unit] = Mix(after.masters_[unit], 1);
  }
  after.reached_ = reached_;
  after.verdict_ = verdict_;
  after.recoveries_ = recoveries_;
  after.arenas_ = arenas_;  // which have these values, unless connections broke while all loaded them
  std::map<uint32_t, uint64_t> delivered;
  for (const auto& [rank, arena] : arenas_) delivered[rank] = arena == nullptr ? 0 : arena->delivered;
  status = co_await after.PublishAll(until);
  for (const auto& [rank, arena] : arenas_) {
    if (arena != nullptr) arena->delivered = delivered[rank];
  }
  if (!status.ok()) co_return status;
  heir_ = std::move(heir);
  absl::Status well;
  co_return co_await TellHandover(std::move(well), until);
}

}  // namespace dmuon::sim
