// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The course of a step. What the nodes agree on is in round.cc, what is done to the data in step_stages.cc.

#include "daemon/node/step_pipeline.h"

#include <array>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/base/clock.h"
#include "daemon/base/failpoint.h"
#include "daemon/base/sha256.h"
#include "daemon/node/recovery.h"
#include "daemon/node/stage_timer.h"
#include "daemon/plan/plan.h"
#include "wire/error.h"

namespace dmuon::node {
namespace {

// How long a job without steps waits for nodes without workers to be ready for another plan.
constexpr absl::Duration kFollowerPause = absl::Milliseconds(10);
constexpr int kFollowerTries = 100;

std::string DigestOf(const StepSettings& settings) {
  std::string numbers;
  for (const kernels::Hyper& hyper : settings.hypers) {
    const std::array values = {hyper.lr, hyper.weight_decay, hyper.momentum, hyper.beta2};
    numbers.append(reinterpret_cast<const char*>(values.data()), sizeof(values));
  }
  for (const v1::RowFactors& rows : settings.row_factors) numbers.append(rows.SerializeAsString());
  return Sha256Hex(std::array{numbers});
}

// By slot.
std::vector<std::unique_ptr<OwnedState>> StatesOf(const v1::JobSpec& job, const v1::Plan& plan,
                                                  uint32_t self, size_t slots,
                                                  kernels::Backend* backend) {
  std::vector<std::unique_ptr<OwnedState>> states;
  for (uint32_t slot = 0; slot < slots; ++slot) {
    states.push_back(std::make_unique<OwnedState>(job, plan, self, slot, backend));
  }
  return states;
}

}  // namespace

StepPipeline::StepPipeline(const v1::JobSpec& job, const v1::Plan& plan, const v1::Routes& routes,
                           uint32_t self, const WorkerBoxes* workers, kernels::Backend* backend,
                           SlotThreads* slots, Peers* peers, bool overlap)
    : job_(&job),
      plan_(&plan),
      self_(self),
      workers_(workers),
      backend_(backend),
      slots_(slots),
      peers_(peers),
      overlap_(overlap),
      loads_(MailOf(job, plan, routes.loads(), Cargo::kParameter, self)),
      publications_(MailOf(job, plan, routes.publications(), Cargo::kParameter, self)),
      states_(StatesOf(job, plan, self, slots->size(), backend)),
      reduction_(job, plan, routes, self, workers, states_, backend, slots, peers, overlap),
      replicas_(job, plan, self, states_, slots, peers) {
  for (size_t slot = 0; slot < slots->size(); ++slot) {
    for (size_t i = 0; i < states_[slot]->size(); ++i) {
      const OwnedUnit& unit = states_[slot]->unit(i);
      (states_[slot]->is_matrix(i) ? matrix_units_ : elementwise_units_) += unit.matrices.size();
      state_bytes_ += unit.state_bytes();
    }
  }
  Connect();
}

uint64_t StepPipeline::BytesFor(const v1::JobSpec& job, const v1::Plan& plan,
                                const v1::Routes& routes, uint32_t self) {
  return OwnedState::BytesFor(job, plan, self) + Replicas::BytesFor(job, plan, self) +
         MailBytes(job, plan, routes.gradients(), Cargo::kGradient) +
         MailBytes(job, plan, routes.loads(), Cargo::kParameter) +
         MailBytes(job, plan, routes.publications(), Cargo::kParameter);
}

absl::Status StepPipeline::Initialize(absl::Time deadline, bool resume) {
  StepReport report;
  resume_ = resume;
  // Back from copies already, but not all nodes were known to be.
  if (reached_ > kLoaded) return Help(deadline);
  return Reach(kLoaded, nullptr, {}, deadline, report);
}

absl::Status StepPipeline::Run(uint64_t step, const StepSettings& settings, absl::Time deadline,
                               StepReport& report, const std::string& save) {
  report.step = step;
  return Reach(step + kLoaded, &settings, save, deadline, report);
}

absl::Status StepPipeline::Help(absl::Time deadline) {
  StepReport report;
  return Reach(reached_, nullptr, {}, deadline, report);
}

bool StepPipeline::IsAheadOf(uint64_t step) const { return !restoring_ && reached_ > step + kLoaded; }

absl::Status StepPipeline::CheckRestoring() const {
  if (!restoring_) return absl::OkStatus();
  return wire::Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_NOT_READY,
                     absl::StrCat("job '", job_->job_id(), "': not all nodes are known to have been restored to step ",
                                  reached_ - kLoaded, "; restore again"));
}

