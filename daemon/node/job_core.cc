// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/job_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "wire/error.h"

namespace dmuon::node {
namespace {

absl::Status Error(absl::StatusCode code, v1::ErrorReason reason, const std::string& message) {
  return wire::Error(code, reason, message);
}

}  // namespace

JobCore::JobCore(JobCoreOptions options)
    : options_(std::move(options)), ranks_(options_.world_size) {}

absl::Status JobCore::Open(absl::Time now, uint32_t rank, SessionId session) {
  if (rank >= ranks_.size()) {
    return wire::InvalidField(absl::StrCat("rank ", rank, " of job '", options_.job_id,
                                           "', allowed are 0..", ranks_.size() - 1));
  }
  Rank& r = ranks_[rank];
  if (r.stage != Stage::kAbsent) {
    return Error(absl::StatusCode::kAlreadyExists, v1::ERROR_REASON_RANK_TAKEN,
                 absl::StrCat("rank ", rank, " of job '", options_.job_id,
                              "' is held by a live worker"));
  }
  r.stage = Stage::kOpen;
  r.session = session;
  r.closed = false;
  rank_of_[session] = rank;
  orphaned_since_ = absl::InfiniteFuture();
  (void)now;
  return absl::OkStatus();
}

const JobCore::Rank* JobCore::Find(SessionId session) const {
  const auto it = rank_of_.find(session);
  return it == rank_of_.end() ? nullptr : &ranks_[it->second];
}

JobCore::Rank* JobCore::Find(SessionId session, uint32_t* rank) {
  const auto it = rank_of_.find(session);
  if (it == rank_of_.end()) return nullptr;
  *rank = it->second;
  return &ranks_[it->second];
}

absl::Status JobCore::CheckCaller(const Rank* rank, uint64_t generation) const {
  if (rank == nullptr) {
    return Error(absl::StatusCode::kNotFound, v1::ERROR_REASON_UNKNOWN_SESSION,
                 "no such session; open again");
  }
  if (!failure_.ok()) return failure_;
  if (generation != generation_ || generation_ == 0) {
    return Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_STALE_GENERATION,
                 absl::StrCat("generation ", generation, " of job '", options_.job_id,
                              "'; current is ", generation_));
  }
  return absl::OkStatus();
}

// Whether the rank registers what the job was planned with.
absl::Status JobCore::CheckOffer(uint32_t rank) const {
  if (ranks_[rank].offered == ranks_[rank].digest) return absl::OkStatus();
  return Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_SPEC_MISMATCH,
               absl::StrCat("rank ", rank, " of job '", options_.job_id,
                            "' registers something else than what the job runs with (generation ",
                            generation_, "); use another job id, or close the job first"));
}

// A newer request of a rank replaces the one that waits: its caller has given it up.
void JobCore::Wait(Rank& rank, absl::Time now, Ticket ticket, absl::Time deadline) {
  rank.ticket = ticket;
  rank.deadline = std::min(deadline, now + options_.peer_timeout);
  rank.gave_up = false;
}

void JobCore::Answer(Rank& rank, const absl::Status& status, Actions& actions) {
  if (rank.ticket != 0) actions.push_back(action::ReplyTo{rank.ticket, status});
  rank.ticket = 0;
}

Actions JobCore::Register(absl::Time now, SessionId session, Ticket ticket, absl::Time deadline,
                          const std::string& digest) {
  Actions actions;
  uint32_t rank = 0;
  Rank* r = Find(session, &rank);
  if (absl::Status status = r == nullptr ? CheckCaller(r, 0) : failure_; !status.ok()) {
    actions.push_back(action::ReplyTo{ticket, status});
    return actions;
  }
  if (!r->here) {
    actions.push_back(action::ReplyTo{
        ticket, Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_NOT_READY,
                      absl::StrCat("rank ", rank, " of job '", options_.job_id,
                                   "' belongs to another node in generation ", generation_))});
    return actions;
  }
  r->offered = digest;
  if (absl::Status status = CheckOffer(rank); generation_ != 0 && !status.ok()) {
    actions.push_back(action::ReplyTo{ticket, status});
    return actions;
  }
  Answer(*r, absl::CancelledError("replaced by a newer request"), actions);
  r->stage = Stage::kRegistering;
  r->stepping = false;
  Wait(*r, now, ticket, deadline);
  if (generation_ == 0) {
    actions.push_back(action::SendRegistration{session});
    return actions;
  }
  actions.push_back(action::GiveArena{session});
  return actions;
}

