// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "client/src/attachment.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "wire/error.h"
#include "wire/grpc_status.h"

namespace dmuon::client {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstPause{20};
constexpr milliseconds kLongestPause{1000};
// A frozen daemon accepts connections: one attempt must not eat the whole connect timeout.
constexpr milliseconds kLongestAttempt{5000};
constexpr milliseconds kShortestAttempt{1000};
// The end of a killed predecessor may take the daemon a moment to notice.
constexpr milliseconds kRankGrace{1000};
constexpr milliseconds kCloseBudget{5000};
// Who waits for a word looks after the connection this often.
constexpr milliseconds kLook{20};

// 128 random bits and the pid: no two processes share it, whatever the pid namespace.
std::string ProcessIncarnation() {
  std::random_device random;
  return absl::StrFormat("%08x%08x%08x%08x-%d", random(), random(), random(), random(), getpid());
}

bool IsBareTimeout(const absl::Status& status) {
  return status.code() == absl::StatusCode::kDeadlineExceeded &&
         wire::ReasonOf(status) == v1::ERROR_REASON_UNSPECIFIED;
}

void CopyPiece(std::span<const std::byte> from, std::span<std::byte> to) {
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
}

v1::StepResponse FromArena(uint64_t step, const wire::StepAnswer& answer) {
  v1::StepResponse response;
  response.set_step(step);
  response.set_grad_norm(answer.grad_norm);
  response.set_clip(answer.clip);
  response.set_newton_schulz_calls(answer.newton_schulz_calls);
  response.set_service_seconds(answer.service_seconds);
  return response;
}

// Gradients and parameters of the trainer's last submit, with their words, into a new arena.
void CarryOver(const wire::Arena& from, const wire::Arena& to, size_t tensors) {
  for (size_t t = 0; t < tensors; ++t) {
    CopyPiece(from.grad(t), to.grad(t));
    CopyPiece(from.param(t), to.param(t));
    to.entry(t).grad_word.store(from.entry(t).grad_word.load(std::memory_order_acquire),
                                std::memory_order_release);
  }
}

}  // namespace

Attachment::Attachment(Endpoint endpoint)
    : endpoint_(std::move(endpoint)),
      process_(ProcessIncarnation()),
      jitter_(static_cast<std::minstd_rand::result_type>(std::random_device()())) {}

absl::Status Attachment::Connect() {
  const Deadline start = Clock::now();
  const Deadline until = start + endpoint_.connect_timeout;
  return Connect(until, std::min(until, start + kRankGrace));
}

absl::Status Attachment::Connect(Deadline until, Deadline taken_until) {
  while (true) {
    const Deadline now = Clock::now();
    const Deadline attempt =
        std::min(std::max(until, now + kShortestAttempt), now + kLongestAttempt);
    auto opened = Session::Open(endpoint_.address, NextOpen(), attempt);
    if (opened.ok()) {
      wire::MutexLock lock(mu_);
      session_ = *std::move(opened);
      pause_ = milliseconds(0);
      if (cancelled_) session_->Cancel();
      return absl::OkStatus();
    }
    const absl::Status status = opened.status();
    const bool taken = wire::ReasonOf(status) == v1::ERROR_REASON_RANK_TAKEN;
    const bool again = taken || IsConnectionLost(status) || IsBareTimeout(status);
    if (!again || !Pause(taken ? taken_until : until)) return status;
  }
}

void Attachment::Prepare(v1::RegisterRequest registration, wire::ArenaLayout layout) {
  registration_ = std::move(registration);
  layout_ = std::move(layout);
}

absl::StatusOr<v1::RegisterResponse> Attachment::Register() { return Attach(CallDeadline()); }

absl::StatusOr<v1::RegisterResponse> Attachment::Attach(Deadline until) {
  attached_ = begun_ = false;
  while (true) {
    std::shared_ptr<Session> open = session();
    if (open == nullptr) {
      DMUON_RETURN_IF_ERROR(Connect(until, until));
      continue;
    }
    auto response = RegisterOnce(*open, until);
    if (response.ok()) {
      attached_ = true;
      return response;
    }
    // After a bare timeout the daemon may still send an arena that nobody expects any more.
    const bool lost = IsConnectionLost(response.status());
    if (lost || IsBareTimeout(response.status())) DropSession();
    if (!lost || !Pause(until)) return response;
  }
}

absl::StatusOr<v1::RegisterResponse> Attachment::RegisterOnce(Session& session, Deadline until) {
  DMUON_ASSIGN_OR_RETURN(v1::RegisterResponse response, session.Register(registration_, until));
  DMUON_ASSIGN_OR_RETURN(wire::Arena arena,
                         session.ReceiveArena(layout_, response.generation(), until));
  DMUON_RETURN_IF_ERROR(Adopt(std::move(arena)));
  generation_ = response.generation();
  return response;
}

