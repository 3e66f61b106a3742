// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "client/src/client.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "wire/error.h"
#include "wire/validate.h"

namespace dmuon::client {
namespace {

constexpr uint64_t kMaxStep = (uint64_t{1} << 62) - 1;  // a word keeps two bits for the state
constexpr uint64_t kMaxArenaBytes = uint64_t{1} << 40;

absl::Status CheckStep(uint64_t step) {
  if (step >= 1 && step <= kMaxStep) return absl::OkStatus();
  return wire::InvalidField(absl::StrCat("step ", step, " is not in 1..", kMaxStep));
}

absl::Status CheckJob(const Endpoint& endpoint, const v1::JobSpec& job) {
  DMUON_RETURN_IF_ERROR(wire::ValidateId(job.job_id(), "job_id"));
  if (job.world_size() < 1 || job.world_size() > wire::kMaxWorldSize) {
    return wire::InvalidField(
        absl::StrCat("world_size ", job.world_size(), " is not in 1..", wire::kMaxWorldSize));
  }
  if (endpoint.rank >= job.world_size()) {
    return wire::InvalidField(
        absl::StrCat("rank ", endpoint.rank, " is not below world_size ", job.world_size()));
  }
  if (!(job.max_grad_norm() >= 0) || std::isinf(job.max_grad_norm())) {
    return wire::InvalidField(
        absl::StrCat("max_grad_norm ", job.max_grad_norm(), " is not a finite number >= 0"));
  }
  if (endpoint.connect_timeout.count() < 0 || endpoint.call_timeout.count() <= 0) {
    return wire::InvalidField(absl::StrCat("connect_timeout ", endpoint.connect_timeout.count(),
                                           " ms must be >= 0 and call_timeout ",
                                           endpoint.call_timeout.count(), " ms > 0"));
  }
  return wire::ValidateSchedule(job.checkpoints());
}

}  // namespace

absl::Status NotReady(absl::string_view message) {
  return wire::Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_NOT_READY, message);
}

Deadline DeadlineOf(Timeout timeout) { return timeout.has_value() ? Clock::now() + *timeout : Deadline::max(); }

absl::StatusOr<std::unique_ptr<Client>> Client::Open(Endpoint endpoint, v1::JobSpec job) {
  DMUON_RETURN_IF_ERROR(CheckJob(endpoint, job));
  endpoint.job_id = job.job_id();
  endpoint.world_size = job.world_size();
  std::unique_ptr<Client> client(new Client(std::move(endpoint), std::move(job)));
  DMUON_RETURN_IF_ERROR(client->attachment_.Connect());
  client->Start();
  return client;
}

Client::Client(Endpoint endpoint, v1::JobSpec job)
    : endpoint_(std::move(endpoint)), attachment_(endpoint_) {
  *registration_.mutable_job() = std::move(job);
}