Actions JobCore::RegistrationAnswered(absl::Time now, SessionId session,
                                      const absl::Status& status) {
  (void)now;
  Actions actions;
  uint32_t rank = 0;
  Rank* r = Find(session, &rank);
  if (r == nullptr || generation_ != 0) return actions;
  if (status.ok()) {
    r->digest = r->offered;
    return actions;
  }
  r->stage = Stage::kOpen;
  Answer(*r, status, actions);
  return actions;
}

Actions JobCore::PlanArrived(absl::Time now, uint64_t generation, const std::vector<uint32_t>& ranks,
                             bool can_come_back) {
  (void)now;
  Actions actions;
  if (generation_ != 0) return actions;
  generation_ = generation;
  can_come_back_ = can_come_back;
  follows_ = ranks.empty();
  for (Rank& rank : ranks_) rank.here = false;
  for (const uint32_t rank : ranks) ranks_[rank].here = true;
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    Rank& r = ranks_[rank];
    if (r.stage != Stage::kRegistering) continue;
    if (absl::Status status = CheckOffer(rank); !status.ok()) {
      r.stage = Stage::kOpen;
      Answer(r, status, actions);
    } else {
      actions.push_back(action::GiveArena{r.session});
    }
  }
  return actions;
}

Actions JobCore::ArenaGiven(absl::Time now, SessionId session, const absl::Status& status) {
  (void)now;
  Actions actions;
  uint32_t rank = 0;
  Rank* r = Find(session, &rank);
  if (r == nullptr) return actions;
  r->stage = status.ok() ? Stage::kRegistered : Stage::kOpen;
  Answer(*r, status, actions);
  return actions;
}

Actions JobCore::PlanRefused(absl::Time now, const std::vector<uint32_t>& ranks,
                             const absl::Status& status) {
  (void)now;
  Actions actions;
  if (generation_ != 0) return actions;
  for (const uint32_t rank : ranks) {
    Rank& r = ranks_[rank];
    r.digest.clear();
    if (r.stage != Stage::kRegistering) continue;
    r.stage = Stage::kOpen;
    Answer(r, status, actions);
  }
  return actions;
}

Actions JobCore::Begin(absl::Time now, SessionId session, Ticket ticket, absl::Time deadline,
                       uint64_t generation, bool must_resume) {
  Actions actions;
  uint32_t rank = 0;
  Rank* r = Find(session, &rank);
  absl::Status status = CheckCaller(r, generation);
  if (status.ok() && must_resume && !initialized_ && !can_come_back_) {
    status = Error(absl::StatusCode::kDataLoss, v1::ERROR_REASON_STATE_LOST,
                   absl::StrCat("job '", options_.job_id, "' has no state here: masters and momentum were lost with a daemon "
                                "that is gone, or has started again; begin anew, or load a checkpoint"));
  }
  if (status.ok() && (r->stage == Stage::kOpen || r->stage == Stage::kRegistering)) {
    status = Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_NOT_READY,
                   absl::StrCat("rank ", rank, " begins before it has registered"));
  }
  if (!status.ok()) {
    actions.push_back(action::ReplyTo{ticket, status});
    return actions;
  }
  Answer(*r, absl::CancelledError("replaced by a newer request"), actions);
  if (initialized_) {
    r->stage = Stage::kReady;
    r->stepping = false;
    actions.push_back(action::Deliver{session});
    actions.push_back(action::ReplyTo{ticket, absl::OkStatus()});
    return actions;
  }
  r->stage = Stage::kBeginning;
  r->resume = must_resume;
  Wait(*r, now, ticket, deadline);
  MaybeInitialize(actions);
  return actions;
}

template <typename Condition>
bool JobCore::AllHere(const Condition& condition) const {
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [&](const Rank& rank) { return !rank.here || condition(rank); });
}

absl::Time JobCore::FirstDeadline() const {
  absl::Time first = absl::InfiniteFuture();
  for (const Rank& rank : ranks_) {
    if (rank.ticket != 0) first = std::min(first, rank.deadline);
  }
  return first;
}

void JobCore::MaybeInitialize(Actions& actions) {
  if (AllHere([](const Rank& r) { return r.stage == Stage::kBeginning; })) {
    const bool resume = std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.here && r.resume; });
    actions.push_back(action::Initialize{FirstDeadline(), resume});
  }
}

Actions JobCore::Lost(absl::Time now, const absl::Status& why) {
  (void)now;
  Actions actions;
  for (Rank& rank : ranks_) {
    if (rank.stage == Stage::kAbsent) continue;
    Answer(rank, why, actions);
    actions.push_back(action::DropSession{rank.session});
    rank_of_.erase(rank.session);
    rank = Rank();
  }
  failure_ = why;
  actions.push_back(action::EndJob{/*in_order=*/false});
  return actions;
}