// A node that is a step ahead helps the others to where it is, before it asks for more.
absl::Status StepPipeline::Reach(uint64_t target, const StepSettings* settings, const std::string& save,
                                 absl::Time deadline, StepReport& report) {
  DMUON_RETURN_IF_ERROR(CheckRestoring());
  StageTimer timer(report.stage_seconds);
  if (target > kLoaded && reached_ < target) reduction_.FindMissing(target - kLoaded);
  if (settings != nullptr && plan::HasFollowers(*plan_)) settings_ = ToProto(*settings, target);
  v1::PeerReport mine = ReportOf(target, settings, save);
  DMUON_ASSIGN_OR_RETURN(Reports reports, Assemble(mine, deadline));
  const uint64_t was_at = reached_;
  DMUON_ASSIGN_OR_RETURN(const bool made_whole, MakeWhole(reports, deadline, report));
  if (made_whole && settings == nullptr) {
    const bool goes_over = successor_ != nullptr && was_at == target && reached_ == target;
    if (!goes_over) return absl::OkStatus();
    DMUON_ASSIGN_OR_RETURN(reports, Tell(ReportOf(target), deadline));
  } else if (made_whole) {
    if (reached_ >= target) return absl::OkStatus();
    DMUON_RETURN_IF_ERROR(CheckNext(*plan_, reports, target, was_at, reached_));
    mine = ReportOf(target, settings, save);
    DMUON_ASSIGN_OR_RETURN(reports, Tell(mine, deadline));
  }
  for (int tries = 1; settings == nullptr && FollowersLackSuccessor(reports); ++tries) {
    absl::SleepFor(kFollowerPause);
    mine = ReportOf(target);
    if (tries > kFollowerTries) mine.clear_successor();
    DMUON_ASSIGN_OR_RETURN(reports, Tell(mine, deadline));
  }
  while (true) {
    if (AgreedSuccessor(reports) != 0) {
      DMUON_RETURN_IF_ERROR(HandOver(deadline));
      if (is_over_) return absl::OkStatus();
      mine = ReportOf(target, settings, save);
      DMUON_ASSIGN_OR_RETURN(reports, Tell(mine, deadline));
    }
    const uint64_t lowest = LowestTarget(reports);
    DMUON_RETURN_IF_ERROR(CheckReports(*job_, *plan_, reports, lowest));
    timer.Charge(Stage::kSubmit);
    DMUON_RETURN_IF_ERROR(Round(lowest, reports, settings == nullptr ? StepSettings() : *settings, deadline, report));
    if (lowest == target) {
      report.save = NameToSave(reports, target);
      return absl::OkStatus();
    }
    DMUON_ASSIGN_OR_RETURN(reports, Tell(mine, deadline));
  }
}

absl::StatusOr<bool> StepPipeline::MakeWhole(Reports& reports, absl::Time deadline, StepReport& report) {
  const bool passed_over = PassOver(*plan_, reports);
  if (!passed_over && !(replicas_.on() && NeedRecovery(*plan_, reports))) return false;
  DMUON_RETURN_IF_ERROR(passed_over ? Readmit(reports, deadline) : Recover(reports, deadline));
  report.verdict = Conclude(*job_, verdict_);
  return true;
}

