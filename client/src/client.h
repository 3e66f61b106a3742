// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A training worker's client: the order of calls, local checks, and waiting with timeouts. One
// thread of its own runs the blocking operations (register, begin, step, save, restore) one after the other; the
// trainer's thread posts one and waits for it as long as it likes. A timeout leaves the operation
// running; the same call again picks it up.
//
// Errors are absl::Status with the reasons of dmuon.v1; call order is
// FAILED_PRECONDITION/NOT_READY.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/src/attachment.h"
#include "client/src/state_view.h"
#include "dmuon/v1/node.pb.h"
#include "wire/arena.h"
#include "wire/mutex.h"
#include "wire/scoped_fd.h"

namespace dmuon::client {

// Of a wait: nullopt waits without end, 0 polls.
using Timeout = std::optional<std::chrono::milliseconds>;

absl::Status NotReady(absl::string_view message);
Deadline DeadlineOf(Timeout timeout);

class Client {
 public:
  // Connects. `job` carries what the worker knows before any tensor: id, world size, clipping,
  // policy.
  static absl::StatusOr<std::unique_ptr<Client>> Open(Endpoint endpoint, v1::JobSpec job);
  // Ends the session in order, also in the middle of an operation.
  ~Client();

  // Before Register only. Checked as a whole by Register; return the index.
  absl::StatusOr<uint32_t> AddGroup(v1::Group group);
  absl::StatusOr<uint32_t> AddTensor(v1::Tensor tensor, v1::Shard shard);

  absl::StatusOr<v1::RegisterResponse> Register(Timeout timeout);
  absl::StatusOr<v1::BeginResponse> Begin(Timeout timeout);

  // After Register; any thread. INVALID_ARGUMENT for an index out of range or a step out of bounds.
  absl::StatusOr<std::span<std::byte>> Gradient(uint32_t tensor);
  absl::StatusOr<std::span<std::byte>> Parameter(uint32_t tensor);
  // All of them or none.
  absl::Status Submit(std::span<const uint32_t> tensors, uint64_t step, wire::WordState state);

  // Gradients of `step` come one by one from now on. Any thread.
  absl::Status ExpectGradients(uint64_t step);
  // Starts a step and returns.
  absl::Status Step(uint64_t step, std::vector<v1::Hyper> hypers);
  absl::Status MultiplyRows(v1::RowFactors rows);
  // Until the parameters of these tensors carry the step that is in flight, or was answered last; others
  // may still be on their way. Errors are those of Wait.
  absl::Status WaitParameters(std::span<const uint32_t> tensors, uint64_t step, Timeout timeout);
  // Its answer. After DEADLINE_EXCEEDED the step is still wanted and Wait goes on with it; after
  // any other error it is over, and may be started again. Answers again for the step answered last.
  absl::StatusOr<v1::StepResponse> Wait(uint64_t step, Timeout timeout);

  // Makes a checkpoint of the last applied step: OK when this node's state has been copied.
  absl::Status Save(const std::string& name, Timeout timeout);
  // Until a checkpoint of which Save was OK exists, or the service says why it does not. Unlike the others it
  // leaves nothing running: each call asks anew, and no longer than the call timeout.
  absl::Status WaitSaved(const std::string& name, Timeout timeout);
  // Puts a checkpoint in place of the job's state; the step that it is of. Steps of before are forgotten, also
  // when it fails.
  absl::StatusOr<uint64_t> Restore(const std::string& name, Timeout timeout);

  // This node's part of the state, as a part of a checkpoint has it. The bytes are there until ReleaseState, the next
  // Export, or the client's end.
  absl::StatusOr<std::span<const std::byte>> Export(Timeout timeout);
  absl::Status ReleaseState();
  // As Restore, with a state in the memfd `state` (-1: another worker brings it), which is duplicated.
  absl::StatusOr<uint64_t> Import(int state, const std::string& digest, Timeout timeout);