Actions JobCore::WentBack(absl::Time now, uint64_t last_step, const absl::Status& why) {
  (void)now;
  Actions actions;
  undone_ = std::max(undone_, last_step_);
  why_undone_ = why;
  last_step_ = last_step;
  AnswerArrived(why, actions);
  return actions;
}

Actions JobCore::Initialized(absl::Time now, const absl::Status& status, uint64_t last_step) {
  (void)now;
  Actions actions;
  initialized_ = status.ok();
  if (status.ok()) last_step_ = last_step;
  for (Rank& rank : ranks_) {
    if (rank.stage != Stage::kBeginning) continue;
    rank.stage = status.ok() ? Stage::kReady : Stage::kRegistered;
    Answer(rank, status, actions);
  }
  return actions;
}

Actions JobCore::Step(absl::Time now, SessionId session, Ticket ticket, absl::Time deadline,
                      uint64_t generation, uint64_t step, const std::string& hypers) {
  Actions actions;
  uint32_t rank = 0;
  Rank* r = Find(session, &rank);
  absl::Status status = CheckCaller(r, generation);
  if (status.ok() && r->stage != Stage::kReady) {
    status = Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_NOT_READY,
                   absl::StrCat("rank ", rank, " sends step ", step, " before it has begun"));
  }
  if (status.ok() && step > last_step_ + 1 && step <= undone_ + 1) {
    status = why_undone_;
  } else if (status.ok() && (step == 0 || (step != last_step_ && step != last_step_ + 1))) {
    status = Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_STEP_OUT_OF_ORDER,
                   absl::StrCat("step ", step, " of job '", options_.job_id,
                                "'; last applied is ", last_step_, ", next is ", last_step_ + 1));
  }
  if (!status.ok()) {
    actions.push_back(action::ReplyTo{ticket, status});
    return actions;
  }
  Answer(*r, absl::CancelledError("replaced by a newer request"), actions);
  r->stepping = false;
  if (step == last_step_) {  // applied before: exactly once means that it is only delivered again
    actions.push_back(action::Deliver{session});
    actions.push_back(action::ReplyTo{ticket, absl::OkStatus()});
    return actions;
  }
  r->hypers = hypers;
  r->restore.clear();
  Arrive(*r, now, ticket, deadline, actions);
  return actions;
}

Actions JobCore::Restore(absl::Time now, SessionId session, Ticket ticket, absl::Time deadline, uint64_t generation,
                         const std::string& name) {
  Actions actions;
  if (absl::Status status = CheckReady(session, generation); !status.ok()) {
    actions.push_back(action::ReplyTo{ticket, status});
    return actions;
  }
  uint32_t rank = 0;
  Rank* r = Find(session, &rank);
  Answer(*r, absl::CancelledError("replaced by a newer request"), actions);
  r->restore = name;
  Arrive(*r, now, ticket, deadline, actions);
  return actions;
}

absl::Status JobCore::CheckReady(SessionId session, uint64_t generation) const {
  const Rank* rank = Find(session);
  DMUON_RETURN_IF_ERROR(CheckCaller(rank, generation));
  if (rank->stage == Stage::kReady) return absl::OkStatus();
  return Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_NOT_READY,
               absl::StrCat("rank ", rank - ranks_.data(), " of job '", options_.job_id, "' has not begun"));
}

void JobCore::Arrive(Rank& rank, absl::Time now, Ticket ticket, absl::Time deadline, Actions& actions) {
  rank.stepping = true;
  Wait(rank, now, ticket, deadline);
  MaybeRunStep(actions);
}

void JobCore::MaybeRunStep(Actions& actions) {
  if (!AllHere([](const Rank& r) { return r.stepping; })) return;
  if (absl::Status status = CompareArrivals(); !status.ok()) return AnswerArrived(status, actions);
  const auto first = std::find_if(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.here; });
  if (first->restore.empty()) {
    actions.push_back(action::RunStep{last_step_ + 1, FirstDeadline()});
  } else {
    actions.push_back(action::Restore{first->restore, FirstDeadline()});
  }
}