// Signals belong to the trainer's threads: a handler must not run on ours.
void Client::Start() {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { Run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Client::~Client() {
  {
    wire::MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  attachment_.Cancel();
  if (thread_.joinable()) thread_.join();
  attachment_.Close();
}

absl::StatusOr<uint32_t> Client::AddGroup(v1::Group group) {
  if (prepared_) return NotReady("a group comes before dmuon_register");
  v1::JobSpec& job = *registration_.mutable_job();
  *job.add_groups() = std::move(group);
  return static_cast<uint32_t>(job.groups_size() - 1);
}

absl::StatusOr<uint32_t> Client::AddTensor(v1::Tensor tensor, v1::Shard shard) {
  if (prepared_) return NotReady("a tensor comes before dmuon_register");
  shard.set_tensor(tensors_);
  *registration_.mutable_job()->add_tensors() = std::move(tensor);
  *registration_.add_shards() = std::move(shard);
  return tensors_++;
}

// Everything that one worker alone can know to be wrong is refused here, without a round trip.
absl::Status Client::CheckRegistration() {
  if (prepared_) return absl::OkStatus();
  const v1::JobSpec& job = registration_.job();
  DMUON_RETURN_IF_ERROR(wire::ValidateJobSpec(job));
  const std::span<const v1::Shard* const> shards(registration_.shards().data(), tensors_);
  DMUON_ASSIGN_OR_RETURN(const auto boxes, wire::ParseShards(job, shards, endpoint_.rank));
  DMUON_ASSIGN_OR_RETURN(wire::ArenaLayout layout, wire::LayOut(job, boxes, kMaxArenaBytes));
  *groups_.mutable_groups() = job.groups();
  attachment_.Prepare(std::move(registration_), std::move(layout));
  prepared_ = true;
  return absl::OkStatus();
}

absl::StatusOr<v1::RegisterResponse> Client::Register(Timeout timeout) {
  wire::MutexLock lock(mu_);
  if (operation_ != Operation::kRegister) {
    DMUON_RETURN_IF_ERROR(RequireIdle("dmuon_register"));
    DMUON_RETURN_IF_ERROR(CheckRegistration());
    registered_ = begun_ = false;
    wanted_step_ = 0;
    Post(Operation::kRegister);
  }
  DMUON_RETURN_IF_ERROR(Await("dmuon_register", timeout));
  registered_ = true;
  return registered_response_;
}

absl::StatusOr<v1::BeginResponse> Client::Begin(Timeout timeout) {
  wire::MutexLock lock(mu_);
  if (operation_ != Operation::kBegin) {
    DMUON_RETURN_IF_ERROR(RequireIdle("dmuon_begin"));
    if (!registered_) return NotReady("dmuon_register comes before dmuon_begin");
    counts_on_state_ = begun_ && last_step_ > 0;
    Post(Operation::kBegin);
  }
  DMUON_RETURN_IF_ERROR(Await("dmuon_begin", timeout));
  begun_ = true;
  answered_step_ = 0;
  last_step_ = begun_response_.last_step();
  return begun_response_;
}

absl::Status Client::CheckTensor(uint32_t tensor) {
  wire::MutexLock lock(mu_);
  if (!registered_) return NotReady("buffers exist after dmuon_register");
  if (tensor < tensors_) return absl::OkStatus();
  return wire::InvalidField(
      absl::StrCat("tensor ", tensor, " is not below the number of tensors, ", tensors_));
}

absl::StatusOr<std::span<std::byte>> Client::Gradient(uint32_t tensor) {
  DMUON_RETURN_IF_ERROR(CheckTensor(tensor));
  return attachment_.grad(tensor);
}

absl::StatusOr<std::span<std::byte>> Client::Parameter(uint32_t tensor) {
  DMUON_RETURN_IF_ERROR(CheckTensor(tensor));
  return attachment_.param(tensor);
}

absl::Status Client::Submit(std::span<const uint32_t> tensors, uint64_t step,
                            wire::WordState state) {
  for (const uint32_t tensor : tensors) DMUON_RETURN_IF_ERROR(CheckTensor(tensor));
  DMUON_RETURN_IF_ERROR(CheckStep(step));
  {
    // The marks of a step in flight are what a recovery resubmits; a restore clears them.
    wire::MutexLock lock(mu_);
    const bool clears = operation_ == Operation::kRestore || operation_ == Operation::kImport;
    if (operation_ == Operation::kStep || clears) return RequireIdle("dmuon_submit");
  }
  attachment_.Mark(tensors, step, state);
  return absl::OkStatus();
}

absl::Status Client::ExpectGradients(uint64_t step) {
  wire::MutexLock lock(mu_);
  DMUON_RETURN_IF_ERROR(RequireBegun("dmuon_expect_gradients"));
  DMUON_RETURN_IF_ERROR(CheckStep(step));
  attachment_.ExpectGradients(step);
  return absl::OkStatus();
}

absl::Status Client::MultiplyRows(v1::RowFactors rows) {
  DMUON_RETURN_IF_ERROR(CheckTensor(rows.tensor()));
  wire::MutexLock lock(mu_);
  DMUON_RETURN_IF_ERROR(RequireIdle("dmuon_multiply_rows"));
  row_factors_.push_back(std::move(rows));
  return absl::OkStatus();
}

absl::Status Client::Step(uint64_t step, std::vector<v1::Hyper> hypers) {
  wire::MutexLock lock(mu_);
  DMUON_RETURN_IF_ERROR(RequireIdle("dmuon_step"));
  const std::vector<v1::RowFactors> row_factors = std::exchange(row_factors_, {});
  if (!begun_) return NotReady("dmuon_begin comes before dmuon_step");
  DMUON_RETURN_IF_ERROR(CheckStep(step));
  std::vector<const v1::Hyper*> pointers;
  for (const v1::Hyper& hyper : hypers) pointers.push_back(&hyper);
  DMUON_RETURN_IF_ERROR(wire::ValidateHypers(groups_, pointers));
  step_ = step;
  step_request_.set_step(step);
  step_request_.set_waited_seconds(std::chrono::duration<double>(waited_).count());
  waited_ = {};
  step_request_.clear_hypers();
  for (v1::Hyper& hyper : hypers) *step_request_.add_hypers() = std::move(hyper);
  step_request_.mutable_row_factors()->Assign(row_factors.begin(), row_factors.end());
  wanted_step_ = answered_step_ = 0;
  PostStep();
  return absl::OkStatus();
}

// The step is in flight when this is OK: a wanted one is started again.
absl::Status Client::Resume(uint64_t step) {
  if (operation_ == Operation::kNone && wanted_step_ != 0 && wanted_step_ == step) PostStep();
  if (operation_ == Operation::kStep && step_ == step) return absl::OkStatus();
  return NotReady(absl::StrCat("step ", step, " was not started"));
}

absl::Status Client::WaitParameters(std::span<const uint32_t> tensors, uint64_t step,
                                    Timeout timeout) {
  for (const uint32_t tensor : tensors) DMUON_RETURN_IF_ERROR(CheckTensor(tensor));
  const Deadline began = Clock::now();
  const Deadline deadline = DeadlineOf(timeout);
  DMUON_ASSIGN_OR_RETURN(bool over, Probe(step));
  for (auto tensor = tensors.begin(); !over && tensor != tensors.end();) {
    if (attachment_.AwaitParameter(*tensor, step, deadline - Clock::now())) {
      ++tensor;
      continue;
    }
    DMUON_ASSIGN_OR_RETURN(over, Probe(step));
    if (!over && Clock::now() >= deadline) return TooLate("dmuon_wait_params", *timeout);
  }
  wire::MutexLock lock(mu_);
  waited_ += Clock::now() - began;
  return absl::OkStatus();
}

// True when the step is over and all its parameters are there.
absl::StatusOr<bool> Client::Probe(uint64_t step) {
  {
    wire::MutexLock lock(mu_);
    if (step != 0 && step == answered_step_) return true;
    DMUON_RETURN_IF_ERROR(Resume(step));
    if (in_flight_ && !landing_) Land(Clock::now());
    if (!done_ || outcome_.ok()) return done_;
  }
  return Wait(step, std::chrono::milliseconds(0)).status();
}

absl::StatusOr<v1::StepResponse> Client::Wait(uint64_t step, Timeout timeout) {
  wire::MutexLock lock(mu_);
  if (step != 0 && step == answered_step_) return step_response_;
  DMUON_RETURN_IF_ERROR(Resume(step));
  const Deadline began = Clock::now();
  const absl::Status status = Await("dmuon_wait", timeout);
  waited_ += Clock::now() - began;
  if (status.ok()) {
    wanted_step_ = 0;
    answered_step_ = last_step_ = step;
    return step_response_;
  }
  // The daemon gave up on somebody, not on us: the step goes on when the caller comes back.
  const bool retry = status.code() == absl::StatusCode::kDeadlineExceeded || IsPeerLost(status);
  wanted_step_ = retry ? step : 0;
  Heed(status);
  return status;
}

void Client::Heed(const absl::Status& status) {
  const v1::ErrorReason reason = wire::ReasonOf(status);
  if (reason == v1::ERROR_REASON_STATE_LOST || reason == v1::ERROR_REASON_STALE_GENERATION) begun_ = false;
}

void Client::Post(Operation operation) {
  operation_ = operation;
  done_ = false;
  changed_.NotifyAll();
}

void Client::PostStep() {
  if (!attachment_.Ring(step_request_)) return Post(Operation::kStep);
  operation_ = Operation::kStep;
  done_ = false;
  in_flight_ = true;
}

// Reads the answer to the step in flight. When something is lost, the client thread takes over.
void Client::Land(Deadline until) {
  landing_ = true;
  const uint64_t step = step_;
  mu_.Unlock();
  std::optional<absl::StatusOr<v1::StepResponse>> response = attachment_.AwaitAnswer(step, until);
  mu_.Lock();
  landing_ = false;
  if (response.has_value()) {
    in_flight_ = false;
    done_ = !IsConnectionLost(response->status()) && !IsPeerLost(response->status());
    outcome_ = response->status();
    if (response->ok()) step_response_ = **std::move(response);
  }
  changed_.NotifyAll();
}

absl::Status Client::RequireIdle(absl::string_view verb) {
  const auto unanswered = [&](absl::string_view what) {
    return NotReady(absl::StrCat(verb, " while ", what, " is unanswered: call that again"));
  };
  switch (operation_) {
    case Operation::kNone:
      return absl::OkStatus();
    case Operation::kRegister:
      return unanswered("dmuon_register");
    case Operation::kBegin:
      return unanswered("dmuon_begin");
    case Operation::kStep:
      return NotReady(
          absl::StrCat(verb, " while step ", step_, " is in flight: dmuon_wait for it"));
    case Operation::kSave:
      return unanswered(absl::StrCat("dmuon_save of ", checkpoint_));
    case Operation::kWaitSaved:
      return unanswered(absl::StrCat("dmuon_wait_saved of ", checkpoint_));
    case Operation::kRestore:
      return unanswered(absl::StrCat("dmuon_restore of ", checkpoint_));
    case Operation::kExport:
      return unanswered("dmuon_export_state");
    case Operation::kImport:
      return unanswered("dmuon_import_state");
  }
  return absl::InternalError("unknown operation");
}

absl::Status Client::RequireBegun(absl::string_view verb) {
  DMUON_RETURN_IF_ERROR(RequireIdle(verb));
  return begun_ ? absl::OkStatus() : NotReady(absl::StrCat("dmuon_begin comes before ", verb));
}

absl::Status Client::RequireBetweenSteps(absl::string_view verb) {
  DMUON_RETURN_IF_ERROR(RequireBegun(verb));
  if (wanted_step_ == 0) return absl::OkStatus();
  return NotReady(absl::StrCat(verb, " while step ", wanted_step_, " is unanswered: dmuon_wait for it"));
}

absl::Status Client::TooLate(absl::string_view verb, std::chrono::milliseconds timeout) const {
  return absl::DeadlineExceededError(
      absl::StrCat(verb, " of rank ", endpoint_.rank, " of job ", endpoint_.job_id,
                   ": no answer within ", timeout.count(), " ms; it goes on, call again"));
}

absl::Status Client::Await(absl::string_view verb, Timeout timeout) {
  const Deadline deadline = DeadlineOf(timeout);
  while (!done_) {
    if (in_flight_ && !landing_) {
      Land(deadline);
    } else if (timeout.has_value()) {
      changed_.WaitUntil(mu_, deadline);
    } else {
      changed_.Wait(mu_);
    }
    if (!done_ && Clock::now() >= deadline) return TooLate(verb, *timeout);
  }
  operation_ = Operation::kNone;
  done_ = false;
  return std::exchange(outcome_, absl::OkStatus());
}

void Client::Run() {
  while (true) {
    Operation operation;
    {
      wire::MutexLock lock(mu_);
      while (!stopping_ && (operation_ == Operation::kNone || done_ || in_flight_)) {
        changed_.Wait(mu_);
      }
      if (stopping_) return;
      operation = operation_;
    }
    absl::Status outcome = Execute(operation);
    wire::MutexLock lock(mu_);
    outcome_ = std::move(outcome);
    done_ = true;
    changed_.NotifyAll();
  }
}

absl::Status Client::Execute(Operation operation) {
  switch (operation) {
    case Operation::kRegister: {
      DMUON_ASSIGN_OR_RETURN(registered_response_, attachment_.Register());
      return absl::OkStatus();
    }
    case Operation::kBegin: {
      DMUON_ASSIGN_OR_RETURN(begun_response_, attachment_.Begin(counts_on_state_));
      return absl::OkStatus();
    }
    case Operation::kStep: {
      DMUON_ASSIGN_OR_RETURN(step_response_, attachment_.Step(step_request_));
      return absl::OkStatus();
    }
    case Operation::kSave:
    case Operation::kWaitSaved:
      return attachment_.Save(save_request_, save_last_step_, save_until_).status();
    case Operation::kRestore: {
      DMUON_ASSIGN_OR_RETURN(restore_response_, attachment_.Restore(restore_request_));
      return absl::OkStatus();
    }
    case Operation::kExport: {
      DMUON_ASSIGN_OR_RETURN(exported_, attachment_.Export(export_request_, export_step_));
      return absl::OkStatus();
    }
    case Operation::kImport: {
      DMUON_ASSIGN_OR_RETURN(import_response_, attachment_.Import(import_request_, imported_.get()));
      return absl::OkStatus();
    }
    case Operation::kNone:
      break;
  }
  return absl::InternalError("no operation to run");
}

}  // namespace dmuon::client
