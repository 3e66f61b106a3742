// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A worker's attachment to its daemon over any number of sessions: connects, registers, holds the
// arena, and after a lost connection opens a new session, moves what the old arena held into the
// new one, and resubmits the step in flight. The trainer's pointers into the arena never move.
//
// Blocking calls come from one thread at a time. Cancel, Mark and the buffers may be used from any
// other.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/src/arena_view.h"
#include "client/src/session.h"
#include "dmuon/v1/node.pb.h"
#include "wire/arena.h"
#include "wire/mutex.h"

namespace dmuon::client {

struct Endpoint {
  std::string address;
  std::string job_id;
  uint32_t rank = 0;
  uint32_t world_size = 1;
  std::chrono::milliseconds connect_timeout{};  // how long Connect tries
  std::chrono::milliseconds call_timeout{};     // of one call, and of one recovery
};

class Attachment {
 public:
  explicit Attachment(Endpoint endpoint);

  // Opens the first session. UNAVAILABLE names address, time and last cause.
  absl::Status Connect();

  // What Register sends, and the layout of the arena that answers it. Once, before Register.
  void Prepare(v1::RegisterRequest registration, wire::ArenaLayout layout);

  // Registers and maps the arena; whatever an earlier arena held is moved into it.
  absl::StatusOr<v1::RegisterResponse> Register();
  // `must_resume`: the trainer has taken steps; STATE_LOST when there is nothing to go on from.
  absl::StatusOr<v1::BeginResponse> Begin(bool must_resume);
  // Tells the daemon that gradients of `step` are marked one by one, if there is a session: one that is lost
  // is the next step's to mend.
  void ExpectGradients(uint64_t step);
  // A step the short way, while all goes well: rings, and the answer comes in the arena, to whoever wants
  // it. False when it did not ring; then Step does it all.
  bool Ring(v1::StepRequest& request);
  // The answer to the step that rang; nullopt when `until` passes first. UNAVAILABLE: Step goes on.
  // DEADLINE_EXCEEDED: the daemon is silent.
  std::optional<absl::StatusOr<v1::StepResponse>> AwaitAnswer(uint64_t step, Deadline until);
  // Runs a step to its answer, through lost connections and lost peers. DATA_LOSS/STATE_LOST when the daemon came
  // back without the state of the step or of the one before.
  absl::StatusOr<v1::StepResponse> Step(v1::StepRequest& request);
  // The same for a Save, of a job that stands at `last_step`; its answer is waited for until `until`, and the
  // daemon may be silent for so long.
  absl::StatusOr<v1::SaveResponse> Save(v1::SaveRequest& request, uint64_t last_step, Deadline until);
  // The same for a Restore, whatever step the job stands at. STATE_LOST as well: begin first, then restore.
  absl::StatusOr<v1::RestoreResponse> Restore(v1::RestoreRequest& request);
  // The same for an Export of the state of `last_step`; the memfd that it is in.
  absl::StatusOr<wire::ScopedFd> Export(v1::ExportRequest& request, uint64_t last_step);
  // As Restore, of a state in the memfd `state`; -1: other workers bring it.
  absl::StatusOr<v1::ImportResponse> Import(v1::ImportRequest& request, int state);
  // Tells the daemon that what Export gave is not needed any more, if there is a session: without one it knows.
  void Release();
  // Of a control call that begins now.
  [[nodiscard]] Deadline CallDeadline() const { return Clock::now() + endpoint_.call_timeout; }
  // Ends the session in order, if there is one. Also after Cancel.
  void Close();

  // Any thread: ends the blocking call in progress and all later ones but Close with CANCELLED.
  void Cancel();

  // Any thread, after Register. Pieces of the arena at addresses that never change; an empty piece
  // has an address too.
  std::span<std::byte> grad(size_t tensor);
  std::span<std::byte> param(size_t tensor);
  // Whether the parameter of `step` is there; if not, sleeps until it may be, or for `limit`, and looks
  // again.
  bool AwaitParameter(size_t tensor, uint64_t step, std::chrono::nanoseconds limit);
  // Stores the words of these tensors' gradients (release).
  void Mark(std::span<const uint32_t> tensors, uint64_t step, wire::WordState state);

 private:
  // Where a job must stand after a lost connection, and what then was going on, in words.
  struct Expected {
    uint64_t first_step = 0;
    uint64_t last_step = 0;
    std::string what;
  };

  absl::Status Connect(Deadline until, Deadline taken_until);
  absl::StatusOr<v1::RegisterResponse> Attach(Deadline until);
  absl::StatusOr<v1::RegisterResponse> RegisterOnce(Session& session, Deadline until);
  absl::StatusOr<v1::BeginResponse> Begin(bool must_resume, Deadline until);
  template <typename Call>
  auto Persist(const Expected& expected, Call call) -> decltype(call(std::declval<Session&>()));
  absl::Status Resume(const Expected& expected, Deadline until);
  absl::Status Adopt(wire::Arena arena);
  std::shared_ptr<Session> session();
  void DropSession();
  bool Pause(Deadline until);
  v1::OpenRequest NextOpen();
  std::span<std::byte> Piece(const wire::ArenaLayout::Piece& piece);
  std::byte* base();

  const Endpoint endpoint_;
  const std::string process_;  // first part of every incarnation

  // Of the thread that makes the blocking call.
  v1::RegisterRequest registration_;
  wire::ArenaLayout layout_;  // constant after Prepare, then read by all
  uint64_t generation_ = 0;
  bool attached_ = false;  // the session has registered
  bool begun_ = false;     // and begun
  Deadline rang_until_;    // when the step that rang must be answered
  uint64_t opened_ = 0;    // sessions asked for
  std::chrono::milliseconds pause_{};
  std::minstd_rand jitter_;

  wire::Mutex mu_;  // leaf lock
  wire::CondVar cancelled_changed_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<Session> session_ ABSL_GUARDED_BY(mu_);
  wire::Arena arena_ ABSL_GUARDED_BY(mu_);  // checked; its words are what the daemon reads
  ArenaView view_ ABSL_GUARDED_BY(mu_);     // the same memory where the trainer sees it
};

}  // namespace dmuon::client