absl::Status Attachment::Adopt(wire::Arena arena) {
  wire::MutexLock lock(mu_);
  if (arena_.mapped()) CarryOver(arena_, arena, layout_.grads.size());
  DMUON_RETURN_IF_ERROR(view_.Show(arena.fd(), layout_.total_bytes));
  arena_ = std::move(arena);
  return absl::OkStatus();
}

absl::StatusOr<v1::BeginResponse> Attachment::Begin(bool must_resume) { return Begin(must_resume, CallDeadline()); }

absl::StatusOr<v1::BeginResponse> Attachment::Begin(bool must_resume, Deadline until) {
  while (true) {
    if (!attached_) DMUON_RETURN_IF_ERROR(Attach(until).status());
    v1::BeginRequest request;
    request.set_generation(generation_);
    request.set_must_resume(must_resume);
    auto response = session()->Begin(request, until);
    if (response.ok()) {
      begun_ = true;
      return response;
    }
    if (IsPeerLost(response.status()) && Pause(until)) continue;
    if (!IsConnectionLost(response.status())) return response;
    DropSession();
    if (!Pause(until)) return response;
  }
}

void Attachment::ExpectGradients(uint64_t step) {
  if (begun_) session()->ExpectGradients(generation_, step);
}

bool Attachment::Ring(v1::StepRequest& request) {
  if (!begun_) return false;
  request.set_generation(generation_);
  wire::HeaderAt(base()).answer_word.Store(0);
  rang_until_ = CallDeadline();
  return session()->Ring(request, rang_until_);
}

std::optional<absl::StatusOr<v1::StepResponse>> Attachment::AwaitAnswer(uint64_t step,
                                                                        Deadline until) {
  wire::ArenaHeader& header = wire::HeaderAt(base());
  const std::shared_ptr<Session> open = session();
  while (true) {
    const uint64_t word = header.answer_word.Load();
    if (word == wire::MakeWord(step, wire::WordState::kReady)) return FromArena(step, header.answer);
    if (word == wire::MakeWord(step, wire::WordState::kMissing)) {
      return absl::UnavailableError("the daemon has more to say about the step");
    }
    const Deadline now = Clock::now();
    if (!open->Alive()) {
      DropSession();
      return absl::UnavailableError("the daemon is gone");
    }
    if (now >= rang_until_) {
      return absl::DeadlineExceededError(
          absl::StrCat("daemon at ", endpoint_.address, " gave no answer to step ", step,
                       " within ", endpoint_.call_timeout.count(), " ms"));
    }
    if (now >= until) return std::nullopt;
    header.answer_word.Sleep(
        word, std::min<std::chrono::nanoseconds>(std::min(until, rang_until_) - now, kLook));
  }
}

bool Attachment::AwaitParameter(size_t tensor, uint64_t step, std::chrono::nanoseconds limit) {
  wire::WaitableWord& word = wire::EntryAt(base(), tensor).param_word;
  const uint64_t ready = wire::MakeWord(step, wire::WordState::kReady);
  const uint64_t seen = word.Load();
  if (seen == ready) return true;
  word.Sleep(seen, std::min<std::chrono::nanoseconds>(limit, kLook));
  return word.Load() == ready;
}

// Repeats a call that the daemon may be asked again until it answers, through lost connections and lost peers.
template <typename Call>
auto Attachment::Persist(const Expected& expected, Call call) -> decltype(call(std::declval<Session&>())) {
  Deadline until = CallDeadline();  // of a recovery that an earlier call left undone
  while (true) {
    const bool recovering = !begun_;
    if (recovering) DMUON_RETURN_IF_ERROR(Resume(expected, until));
    auto response = call(*session());
    const bool lost = IsConnectionLost(response.status());
    if (lost) DropSession();
    if (!lost && !IsPeerLost(response.status())) return response;
    if (lost && !recovering) until = CallDeadline();
    if (!Pause(until)) return response;
  }
}

absl::StatusOr<v1::StepResponse> Attachment::Step(v1::StepRequest& request) {
  const uint64_t step = request.step();
  return Persist({step - 1, step, absl::StrCat("step ", step, " was in flight")}, [&](Session& open) {
    request.set_generation(generation_);
    return open.Step(request, CallDeadline());
  });
}

absl::StatusOr<v1::SaveResponse> Attachment::Save(v1::SaveRequest& request, uint64_t last_step, Deadline until) {
  const std::string what = absl::StrCat("checkpoint ", request.name(), " of step ", request.step(), " was in flight");
  return Persist({last_step, last_step, what}, [&](Session& open) {
    request.set_generation(generation_);
    return open.Save(request, until);
  });
}

absl::StatusOr<v1::RestoreResponse> Attachment::Restore(v1::RestoreRequest& request) {
  const std::string what = absl::StrCat("checkpoint ", request.name(), " was to be restored");
  return Persist({0, std::numeric_limits<uint64_t>::max(), what}, [&](Session& open) {
    request.set_generation(generation_);
    return open.Restore(request, CallDeadline());
  });
}