absl::Status JobCore::CompareArrivals() const {
  const auto first = std::find_if(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.here; });
  const auto wish = [this](const Rank& rank) {
    return rank.restore.empty() ? absl::StrCat("step ", last_step_ + 1)
                                : absl::StrCat("to restore ", Restorable(rank.restore));
  };
  for (auto rank = first; rank != ranks_.end(); ++rank) {
    if (rank->here && rank->restore != first->restore) {
      return Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_CHECKPOINT,
                   absl::StrCat("job '", options_.job_id, "': rank ", first - ranks_.begin(), " wants ", wish(*first),
                                ", rank ", rank - ranks_.begin(), " ", wish(*rank), "; nothing changed"));
    }
    if (rank->here && rank->restore.empty() && rank->hypers != first->hypers) {
      return Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_HYPER_MISMATCH,
                   absl::StrCat("ranks ", first - ranks_.begin(), " and ", rank - ranks_.begin(), " of job '", options_.job_id,
                                "' sent different hyper-parameters for step ", last_step_ + 1));
    }
  }
  return absl::OkStatus();
}

Actions JobCore::StepDone(absl::Time now, const absl::Status& status) {
  (void)now;
  Actions actions;
  if (status.ok()) ++last_step_;
  AnswerArrived(status, actions);
  return actions;
}

Actions JobCore::Restored(absl::Time now, const absl::Status& status, uint64_t last_step) {
  (void)now;
  Actions actions;
  if (status.ok()) last_step_ = last_step;
  AnswerArrived(status, actions);
  return actions;
}

void JobCore::AnswerArrived(const absl::Status& status, Actions& actions) {
  if (status.code() == absl::StatusCode::kInternal) failure_ = status;
  for (Rank& rank : ranks_) {
    if (!rank.stepping) continue;
    rank.stepping = false;
    Answer(rank, status, actions);
  }
}

Actions JobCore::Close(absl::Time now, SessionId session, Ticket ticket) {
  Actions actions;
  uint32_t rank = 0;
  Rank* r = Find(session, &rank);
  if (r == nullptr) {
    actions.push_back(action::ReplyTo{ticket, CheckCaller(nullptr, 0)});
    return actions;
  }
  Answer(*r, absl::CancelledError("the session was closed"), actions);
  // A rank that came back and failed before it was ready has not ended the job.
  r->closed = r->stage == Stage::kReady;
  actions.push_back(action::ReplyTo{ticket, absl::OkStatus()});
  Detach(now, *r, actions);
  return actions;
}

Actions JobCore::Gone(absl::Time now, SessionId session) {
  Actions actions;
  uint32_t rank = 0;
  Rank* r = Find(session, &rank);
  if (r == nullptr) return actions;
  Answer(*r, absl::CancelledError("the worker is gone"), actions);
  Detach(now, *r, actions);
  return actions;
}

void JobCore::Detach(absl::Time now, Rank& rank, Actions& actions) {
  actions.push_back(action::DropSession{rank.session});
  rank_of_.erase(rank.session);
  rank.stage = Stage::kAbsent;
  rank.session = 0;
  rank.stepping = false;
  rank.gave_up = false;
  if (!rank_of_.empty() || follows_) return;
  const bool all_closed = AllHere([](const Rank& r) { return r.closed; });
  if (all_closed || !initialized_ || !failure_.ok()) {
    actions.push_back(action::EndJob{all_closed && initialized_ && failure_.ok()});
  } else {
    orphaned_since_ = now;
  }
}

Actions JobCore::Tick(absl::Time now) {
  Actions actions;
  // All are told who was missing before any of them stops waiting and becomes missing itself.
  std::vector<std::pair<Rank*, absl::Status>> expired;
  for (Rank& rank : ranks_) {
    if (rank.ticket != 0 && now >= rank.deadline) expired.emplace_back(&rank, Missing(rank));
  }
  for (auto& [expired_rank, status] : expired) {
    Rank& rank = *expired_rank;
    if (rank.stage == Stage::kBeginning) rank.stage = Stage::kRegistered;
    if (rank.stage == Stage::kRegistering) rank.stage = Stage::kOpen;
    rank.stepping = false;
    rank.gave_up = true;
    Answer(rank, status, actions);
  }
  if (rank_of_.empty() && now >= orphaned_since_ + options_.orphan_timeout) {
    orphaned_since_ = absl::InfiniteFuture();
    actions.push_back(action::EndJob{false});
  }
  return actions;
}

absl::Time JobCore::next_deadline() const {
  const absl::Time orphaned = rank_of_.empty() ? orphaned_since_ + options_.orphan_timeout
                                               : absl::InfiniteFuture();
  return std::min(orphaned, FirstDeadline());
}

size_t JobCore::steps_arrived() const {
  return static_cast<size_t>(
      std::count_if(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.stepping; }));
}

std::vector<uint32_t> JobCore::attached_ranks() const {
  std::vector<uint32_t> attached;
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].stage != Stage::kAbsent) attached.push_back(rank);
  }
  return attached;
}

}  // namespace dmuon::node