absl::StatusOr<Reports> StepPipeline::AwaitOthers(uint64_t step, absl::Duration patience) {
  const uint64_t target = step + kLoaded;
  if (reached_ > 0 && reached_ < target) reduction_.FindMissing(step);
  return Assemble(ReportOf(target, nullptr, {}), MonotonicNow() + patience, absl::InfiniteFuture());
}

absl::Status StepPipeline::Follow(Reports reports, uint64_t step, absl::Time deadline, StepReport& report) {
  const uint64_t target = step + kLoaded;
  report.step = step;
  StageTimer timer(report.stage_seconds);
  DMUON_ASSIGN_OR_RETURN(const bool made_whole, MakeWhole(reports, deadline, report));
  if (made_whole) return absl::OkStatus();
  if (AgreedSuccessor(reports) != 0) return HandOver(deadline);
  if (FollowersLackSuccessor(reports)) return absl::OkStatus();
  const uint64_t lowest = LowestTarget(reports);
  DMUON_RETURN_IF_ERROR(CheckReports(*job_, *plan_, reports, lowest));
  // The others would not step on from what they had not been restored to.
  if (lowest > reached_) restoring_ = false;
  StepSettings settings;
  if (const v1::StepSettings* said = SettingsOf(reports, lowest); said != nullptr) {
    settings_ = *said;
    settings = FromProto(*said);
  }
  const bool steps = reached_ > 0 && reached_ < lowest;
  if (steps && settings.hypers.size() != static_cast<size_t>(job_->groups_size())) {
    peers_->Drop();  // the others go on
    return wire::Error(absl::StatusCode::kAborted, v1::ERROR_REASON_PEER_LOST,
                       absl::StrCat("no node has said by which hyper-parameters of ", job_->groups_size(), " groups to take step ",
                                    lowest - kLoaded));
  }
  timer.Charge(Stage::kSubmit);
  DMUON_RETURN_IF_ERROR(Round(lowest, reports, settings, deadline, report));
  report.reached = lowest == target;
  if (report.reached) report.save = NameToSave(reports, target);
  return absl::OkStatus();
}

void StepPipeline::CallForSave(const std::string& name, uint64_t step) {
  std::erase_if(saves_, [&](const v1::CalledSave& save) { return save.step() != step || save.name() == name; });
  v1::CalledSave& save = saves_.emplace_back();
  save.set_name(name);
  save.set_step(step);
  untold_saves_ = plan::HasFollowers(*plan_);
}

// Connections that have broken since they were last used, while other nodes already make new ones, are
// no reason to give up.
absl::StatusOr<Reports> StepPipeline::Assemble(const v1::PeerReport& mine, absl::Time connected, absl::Time deadline) {
  while (peers_ != nullptr) {
    const bool used_before = peers_->connected();
    if (absl::Status status = peers_->Connect(connected); !status.ok()) {
      if (wire::ReasonOf(status) == v1::ERROR_REASON_UNKNOWN_JOB) {
        peers_->ReportAgain();
        return wire::Error(absl::StatusCode::kAborted, v1::ERROR_REASON_PEER_LOST, status.message());
      }
      if (wire::ReasonOf(status) != v1::ERROR_REASON_STALE_GENERATION) return status;
      ConfirmHandover();
      return wire::Error(absl::StatusCode::kAborted, v1::ERROR_REASON_PEER_LOST,
                         absl::StrCat("the other nodes have gone over to another plan: ", status.message()));
    }
    absl::StatusOr<Reports> reports = Tell(mine, deadline);
    if (reports.ok()) {
      heir_ = Heir();  // all are still here
      untold_saves_ = false;
    }
    if (!used_before || !absl::IsAborted(reports.status())) return reports;
  }
  return Tell(mine, deadline);
}

