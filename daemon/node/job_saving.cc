// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What workers and operators ask of a job's checkpoints.
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/node/job.h"
#include "wire/error.h"

namespace dmuon::node {

void Job::Save(absl::Time deadline, const v1::SaveRequest& request, Reply<v1::SaveResponse> reply) {
  Post([this, deadline, request, reply = std::move(reply)] {
    if (absl::Status status = ConcludeStep(); !status.ok()) return reply(status);
    absl::Status status = core_.CheckReady(request.session_id(), request.generation());
    if (status.ok() && request.step() != core_.last_step() && !checkpoints_->Knows(request.name(), request.step())) {
      status = wire::Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_STEP_OUT_OF_ORDER,
                           absl::StrCat("checkpoint '", request.name(), "' of step ", request.step(), " of job '", job_id_,
                                        "'; last applied is ", core_.last_step()));
    }
    if (!status.ok()) return reply(status);
    const auto answer = [reply, exists = request.wait()](const absl::Status& result) {
      if (!result.ok()) return reply(result);
      v1::SaveResponse response;
      response.set_exists(exists);
      reply(std::move(response));
    };
    // Who calls for a checkpoint and who waits for one need not be the same.
    const bool known = checkpoints_->Knows(request.name(), request.step());
    const auto copied = [](const absl::Status&) {};
    if (request.wait()) {
      checkpoints_->Save(request.name(), request.step(), deadline,
                         known ? JobCheckpoints::Reply() : JobCheckpoints::Reply(copied), answer);
    } else {
      checkpoints_->Save(request.name(), request.step(), deadline, answer, nullptr);
    }
    if (!known) pipeline_->CallForSave(request.name(), request.step());
    if (request.wait()) TellSaves();
  });
}

void Job::SaveNext(absl::Time deadline, const std::string& name, Reply<v1::SaveJobResponse> reply) {
  Post([this, deadline, name, reply = std::move(reply)] {
    const auto answer = [reply](const absl::StatusOr<uint64_t>& step) {
      if (!step.ok()) return reply(step.status());
      v1::SaveJobResponse response;
      response.set_step(*step);
      reply(std::move(response));
    };
    if (ended_ || !core_.initialized()) {
      return reply(wire::Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_NOT_READY,
                               absl::StrCat("job '", job_id_, "' has no state to save: ", core_.Describe())));
    }
    if (peers_ != nullptr) return checkpoints_->SaveNext(name, deadline, answer);
    const uint64_t step = core_.last_step();
    checkpoints_->Save(name, step, deadline, [](const absl::Status&) {}, [answer, step](const absl::Status& status) {
      if (!status.ok()) return answer(status);
      answer(step);
    });
  });
}

void Job::Restore(absl::Time deadline, const v1::RestoreRequest& request, Reply<v1::RestoreResponse> reply) {
  Post([this, deadline, request, reply = std::move(reply)] {
    const auto answer = [this, reply](const absl::Status& status) {
      if (!status.ok()) return reply(status);
      v1::RestoreResponse response;
      response.set_last_step(core_.last_step());
      reply(std::move(response));
    };
    if (HasRestored(request.session_id(), request.generation(), request.name())) return answer(absl::OkStatus());
    const Ticket ticket = Await(answer);
    CarryOut(core_.Restore(MonotonicNow(), request.session_id(), ticket, deadline, request.generation(), request.name()));
  });
}

bool Job::HasRestored(SessionId session, uint64_t generation, const std::string& name) const {
  return restored_.name == name && restored_.step == core_.last_step() && !restored_.sessions.contains(session) &&
         core_.CheckReady(session, generation).ok();
}

void Job::RunRestore(const std::string& name, absl::Time deadline) {
  look_at_ = absl::InfiniteFuture();
  const std::string digest = DigestOfBrought(name);
  absl::StatusOr<StepPipeline::Restored> restored = absl::UnknownError("");
  Together([&] {
    restored = digest.empty() ? checkpoints_->Restore(name, deadline) : checkpoints_->Restore(BroughtHere(digest), name, deadline);
    return restored.status();
  }).IgnoreError();
  CountTraffic();
  if (restored.ok()) {
    referrals_.clear();
    given_.reset();
    restored_ = {name, restored->step, {}};
    for (const auto& [session, worker] : sessions_) restored_.sessions.insert(session);
    last_report_ = StepReport();
    last_seconds_ = 0.0;
    environment_.metrics->Set(MetricId::kCurrentStep, {job_id_}, static_cast<double>(restored->step));
  }
  if (TakeLoss(restored.status())) return;
  CarryOut(core_.Restored(MonotonicNow(), restored.status(), restored.ok() ? restored->step : 0));
}

}  // namespace dmuon::node