absl::StatusOr<wire::ScopedFd> Attachment::Export(v1::ExportRequest& request, uint64_t last_step) {
  const std::string what = absl::StrCat("the state of step ", last_step, " was asked for");
  absl::StatusOr<wire::ScopedFd> state =
      Persist({last_step, last_step, what}, [&](Session& open) -> absl::StatusOr<wire::ScopedFd> {
        request.set_generation(generation_);
        request.set_step(last_step);
        const Deadline until = CallDeadline();
        DMUON_ASSIGN_OR_RETURN(const v1::ExportResponse response, open.Export(request, until));
        return open.ReceiveState(generation_, response.bytes(), until);
      });
  // The daemon may still send one that nobody expects any more.
  if (IsBareTimeout(state.status())) DropSession();
  return state;
}

absl::StatusOr<v1::ImportResponse> Attachment::Import(v1::ImportRequest& request, int state) {
  return Persist({0, std::numeric_limits<uint64_t>::max(), "a state was to be taken in"},
                 [&](Session& open) -> absl::StatusOr<v1::ImportResponse> {
                   request.set_generation(generation_);
                   if (state >= 0) DMUON_RETURN_IF_ERROR(open.Offer(state, CallDeadline()));
                   return open.Import(request, CallDeadline());
                 });
}

void Attachment::Release() {
  if (const std::shared_ptr<Session> open = session(); open != nullptr) open->Release();
}

absl::Status Attachment::Resume(const Expected& expected, Deadline until) {
  DMUON_ASSIGN_OR_RETURN(const v1::BeginResponse begin, Begin(true, until));
  const uint64_t last = begin.last_step();
  if (begin.resumed() && last >= expected.first_step && last <= expected.last_step) return absl::OkStatus();
  begun_ = false;
  const bool may_go_back = registration_.job().replication() == v1::REPLICATION_ASYNC;
  if (begin.resumed() && last < expected.first_step && may_go_back) {
    return wire::Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_ROLLED_BACK,
                       absl::StrCat("job ", endpoint_.job_id, " has gone back to step ", last,
                                    ", because a node was lost; ", expected.what, "; begin again"));
  }
  return wire::Error(
      absl::StatusCode::kDataLoss, v1::ERROR_REASON_STATE_LOST,
      absl::StrCat("daemon at ", endpoint_.address, " came back with job ", endpoint_.job_id,
                   " at step ", last, ", ", begin.resumed() ? "with" : "without", " state; ", expected.what));
}

void Attachment::Close() {
  if (std::shared_ptr<Session> open = session(); open != nullptr) {
    // Nobody to tell when it fails: the end of the channel tells the daemon too.
    open->Close(Clock::now() + std::min(endpoint_.call_timeout, kCloseBudget)).IgnoreError();
    DropSession();
  }
}

void Attachment::Cancel() {
  wire::MutexLock lock(mu_);
  cancelled_ = true;
  if (session_ != nullptr) session_->Cancel();
  cancelled_changed_.NotifyAll();
}

std::byte* Attachment::base() {
  wire::MutexLock lock(mu_);
  return view_.base();
}

std::span<std::byte> Attachment::Piece(const wire::ArenaLayout::Piece& piece) {
  wire::MutexLock lock(mu_);
  return {view_.base() + piece.offset, piece.bytes};
}

std::span<std::byte> Attachment::grad(size_t tensor) { return Piece(layout_.grads[tensor]); }
std::span<std::byte> Attachment::param(size_t tensor) { return Piece(layout_.params[tensor]); }

void Attachment::Mark(std::span<const uint32_t> tensors, uint64_t step, wire::WordState state) {
  wire::MutexLock lock(mu_);
  for (const uint32_t tensor : tensors) arena_.MarkGradient(tensor, step, state);
}

std::shared_ptr<Session> Attachment::session() {
  wire::MutexLock lock(mu_);
  return session_;
}

void Attachment::DropSession() {
  attached_ = begun_ = false;
  std::shared_ptr<Session> old;  // its destructor closes sockets: not under the lock
  wire::MutexLock lock(mu_);
  old.swap(session_);
}

// Waits a little longer each time, with jitter. False when that would pass `until`, or on Cancel.
bool Attachment::Pause(Deadline until) {
  pause_ = std::clamp(pause_ * 8 / 5, kFirstPause, kLongestPause);
  const milliseconds jitter(jitter_() % static_cast<uint64_t>(pause_.count()));
  const Deadline wake = Clock::now() + pause_ / 2 + jitter;
  if (wake > until) return false;
  wire::MutexLock lock(mu_);
  while (!cancelled_ && cancelled_changed_.WaitUntil(mu_, wake)) {
  }
  return !cancelled_;
}

v1::OpenRequest Attachment::NextOpen() {
  v1::OpenRequest request;
  request.set_job_id(endpoint_.job_id);
  request.set_rank(endpoint_.rank);
  request.set_world_size(endpoint_.world_size);
  request.set_incarnation(absl::StrCat(process_, "-", ++opened_));
  request.set_protocol_version(wire::kProtocolVersion);
  return request;
}

}  // namespace dmuon::client
