// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "tests/sim/pipeline.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/node/recovery.h"
#include "wire/error.h"

namespace dmuon::sim {
namespace {

using node::kLoaded;
using node::Reports;

}  // namespace

Pipeline::Pipeline(Cluster* cluster, Process* process, const v1::JobSpec* job, const v1::Plan* plan, uint32_t self,
                   Peers* peers)
    : cluster_(cluster),
      process_(process),
      job_(job),
      plan_(plan),
      self_(self),
      peers_(peers),
      units_(static_cast<uint32_t>(plan->units_size())),
      masters_(units_),
      published_(units_),
      packed_(units_),
      sums_(units_),
      copies_(cluster, *job, *plan, self, peers) {
  for (int rank = 0; rank < plan->rank_nodes_size(); ++rank) {
    if (plan->rank_nodes(rank) == self) arenas_[static_cast<uint32_t>(rank)] = nullptr;
  }
}

Event Pipeline::EventOf(What what) const {
  Event event;
  event.what = what;
  event.who = process_->name;
  event.job = job_->job_id();
  event.life = process_->life;
  event.generation = plan_->generation();
  event.step = reached_ - kLoaded;
  event.digest = DigestOf(masters_);
  return event;
}

Values Pipeline::Owned() const {
  Values owned = masters_;
  for (uint32_t unit = 0; unit < units_; ++unit) {
    if (OwnerOf(unit) != self_) owned[unit] = 0;
  }
  return owned;
}

Task<absl::Status> Pipeline::Initialize(absl::Time until, bool resume) {
  resume_ = resume;
  return reached_ > kLoaded ? Help(until) : Reach(kLoaded, std::nullopt, until);
}

Task<absl::Status> Pipeline::Run(uint64_t step, std::string hypers, absl::Time until) {
  Event event = EventOf(What::kRan);
  event.step = step;
  event.before = event.digest;
  const uint64_t before = reached_;
  const uint64_t recoveries = recoveries_;
  absl::Status status = co_await Reach(step + kLoaded, std::move(hypers), until);
  event.digest = DigestOf(masters_);
  event.number = recoveries_ != recoveries ? 1 : reached_ - before;
  event.status = status;
  cluster_->Record(std::move(event));
  cluster_->world.Trace(process_->name, "round for step ", step, ": ", status.ToString());
  co_return status;
}

Task<absl::Status> Pipeline::Help(absl::Time until) { return Reach(reached_, std::nullopt, until); }

Task<absl::Status> Pipeline::Reach(uint64_t target, std::optional<std::string> hypers, absl::Time until) {
  if (target > kLoaded && reached_ < target) FindMissing(target - kLoaded);
  v1::PeerReport mine = ReportOf(target);
  if (reached_ < target && hypers.has_value()) mine.set_hypers(*hypers);
  auto reports = co_await Assemble(mine, until);
  if (!reports.ok()) {
    if (cluster_->Strikes(Plant::kForgottenReached) && reached_ > kLoaded + 1) --reached_;
    co_return reports.status();
  }
  const bool passed_over = !copies_.on() && node::PassOver(*plan_, *reports);
  if (passed_over || (copies_.on() && node::NeedRecovery(*plan_, *reports))) {
    const uint64_t was_at = reached_;
    absl::Status status;
    if (passed_over) {
      status = co_await Readmit(*reports, until);
    } else {
      status = co_await Recover(*reports, until);
    }
    if (!status.ok() || reached_ >= target || !hypers.has_value()) co_return status;
    status = node::CheckNext(*plan_, *reports, target, was_at, reached_);
    if (!status.ok()) co_return status;
    mine = ReportOf(target);
    mine.set_hypers(*hypers);
    reports = co_await Tell(mine, until);
    if (!reports.ok()) co_return reports.status();
  }
  while (true) {
    if (node::AgreedSuccessor(*reports) != 0) {
      const absl::Status handed = co_await HandOver(until);
      if (!handed.ok() || is_over_) co_return handed;
      mine = ReportOf(target);
      if (reached_ < target && hypers.has_value()) mine.set_hypers(*hypers);
      reports = co_await Tell(mine, until);
      if (!reports.ok()) co_return reports.status();
    }
    const uint64_t lowest = node::LowestTarget(*reports);
    absl::Status status = node::CheckReports(*job_, *plan_, *reports, lowest);
    if (!status.ok()) co_return status;
    status = co_await Round(lowest, *reports, until);
    if (!status.ok()) co_return status;
    if (lowest == target) co_return absl::OkStatus();
    reports = co_await Tell(mine, until);
    if (!reports.ok()) co_return reports.status();
  }
}

Task<absl::StatusOr<Reports>> Pipeline::Assemble(v1::PeerReport mine, absl::Time until) {
  while (peers_ != nullptr) {
    const bool used_before = peers_->connected();
    absl::Status connected = co_await peers_->Connect(until);
    if (wire::ReasonOf(connected) == v1::ERROR_REASON_STALE_GENERATION) {
      ConfirmHandover();
      co_return wire::Error(absl::StatusCode::kAborted, v1::ERROR_REASON_PEER_LOST, "the others have gone over to another plan");
    }
    if (!connected.ok()) co_return connected;
    auto reports = co_await Tell(mine, until);
    if (reports.ok()) heir_ = Heir();  // all are still here
    if (!used_before || !absl::IsAborted(reports.status())) co_return reports;
  }
  co_return co_await Tell(mine, until);
}

Task<absl::StatusOr<Reports>> Pipeline::Tell(v1::PeerReport mine, absl::Time until) {
  if (peers_ == nullptr) co_return Reports{mine};
  co_return co_await peers_->Tell(std::move(mine), until);
}

Task<absl::Status> Pipeline::Round(uint64_t target, Reports reports, absl::Time until) {
  const bool behind = node::AnyIsBehind(reports, target);
  absl::Status status;
  if (behind && target == kLoaded) {
    status = co_await Load(until);
  } else if (behind) {
    status = co_await Advance(target, reports, until);
  } else {
    status = co_await GiveUpReduction(until);
  }
  if (!status.ok()) co_return status;
  const bool publishes = node::Publishes(reports, target, verdict_) ||
                         (cluster_->Planted(Plant::kOwnVerdict) && !verdict_.skip());
  if (publishes) status = co_await Publish(target, until);
  if (!status.ok()) co_return status;
  v1::PeerReport mine = ReportOf(target);
  const auto ends = co_await Tell(std::move(mine), until);
  if (!ends.ok()) co_return ends.status();
  status = node::CheckReports(*job_, *plan_, *ends, target);
  if (!status.ok()) co_return status;
  MarkDelivered(target - kLoaded);
  if (target == kLoaded && copies_.on()) cluster_->Record(EventOf(What::kSafe));
  OpenGradients();
  co_return absl::OkStatus();
}

Task<absl::Status> Pipeline::Load(absl::Time until) {
  absl::Status status;
  if (peers_ != nullptr) {
    peers_->Open();
    std::vector<std::string> nothing;
    std::vector<std::string> out(static_cast<size_t>(plan_->nodes_size()));
    status = co_await peers_->Close('l', std::move(out), until, &nothing);
    if (!status.ok()) co_return status;
  }
  v1::PeerReport mine = ReportOf(kLoaded);
  for (uint32_t unit = 0; unit < units_; ++unit) {
    const std::shared_ptr<Arena>& arena = arenas_.begin()->second;
    if (OwnerOf(unit) == self_ && arena != nullptr) masters_[unit] = arena->params[unit];
    if (OwnerOf(unit) == self_ && arena == nullptr) node::SetStatus(absl::AbortedError("a worker has gone"), mine);
  }
  const auto reports = co_await Tell(std::move(mine), until);
  if (!reports.ok()) co_return reports.status();
  status = node::CheckReports(*job_, *plan_, *reports, kLoaded);
  if (!status.ok()) co_return status;
  reached_ = kLoaded;
  Event event = EventOf(What::kLoaded);
  event.digests = Owned();
  cluster_->Record(std::move(event));
  cluster_->world.Trace(process_->name, "loads the initial parameters");
  co_return absl::OkStatus();
}

Task<absl::Status> Pipeline::Advance(uint64_t target, Reports reports, absl::Time until) {
  absl::Status status = co_await FinishReduction(reached_ < target, until);
  if (!status.ok()) co_return status;
  if (copies_.underway()) {
    status = co_await copies_.End(until);
  } else if (copies_.on() && node::LackCopies(reports, target)) {
    status = co_await copies_.Exchange(target - 1 - kLoaded, masters_, until);
  }
  if (!status.ok()) co_return status;
  v1::StepVerdict verdict;
  if (const v1::StepVerdict* done = node::VerdictOfDone(reports, target); done != nullptr) {
    verdict = *done;
  } else {
    v1::PeerReport mine = ReportOf(target);
    mine.clear_verdict();
    for (uint32_t unit = 0; unit < units_; ++unit) {
      if (OwnerOf(unit) == self_) Judge(sums_[unit], *mine.mutable_verdict());
    }
    if (cluster_->Strikes(Plant::kEagerUpdate)) {
      verdict_ = mine.verdict();
      for (Digest& master : masters_) master = Mix(master, target);
    }
    const auto judged = co_await Tell(mine, until);
    if (!judged.ok()) co_return judged.status();
    verdict = node::MergeVerdicts(*judged);
  }
  if (reached_ >= target) co_return absl::OkStatus();
  verdict_ = verdict;
  if (!verdict.skip()) co_return absl::OkStatus();
  Apply(target);
  copies_.Extend(target - kLoaded);
  co_return absl::OkStatus();
}

// What moves `reached_`: an update, or a step that is skipped.
void Pipeline::Apply(uint64_t target) {
  const Digest before = DigestOf(masters_);
  const node::Verdict verdict = node::Conclude(*job_, verdict_);
  for (uint32_t unit = 0; unit < units_ && !verdict.skip; ++unit) {
    if (OwnerOf(unit) == self_) masters_[unit] = Applied(masters_[unit], sums_[unit], verdict, target - kLoaded);
  }
  reached_ = target;
  if (cluster_->Strikes(Plant::kJumpedStep)) ++reached_;
  Event event = EventOf(What::kApplied);
  event.before = before;
  event.digests = Owned();
  event.skipped = verdict.skip;
  event.clip = verdict.clip;
  for (uint32_t unit = 0; unit < units_; ++unit) {
    if (OwnerOf(unit) != self_) continue;
    event.number = sums_[unit].batches;
    event.flag = true;
  }
  cluster_->Record(std::move(event));
  cluster_->world.Trace(process_->name, verdict.skip ? "skips step " : "applies step ", target - kLoaded);
}

Task<absl::Status> Pipeline::Publish(uint64_t target, absl::Time until) {
  if (peers_ != nullptr) peers_->Open();
  absl::Status status;
  if (copies_.underway()) status = co_await copies_.End(until);
  if (!status.ok()) co_return status;
  if (copies_.on()) copies_.Begin(target - kLoaded);
  const bool done = reached_ >= target;
  if (!done) Apply(target);
  if (copies_.on()) copies_.Pack(masters_, /*send=*/done || copies_.sync());
  status = co_await ExchangeParameters(until);
  if (!status.ok()) co_return status;
  if (copies_.on()) copies_.SendRest();
  if (copies_.sync() || (copies_.on() && target == kLoaded)) status = co_await copies_.End(until);
  if (!status.ok()) co_return status;
  for (const auto& [rank, arena] : arenas_) CopyOut(rank);
  co_return absl::OkStatus();
}

// Of a mail that is open.
Task<absl::Status> Pipeline::ExchangeParameters(absl::Time until) {
  for (uint32_t unit = 0; unit < units_; ++unit) {
    if (OwnerOf(unit) == self_) published_[unit] = masters_[unit];
  }
  if (peers_ == nullptr) co_return absl::OkStatus();
  std::vector<std::string> out(static_cast<size_t>(plan_->nodes_size()), ToBytes(masters_));
  std::vector<std::string> in;
  absl::Status status = co_await peers_->Close('p', std::move(out), until, &in);
  for (uint32_t unit = 0; unit < units_; ++unit) {  // what has come has come
    if (OwnerOf(unit) == self_ || in.empty() || in[OwnerOf(unit)].empty()) continue;
    published_[unit] = FromBytes<Digest>(in[OwnerOf(unit)])[unit];
  }
  co_return status;
}

void Pipeline::Deliver(uint64_t step, uint32_t rank) {
  CopyOut(rank);
  if (arenas_.at(rank) != nullptr) arenas_.at(rank)->delivered = step + kLoaded;
}

void Pipeline::CopyOut(uint32_t rank) {
  const std::shared_ptr<Arena>& arena = arenas_.at(rank);
  if (arena == nullptr) return;
  const Values old = std::exchange(arena->params, published_);
  if (cluster_->Strikes(Plant::kStaleDelivery) && reached_ > kLoaded && old.size() == units_) arena->params[0] = old[0];
}

void Pipeline::MarkDelivered(uint64_t step) {
  for (const auto& [rank, arena] : arenas_) {
    if (arena != nullptr) arena->delivered = step + kLoaded;
  }
}

v1::PeerReport Pipeline::ReportOf(uint64_t target) const {
  v1::PeerReport report;
  report.set_target(target);
  report.set_reached(reached_);
  *report.mutable_verdict() = verdict_;
  if (reached_ == 0) report.set_lost(resume_);
  report.set_recoveries(recoveries_);
  report.set_recovering(recovering_);
  const bool ready = successor_ != nullptr && successor_->ready() && !cluster_->Planted(Plant::kUnreadyNode);
  if (ready) report.set_successor(successor_->plan.generation());
  copies_.Describe(report);
  if (target == kLoaded || missing_.empty()) return report;
  v1::MissingGradients& missing = *report.add_missing();
  missing.set_tensor(0);
  missing.mutable_ranks()->Assign(missing_.begin(), missing_.end());
  return report;
}

void Pipeline::FindMissing(uint64_t step) {
  missing_.clear();
  for (const auto& [rank, arena] : arenas_) {
    if (arena == nullptr || arena->submitted != step || arena->incomplete) missing_.push_back(rank);
  }
}

void Pipeline::OpenGradients() {
  open_ = true;
  if (peers_ != nullptr) peers_->Open();
}

void Pipeline::Collect() {
  packed_.assign(units_, {});
  for (const auto& [rank, arena] : arenas_) {
    if (arena == nullptr) continue;
    for (uint32_t unit = 0; unit < units_; ++unit) packed_[unit].Add(arena->grads[unit]);
    if (cluster_->Strikes(Plant::kDoubledGradient)) packed_[0].Add(arena->grads[0]);
  }
}

// Reduction::Finish. A node that has applied the step sends again what it had packed.
Task<absl::Status> Pipeline::FinishReduction(bool collect, absl::Time until) {
  if (!open_ || (peers_ != nullptr && !peers_->is_open())) OpenGradients();
  if (collect) Collect();
  std::vector<std::string> in;
  open_ = false;
  if (peers_ != nullptr) {
    std::vector<std::string> out(static_cast<size_t>(plan_->nodes_size()), ToBytes(packed_));
    absl::Status status = co_await peers_->Close('g', std::move(out), until, &in);
    if (!status.ok()) co_return status;
  }
  if (!collect) co_return absl::OkStatus();
  sums_ = packed_;
  for (uint32_t node = 0; node < in.size(); ++node) {
    if (node == self_ || in[node].empty()) continue;
    const Gradients theirs = FromBytes<Gradient>(in[node]);
    for (uint32_t unit = 0; unit < units_; ++unit) sums_[unit].Add(theirs[unit]);
  }
  co_return absl::OkStatus();
}

// Reduction::GiveUp.
Task<absl::Status> Pipeline::GiveUpReduction(absl::Time until) {
  const bool was_open = std::exchange(open_, false) && peers_ != nullptr && peers_->is_open();
  if (!was_open) co_return absl::OkStatus();
  std::vector<std::string> in;
  std::vector<std::string> out(static_cast<size_t>(plan_->nodes_size()), ToBytes(packed_));
  co_return co_await peers_->Close('g', std::move(out), until, &in);
}

}  // namespace dmuon::sim