absl::Status StepPipeline::Round(uint64_t target, const Reports& reports, const StepSettings& settings,
                                 absl::Time deadline, StepReport& report) {
  const bool behind = AnyIsBehind(reports, target);
  if (behind && target == kLoaded) {
    DMUON_RETURN_IF_ERROR(Load(deadline));
  } else if (behind) {
    DMUON_RETURN_IF_ERROR(Advance(target, reports, settings, deadline, report));
  } else {
    DMUON_RETURN_IF_ERROR(reduction_.GiveUp(deadline));  // of the next step, which is not wanted yet
  }
  if (Publishes(reports, target, verdict_)) DMUON_RETURN_IF_ERROR(Publish(target, settings, deadline, report));
  AtFailpoint(Failpoint::kStepPublished);
  v1::PeerReport mine = ReportOf(target);
  SetStatus(failure_, mine);
  StageTimer timer(report.stage_seconds);
  DMUON_ASSIGN_OR_RETURN(const Reports ends, Tell(mine, deadline));
  timer.Charge(Stage::kPublish);
  DMUON_RETURN_IF_ERROR(CheckReports(*job_, *plan_, ends, target));
  AtFailpoint(Failpoint::kStepConcluded);
  workers_->MarkDelivered(target - kLoaded);
  report.verdict = Conclude(*job_, verdict_);
  reduction_.Open(target - kLoaded + 1);
  timer.Charge(Stage::kDeliver);
  return absl::OkStatus();
}

absl::Status StepPipeline::Load(absl::Time deadline) {
  for (Message& message : loads_.out) {
    for (const Piece& piece : message.pieces) CopyParameters(piece, message);
  }
  Open(loads_, deadline);
  DMUON_RETURN_IF_ERROR(Close());
  v1::PeerReport mine = ReportOf(kLoaded);
  SetStatus(LoadUnits(), mine);
  DMUON_ASSIGN_OR_RETURN(const Reports reports, Tell(mine, deadline));
  DMUON_RETURN_IF_ERROR(CheckReports(*job_, *plan_, reports, kLoaded));
  reached_ = kLoaded;
  return absl::OkStatus();
}

absl::Status StepPipeline::Advance(uint64_t target, const Reports& reports, const StepSettings& settings,
                                   absl::Time deadline, StepReport& report) {
  if (reached_ < target) {
    for (uint32_t node = 0; node < reports.size(); ++node) {
      if (node == self_) continue;
      for (const v1::MissingGradients& missing : reports[node].missing()) {
        reduction_.AddMissing(missing);
      }
    }
  }
  if (AnyResubmitted(reports)) DMUON_RETURN_IF_ERROR(reduction_.StartOver(deadline));
  DMUON_RETURN_IF_ERROR(reduction_.Finish(reached_ < target, deadline, report));
  AtFailpoint(Failpoint::kStepReduced);
  // Before any node goes on: then all have it whole, and the one before it may go.
  if (replicas_.underway()) {
    DMUON_RETURN_IF_ERROR(replicas_.End(deadline));
  } else if (replicas_.on() && LackCopies(reports, target)) {
    DMUON_RETURN_IF_ERROR(replicas_.Exchange(target - 1 - kLoaded, deadline));
  }
  v1::StepVerdict verdict;
  if (const v1::StepVerdict* done = VerdictOfDone(reports, target); done != nullptr) {
    verdict = *done;
  } else {
    v1::PeerReport mine = ReportOf(target);
    StageTimer reduce(report.stage_seconds);
    *mine.mutable_verdict() = Judge(settings);
    DMUON_ASSIGN_OR_RETURN(const Reports judged, Tell(mine, deadline));
    reduce.Charge(Stage::kReduce);
    verdict = MergeVerdicts(judged);
  }
  AtFailpoint(Failpoint::kStepJudged);
  if (reached_ >= target) return absl::OkStatus();
  verdict_ = verdict;
  if (!verdict.skip()) return absl::OkStatus();
  reached_ = target;
  replicas_.Extend(target - kLoaded);
  return absl::OkStatus();
}

