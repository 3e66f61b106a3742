// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "tests/sim/copies.h"

#include <string>
#include <utility>

#include "daemon/node/recovery.h"
#include "daemon/plan/plan.h"

namespace dmuon::sim {
namespace {

constexpr char kCopy = 'c';
constexpr char kBack = 'b';

}  // namespace

Copies::Copies(Cluster* cluster, const v1::JobSpec& job, const v1::Plan& plan, uint32_t self, Peers* peers)
    : cluster_(cluster),
      nodes_(static_cast<uint32_t>(plan.nodes_size())),
      self_(self),
      buddy_(plan.buddies().empty() ? self : plan.buddies(static_cast<int>(self))),
      sync_(job.replication() == v1::REPLICATION_SYNC),
      peers_(peers),
      ward_(node::WardOf(plan, self)) {
  for (uint32_t node = 0; node < nodes_; ++node) owns_nothing_.push_back(plan::OwnsNothing(plan, node));
}

bool Copies::sync() const { return on() && sync_ && !cluster_->Planted(Plant::kUnawaitedCopy); }

void Copies::Begin(uint64_t step) {
  step_ = step;
  sending_ = kept_.steps.GiveWay(step);
  receiving_ = copied_.steps.GiveWay(step);
  sent_ = false;
  peers_->OpenCopies();
}

void Copies::Pack(const Values& masters, bool send) {
  kept_.values[*sending_] = masters;
  if (send) SendRest();
}

void Copies::SendRest() {
  if (!underway() || std::exchange(sent_, true)) return;
  peers_->SendCopy(kCopy, buddy_, ToBytes(kept_.values[*sending_]));
}

Task<absl::Status> Copies::End(absl::Time until) {
  if (!sending_.has_value()) co_return absl::OkStatus();
  absl::Status status = absl::AbortedError("the nodes are not connected");
  if (underway()) {
    SendRest();
    std::vector<bool> from(nodes_);
    from[*ward_] = true;
    std::vector<std::string> in;
    status = co_await peers_->CloseCopies(kCopy, std::move(from), until, &in);
    if (status.ok()) copied_.values[receiving_] = FromBytes<Digest>(in[*ward_]);
  }
  const bool planted = cluster_->Planted(Plant::kUnkeptCopy) && step_ % 2 == 1;
  if (status.ok() && !planted) {
    kept_.steps.Arrived(*sending_, step_);
    copied_.steps.Arrived(receiving_, step_);
  }
  sending_.reset();
  co_return status;
}

Task<absl::Status> Copies::Exchange(uint64_t step, Values masters, absl::Time until) {
  if (!on()) co_return absl::OkStatus();
  Begin(step);
  Pack(masters, /*send=*/true);
  co_return co_await End(until);
}

void Copies::Extend(uint64_t step) {
  kept_.steps.Extend(step);
  copied_.steps.Extend(step);
}

void Copies::ForgetAfter(uint64_t step) {
  kept_.steps.ForgetAfter(step);
  copied_.steps.ForgetAfter(step);
}

void Copies::Describe(v1::PeerReport& report) const {
  kept_.steps.Describe(*report.mutable_kept());
  if (!cluster_->Planted(Plant::kForgottenCopies)) copied_.steps.Describe(*report.mutable_copied());
}

std::optional<Values> Copies::GoBack(uint64_t step) {
  sending_.reset();
  const std::optional<size_t> copy = kept_.steps.Find(step);
  return copy.has_value() ? std::optional(kept_.values[*copy]) : std::nullopt;
}

Task<absl::Status> Copies::GiveBack(std::vector<bool> lost, uint64_t step, absl::Time until, Values* masters) {
  sending_.reset();
  const size_t copy = lost[self_] ? kept_.steps.GiveWay(step) : 0;
  const bool gives = lost[*ward_] && !owns_nothing_[*ward_];
  const std::optional<size_t> wards = gives ? copied_.steps.Find(step) : std::nullopt;
  peers_->OpenCopies();
  if (wards.has_value()) {
    const bool stale = cluster_->Planted(Plant::kStaleCopy) && !copied_.values[1 - *wards].empty();
    const size_t given = stale ? 1 - *wards : *wards;
    peers_->SendCopy(kBack, *ward_, ToBytes(copied_.values[given]));
  }
  std::vector<bool> from(nodes_);
  from[buddy_] = lost[self_] && !owns_nothing_[self_];
  std::vector<std::string> in;
  const absl::Status status = co_await peers_->CloseCopies(kBack, std::move(from), until, &in);
  if (!status.ok() || !lost[self_]) co_return status;
  kept_.values[copy] = owns_nothing_[self_] ? *masters : FromBytes<Digest>(in[buddy_]);
  kept_.steps.Arrived(copy, step);
  *masters = kept_.values[copy];
  co_return absl::OkStatus();
}

}  // namespace dmuon::sim
