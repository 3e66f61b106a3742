// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// State that workers ask for, and bring.
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/clock.h"
#include "daemon/base/version.h"
#include "daemon/node/job.h"
#include "daemon/plan/plan.h"
#include "wire/error.h"

namespace dmuon::node {

void Job::Export(absl::Time deadline, const v1::ExportRequest& request, Reply<v1::ExportResponse> reply) {
  Post([this, deadline, request, reply = std::move(reply)] { reply(GiveState(deadline, request)); });
}

absl::StatusOr<v1::ExportResponse> Job::GiveState(absl::Time deadline, const v1::ExportRequest& request) {
  DMUON_RETURN_IF_ERROR(ConcludeStep());
  DMUON_RETURN_IF_ERROR(core_.CheckReady(request.session_id(), request.generation()));
  if (request.step() != core_.last_step()) {
    return wire::Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_STEP_OUT_OF_ORDER,
                       absl::StrCat("the state of step ", request.step(), " of job '", job_id_, "'; last applied is ",
                                    core_.last_step()));
  }
  for (size_t node = 0; node < static_cast<size_t>(plan_->nodes_size()); ++node) {
    if (plan::HasWorkers(*plan_, node) || plan::OwnsNothing(*plan_, node)) continue;
    return wire::Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_NOT_READY,
                       absl::StrCat("a part of the state of job '", job_id_, "' is on node '", plan_->nodes(static_cast<int>(node)),
                                    "', which no worker is attached to; save a checkpoint, or drain that node first"));
  }
  if (MonotonicNow() >= deadline) {  // who asked has gone, and would be sent what nobody expects
    return wire::Error(absl::StatusCode::kDeadlineExceeded, v1::ERROR_REASON_WORKER_MISSING,
                       absl::StrCat("job '", job_id_, "' had no time to copy its state"));
  }
  WorkerSession& worker = *sessions_.at(request.session_id());
  worker.given.reset();
  std::shared_ptr<const GivenState> state = given_.lock();
  if (state == nullptr || given_step_ != request.step()) {
    checkpoint::Head head;
    head.job_id = job_id_;
    head.name = "state";
    head.step = request.step();
    head.generation = plan_->generation();
    head.node = environment_.node.node_id();
    head.version = std::string(Version());
    DMUON_ASSIGN_OR_RETURN(state, CopyState(std::move(head), *pipeline_, *environment_.budget));
    given_ = state;
    given_step_ = request.step();
  }
  wire::ChannelFrame frame;
  frame.type = wire::FrameType::kState;
  frame.session_id = request.session_id();
  frame.generation = core_.generation();
  frame.bytes = state->part.bytes;
  DMUON_RETURN_IF_ERROR(worker.Send(frame, state->part.fd.get()));
  v1::ExportResponse response;
  response.set_bytes(state->part.bytes);
  worker.given = std::move(state);
  return response;
}

void Job::Release(SessionId session) {
  Post([this, session] {
    if (const auto it = sessions_.find(session); it != sessions_.end()) it->second->given.reset();
  });
}

void Job::Import(absl::Time deadline, const v1::ImportRequest& request, Reply<v1::ImportResponse> reply) {
  Post([this, deadline, request, reply = std::move(reply)] {
    const auto answer = [this, reply](const absl::Status& status) {
      if (!status.ok()) return reply(status);
      v1::ImportResponse response;
      response.set_last_step(core_.last_step());
      reply(std::move(response));
    };
    const std::string name = NameOfBrought(request.digest());
    if (HasRestored(request.session_id(), request.generation(), name)) {
      const wire::ScopedFd not_needed = sessions_.at(request.session_id())->TakeOffer();
      return answer(absl::OkStatus());
    }
    const Ticket ticket = Await(answer);
    CarryOut(core_.Restore(MonotonicNow(), request.session_id(), ticket, deadline, request.generation(), name));
  });
}

// Of what the workers here have brought, the first that is what they say. All of it is gone afterwards: who calls again
// brings it again.
BroughtState Job::BroughtHere(const std::string& digest) {
  BroughtState::Part part = wire::Error(absl::StatusCode::kNotFound, v1::ERROR_REASON_CHECKPOINT,
                                        absl::StrCat("no worker of job '", job_id_, "' has brought a state"));
  for (const auto& [id, session] : sessions_) {
    wire::ScopedFd fd = session->TakeOffer();
    if (!fd.valid() || part.ok()) continue;
    part = checkpoint::OpenReceived(std::move(fd), environment_.budget->limit_bytes(), digest);
  }
  return BroughtState(Restorable(NameOfBrought(digest)), std::move(part));
}

}  // namespace dmuon::node