 private:
  enum class Operation { kNone, kRegister, kBegin, kStep, kSave, kWaitSaved, kRestore, kExport, kImport };

  Client(Endpoint endpoint, v1::JobSpec job);
  void Start();
  void Run();
  absl::Status Execute(Operation operation);
  absl::Status CheckRegistration();
  absl::Status CheckTensor(uint32_t tensor);
  void Post(Operation operation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PostStep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Resume(uint64_t step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<bool> Probe(uint64_t step);
  absl::Status TooLate(absl::string_view verb, std::chrono::milliseconds timeout) const;
  void Land(Deadline until) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status RequireIdle(absl::string_view verb) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status RequireBegun(absl::string_view verb) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status RequireBetweenSteps(absl::string_view verb) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PostSave(Operation operation, const std::string& name, uint64_t step, Deadline until)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Unmap() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What an error of the daemon says about the session.
  void Heed(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Await(absl::string_view verb, Timeout timeout) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // The caller's until an operation is posted and again when it is picked up; the client thread's
  // in between. The handover goes through mu_.
  const Endpoint endpoint_;
  v1::RegisterRequest registration_;  // empty after the first Register
  uint32_t tensors_ = 0;
  bool prepared_ = false;
  v1::JobSpec groups_;  // groups only, to check hyper-parameters
  v1::StepRequest step_request_;
  v1::RegisterResponse registered_response_;
  bool counts_on_state_ = false;  // who begins: it has taken steps
  v1::BeginResponse begun_response_;
  v1::StepResponse step_response_;
  v1::SaveRequest save_request_;
  uint64_t save_last_step_ = 0;  // of the job
  Deadline save_until_;
  v1::RestoreRequest restore_request_;
  v1::RestoreResponse restore_response_;
  v1::ExportRequest export_request_;
  uint64_t export_step_ = 0;
  wire::ScopedFd exported_;  // what Export was answered
  v1::ImportRequest import_request_;
  wire::ScopedFd imported_;
  v1::ImportResponse import_response_;

  wire::Mutex mu_;
  wire::CondVar changed_;
  Operation operation_ ABSL_GUARDED_BY(mu_) = Operation::kNone;
  bool done_ ABSL_GUARDED_BY(mu_) = false;  // it has ended; nobody has picked it up
  absl::Status outcome_ ABSL_GUARDED_BY(mu_);
  // A step needs no help of the client thread while all goes well: its caller rings, and
  // the one who waits reads the answer, without a hand-over between threads on either way.
  bool in_flight_ ABSL_GUARDED_BY(mu_) = false;
  bool landing_ ABSL_GUARDED_BY(mu_) = false;  // somebody reads
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool registered_ ABSL_GUARDED_BY(mu_) = false;
  bool begun_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t step_ ABSL_GUARDED_BY(mu_) = 0;           // of step_request_
  uint64_t wanted_step_ ABSL_GUARDED_BY(mu_) = 0;    // ended by a timeout; Wait starts it again
  std::chrono::nanoseconds waited_ ABSL_GUARDED_BY(mu_){};  // for parameters, since the last Step
  std::vector<v1::RowFactors> row_factors_ ABSL_GUARDED_BY(mu_);  // of the next Step
  uint64_t answered_step_ ABSL_GUARDED_BY(mu_) = 0;  // step_response_ is its answer
  uint64_t last_step_ ABSL_GUARDED_BY(mu_) = 0;      // that is known to be applied
  std::string checkpoint_ ABSL_GUARDED_BY(mu_);      // of the last Save, WaitSaved or Restore
  // The last kKnownSaves of which Save was OK, oldest first: name and step.
  std::deque<std::pair<std::string, uint64_t>> saves_ ABSL_GUARDED_BY(mu_);
  StateView state_ ABSL_GUARDED_BY(mu_);  // of the last Export

  Attachment attachment_;
  std::thread thread_;
};

}  // namespace dmuon::client
