// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The state of a node that has lost it: from the copies on another node, at a step that all nodes have.

#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/failpoint.h"
#include "daemon/base/log.h"
#include "daemon/node/recovery.h"
#include "daemon/node/step_pipeline.h"
#include "wire/error.h"

namespace dmuon::node {

// All nodes together; all conclude the same from the reports.
absl::Status StepPipeline::Recover(const Reports& reports, absl::Time deadline) {
  const std::vector<bool> lost = LostNodes(*plan_, reports);
  DMUON_ASSIGN_OR_RETURN(const uint64_t step, CommonStep(*plan_, reports, lost));
  recoveries_ = MostRecoveries(reports) + 1;
  recovering_ = true;
  saves_.clear();
  const uint64_t former = reached_;
  DMUON_RETURN_IF_ERROR(Settle(deadline));
  if (!lost[self_]) DMUON_RETURN_IF_ERROR(GoBack(step));
  replicas_.ForgetAfter(step);
  DMUON_RETURN_IF_ERROR(replicas_.GiveBack(lost, step, deadline));
  AtFailpoint(Failpoint::kRecoveryFetched);
  reached_ = step + kLoaded;
  verdict_ = VerdictOf(reports, step);
  DMUON_RETURN_IF_ERROR(PublishAll(deadline));
  AtFailpoint(Failpoint::kRecoveryPublished);
  v1::PeerReport mine = ReportOf(reached_);
  mine.clear_missing();  // of the step that was called for
  DMUON_ASSIGN_OR_RETURN(const Reports ends, Tell(mine, deadline));
  DMUON_RETURN_IF_ERROR(CheckReports(*job_, *plan_, ends, reached_));
  recovering_ = false;
  workers_->MarkDelivered(step);
  reduction_.Open(step + 1);
  LogWarning("job ", job_->job_id(), ": ",
             AnyIsLost(*plan_, reports) ? absl::StrCat("the state of node ", NamesOf(*plan_, lost), " was lost and is back from its copies")
                                : "all nodes have heard of the last recovery",
             ", at step ", step, former > reached_ ? absl::StrCat(", to which this node has gone back from ", former - kLoaded) : "");
  return absl::OkStatus();
}

// A node that owns nothing has begun anew: it gets the parameters, and goes on where the others are.
absl::Status StepPipeline::Readmit(const Reports& reports, absl::Time deadline) {
  const v1::PeerReport& mine = reports[self_];
  DMUON_RETURN_IF_ERROR(Settle(deadline));
  DMUON_RETURN_IF_ERROR(PublishAll(deadline));
  DMUON_RETURN_IF_ERROR(Tell(mine, deadline).status());
  const uint64_t step = mine.reached() - kLoaded;
  readmitted_ = readmitted_ || reached_ == 0;
  if (reached_ == 0) LogInfo("job ", job_->job_id(), ": this node owns nothing and goes on after step ", step);
  reached_ = mine.reached();
  recoveries_ = mine.recoveries();
  verdict_ = mine.verdict();
  workers_->MarkDelivered(step);
  reduction_.Open(step + 1);
  return absl::OkStatus();
}

absl::Status StepPipeline::GoBack(uint64_t step) {
  if (reached_ == step + kLoaded) return absl::OkStatus();
  if (!replicas_.GoBack(step)) {
    return wire::Error(absl::StatusCode::kInternal, v1::ERROR_REASON_STATE_LOST,
                       absl::StrCat("job '", job_->job_id(), "': no copy of step ", step, " where one was reported"));
  }
  reached_ = step + kLoaded;
  verdict_.Clear();
  went_back_ = true;
  return absl::OkStatus();
}

}  // namespace dmuon::node