// The update comes here, because its values leave as they are done.
absl::Status StepPipeline::Publish(uint64_t target, const StepSettings& settings, absl::Time deadline,
                                   StepReport& report) {
  const uint64_t step = target - kLoaded;
  const bool early = overlap_ && reached_ < target;
  MailExchange* const mail = Open(publications_, deadline);
  if (replicas_.underway()) DMUON_RETURN_IF_ERROR(replicas_.End(deadline));
  if (replicas_.on()) replicas_.Begin(step);
  unpublished_.Reset();
  undelivered_.Reset();
  std::thread courier;
  if (early && !publications_.in.empty()) {
    courier = std::thread([&] { DeliverAsTheyArrive(*mail, step); });
  }
  if (reached_ < target) {
    const double clip = Conclude(*job_, verdict_).clip;
    failure_ = RunSlots(*slots_, report, [&](size_t slot, SlotWork& work) {
      Update(slot, settings, clip, step, early, mail, work);
    });
    if (failure_.ok()) reached_ = target;  // else all are told at the end of the round
  } else if (replicas_.on()) {
    replicas_.PackAll();
  }
  StageTimer timer(report.stage_seconds);
  if (courier.joinable()) {
    mail->SendRest();
    courier.join();
  }
  DMUON_RETURN_IF_ERROR(Close());
  if (replicas_.on()) replicas_.SendRest();
  // The first copy is waited for in any case: there is none before it.
  if (replicas_.sync() || (replicas_.on() && target == kLoaded)) DMUON_RETURN_IF_ERROR(replicas_.End(deadline));
  timer.Charge(Stage::kPublish);
  if (!early) DeliverArrivals(-1);
  timer.Charge(Stage::kDeliver);
  return absl::OkStatus();
}

absl::StatusOr<Reports> StepPipeline::Tell(const v1::PeerReport& mine, absl::Time deadline) {
  if (peers_ == nullptr) return Reports{mine};
  return peers_->Tell(mine, deadline);
}

// Null on one node.
MailExchange* StepPipeline::Open(Mail& mail, absl::Time deadline) {
  if (peers_ == nullptr) return nullptr;
  peers_->Open(mail);
  peers_->mail()->Expect(deadline);
  return peers_->mail();
}

absl::Status StepPipeline::Close() {
  return peers_ == nullptr ? absl::OkStatus() : peers_->Close();
}

v1::PeerReport StepPipeline::ReportOf(uint64_t target, const StepSettings* settings, const std::string& save) const {
  v1::PeerReport report = ReportOf(target);
  if (reached_ < target) {
    if (settings != nullptr) report.set_hypers(DigestOf(*settings));
    report.set_resubmitted(reduction_.outdated());
  }
  report.set_save(save);
  return report;
}

v1::PeerReport StepPipeline::ReportOf(uint64_t target) const {
  v1::PeerReport report;
  report.set_target(target);
  report.set_reached(reached_);
  *report.mutable_verdict() = verdict_;
  if (reached_ == 0) report.set_lost(resume_);
  report.set_recoveries(recoveries_);
  report.set_recovering(recovering_);
  if (successor_ != nullptr && successor_->ready()) report.set_successor(successor_->plan.generation());
  replicas_.Describe(report);
  report.set_follows(!plan::HasWorkers(*plan_, self_));
  if (plan::HasFollowers(*plan_)) {
    if (settings_.target() > 0) *report.mutable_settings() = settings_;
    for (const v1::CalledSave& save : saves_) {
      if (save.step() + kLoaded == reached_) *report.add_saves() = save;
    }
  }
  if (target == kLoaded) return report;
  for (uint32_t tensor = 0; tensor < workers_->tensors(); ++tensor) {
    const MissingRanks& ranks = reduction_.missing()[tensor];
    if (ranks.empty()) continue;
    v1::MissingGradients& missing = *report.add_missing();
    missing.set_tensor(tensor);
    missing.mutable_ranks()->Assign(ranks.begin(), ranks.end());
  }
  return report;
}

}  // namespace dmuon::node
