// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A job on a node that owns some of its units and has none of its workers: nobody calls for anything here, so it waits for the
// other nodes, and does what they do.
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/node/job.h"
#include "daemon/node/round.h"
#include "daemon/plan/plan.h"
#include "wire/error.h"

namespace dmuon::node {
namespace {

// Between two looks at what has been posted, while the others cannot be reached.
constexpr absl::Duration kConnect = absl::Seconds(10);
// Before the next try after a failure.
constexpr absl::Duration kPause = absl::Milliseconds(50);

}  // namespace

absl::Time Job::NextFollow() const {
  return follows_ && !ended_ && !checkpoints_->has_yet_to_copy() ? follow_at_ : absl::InfiniteFuture();
}

void Job::Follow() {
  if (wanted_.has_value()) {
    DoAsOthers();
  } else {
    AwaitOthers();
  }
}

// What they say is kept until what is to be saved of the state has been copied.
void Job::AwaitOthers() {
  const uint64_t step = core_.initialized() ? core_.last_step() + 1 : 0;
  const auto set_awaits = [this](bool awaits) {
    wire::MutexLock lock(mu_);
    awaits_ = awaits && inputs_.empty();  // else these come first
    return awaits_;
  };
  if (!set_awaits(true)) return;
  absl::StatusOr<Reports> reports = pipeline_->AwaitOthers(step, kConnect);
  set_awaits(false);
  EndMeeting();  // they may have gone over without this node
  if (!reports.ok()) {
    follow_at_ = MonotonicNow() + kPause;
    if (MonotonicNow() < met_at_ + orphan_timeout_) return;
    LogWarning("job ", job_id_, ": no other node for ", absl::FormatDuration(orphan_timeout_), ": ", reports.status().message());
    return End(/*in_order=*/false);
  }
  met_at_ = MonotonicNow();
  for (const v1::PeerReport& report : *reports) {
    for (const v1::CalledSave& save : report.saves()) {
      if (!core_.initialized() || save.step() != pipeline_->reached_step()) continue;
      checkpoints_->Save(save.name(), save.step(), absl::InfiniteFuture(), [](const absl::Status&) {}, nullptr);
    }
  }
  wanted_ = *std::move(reports);
}

void Job::DoAsOthers() {
  Reports reports = *std::exchange(wanted_, std::nullopt);
  const absl::Time deadline = MonotonicNow() + peer_timeout_;
  if (const std::string name = RestoreToFollow(reports); !name.empty() && core_.initialized()) return RunRestore(name, deadline);
  const uint64_t step = core_.initialized() ? core_.last_step() + 1 : 0;
  StepReport report;
  const absl::Status status = pipeline_->Follow(std::move(reports), step, deadline, report);
  EndMeeting();
  CountTraffic();
  NoteRecovery(MonotonicNow() - met_at_);
  if (TakeLoss(status)) return;
  if (!status.ok()) follow_at_ = MonotonicNow() + kPause;
  const bool begins = !core_.initialized() && status.ok() && !pipeline_->recovering() && pipeline_->has_state();
  if (begins) {
    TellState(/*recovered=*/false);
    CarryOut(core_.Initialized(MonotonicNow(), status, pipeline_->reached_step()));
  } else if (status.ok() && report.reached) {
    last_seconds_ = std::accumulate(report.stage_seconds.begin(), report.stage_seconds.end(), 0.0);
    CountStep(status, report, last_seconds_);
    last_report_ = report;
    checkpoints_->StepDone(step, report.save);
    CarryOut(core_.StepDone(MonotonicNow(), status));
  }
}

// Else they hear of it with the next step. The other nodes may be waiting for one: that is why they are called.
void Job::TellSaves() {
  if (pipeline_ == nullptr || !core_.initialized() || !pipeline_->has_untold_saves()) return;
  peers_->Drop();
  const absl::Status status = HelpOthers(peer_timeout_);
  if (!status.ok()) LogWarning("job ", job_id_, ": nodes without workers may miss a checkpoint: ", status.message());
}

}  // namespace dmuon::node
