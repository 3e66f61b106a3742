// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What a node decides about one job: who is attached, when a plan is needed, when parameters may be
// loaded, when a step may run, who must be answered what. A pure core: no I/O, no clock, no lock,
// no thread. Inputs carry the time; the answer is a list of actions, carried out in order by the
// shell (job.h).
//
// A rank goes absent -> open -> registered -> ready, and back to absent when its worker closes or
// dies. A step runs when every rank of this node is ready and has asked for it; which ranks these are
// the plan says. Requests that wait hold a
// ticket; each ticket gets exactly one reply, at the latest at its deadline, and a reply that is
// not OK means that nothing changed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace dmuon::node {

using Ticket = uint64_t;
using SessionId = uint64_t;

// Actions. The shell answers GiveArena with `ArenaGiven`, Initialize with `Initialized`, RunStep with
// `StepDone` and Restore with `Restored`, before it feeds any other input.
namespace action {
struct ReplyTo {
  Ticket ticket = 0;
  absl::Status status;
};
struct SendRegistration {  // to the coordinator
  SessionId session = 0;
};
struct GiveArena {  // allocate, map, pass the descriptor
  SessionId session = 0;
};
struct Initialize {  // masters from the workers' arenas
  absl::Time deadline;  // of the first request that waits for it
  bool resume = false;  // workers count on state, which other nodes have copies of
};
struct Deliver {       // current parameters into one worker's arena
  SessionId session = 0;
};
struct RunStep {
  uint64_t step = 0;
  absl::Time deadline;  // of the first request that waits for it
};
struct Restore {
  std::string name;     // of a checkpoint, or of a state that workers bring
  absl::Time deadline;  // of the first request that waits for it
};
struct DropSession {  // its arena and channel
  SessionId session = 0;
};
struct EndJob {  // release state and plan; the job object goes away
  bool in_order = false;  // all workers have closed
};
}  // namespace action
using Action = std::variant<action::ReplyTo, action::SendRegistration, action::GiveArena,
                            action::Initialize, action::Deliver, action::RunStep, action::Restore,
                            action::DropSession, action::EndJob>;
using Actions = std::vector<Action>;

struct JobCoreOptions {
  std::string job_id;
  uint32_t world_size = 1;
  // How long the workers that have arrived at a step, a registration or a Begin wait for the others.
  // Longer rides out slow restarts; a lost peer is reported later.
  absl::Duration peer_timeout = absl::Seconds(60);
  // How long state is kept while no worker is attached.
  absl::Duration orphan_timeout = absl::Hours(1);
};

// What is restored has a name: a checkpoint's own, or, for a state that workers bring, one that no checkpoint has.
std::string NameOfBrought(const std::string& digest);
// Its digest; empty: `name` is a checkpoint's.
std::string DigestOfBrought(const std::string& name);
// "checkpoint 'best'", "what workers have brought (3fa9...)".
std::string Restorable(const std::string& name);

class JobCore {
 public:
  explicit JobCore(JobCoreOptions options);

  // ALREADY_EXISTS/RANK_TAKEN when a session holds the rank. `session` is new and never reused.
  absl::Status Open(absl::Time now, uint32_t rank, SessionId session);

  // `digest` stands for the content of the registration; a rank that returns to a planned job must
  // bring the same one.
  Actions Register(absl::Time now, SessionId session, Ticket ticket, absl::Time deadline,
                   const std::string& digest);
  // The coordinator's answer to one registration: it counts from now on, or is refused.
  Actions RegistrationAnswered(absl::Time now, SessionId session, const absl::Status& status);
  // The plan is adopted: owned state is built. Its generation is what workers name while the job lives: they do not notice
  // when the nodes go over to other owners. `ranks`: those of this node; the others do not concern it from now on.
  // `can_come_back`: the job goes on where this node's process begins anew, because other nodes have copies of its state, or
  // it owns nothing. No ranks: the node follows the others.
  Actions PlanArrived(absl::Time now, uint64_t generation, const std::vector<uint32_t>& ranks, bool can_come_back = false);
  // The registrations of these ranks are forgotten.
  Actions PlanRefused(absl::Time now, const std::vector<uint32_t>& ranks,
                      const absl::Status& status);
  Actions ArenaGiven(absl::Time now, SessionId session, const absl::Status& status);

  // `must_resume`: the worker counts on state; DATA_LOSS/STATE_LOST when the job has none, here or elsewhere.
  Actions Begin(absl::Time now, SessionId session, Ticket ticket, absl::Time deadline,
                uint64_t generation, bool must_resume);
  // OK: the state is of `last_step`.
  Actions Initialized(absl::Time now, const absl::Status& status, uint64_t last_step = 0);
  // The state is gone, on this node or on another one: the job is over, and all who wait are told.
  Actions Lost(absl::Time now, const absl::Status& why);
  // All nodes have gone back to the state of `last_step`; `why` is for those who want to go on from a later one.
  Actions WentBack(absl::Time now, uint64_t last_step, const absl::Status& why);

  // `hypers` stands for the hyper-parameters; all ranks must bring the same.
  Actions Step(absl::Time now, SessionId session, Ticket ticket, absl::Time deadline,
               uint64_t generation, uint64_t step, const std::string& hypers);
  // OK: the step was applied or skipped as a whole. INTERNAL: state is broken, the job answers with
  // this status from now on. Anything else: nothing changed, the step may be sent again.
  Actions StepDone(absl::Time now, const absl::Status& status);

  // As Step, for a checkpoint, or what workers bring, to take the state's place; all ranks must name the same one.
  Actions Restore(absl::Time now, SessionId session, Ticket ticket, absl::Time deadline, uint64_t generation,
                  const std::string& name);
  // OK: the state is now of `last_step`, whatever it was before. Anything else: as of StepDone.
  Actions Restored(absl::Time now, const absl::Status& status, uint64_t last_step);

  // OK when the caller may ask for something between two steps.
  [[nodiscard]] absl::Status CheckReady(SessionId session, uint64_t generation) const;

  Actions Close(absl::Time now, SessionId session, Ticket ticket);
  // The worker died: nothing it asked for is answered, the others wait for its return.
  Actions Gone(absl::Time now, SessionId session);
  // Answers what has waited too long.
  Actions Tick(absl::Time now);

  // When Tick has something to do; infinite future when never.
  [[nodiscard]] absl::Time next_deadline() const;
  [[nodiscard]] uint64_t generation() const { return generation_; }
  [[nodiscard]] uint64_t last_step() const { return last_step_; }
  [[nodiscard]] bool initialized() const { return initialized_; }
  // Ranks that wait in the next step.
  [[nodiscard]] size_t steps_arrived() const;
  [[nodiscard]] std::vector<uint32_t> attached_ranks() const;
  // In words: "step 12, waiting for ranks 1, 3".
  [[nodiscard]] std::string Describe() const;

 private:
  enum class Stage : uint8_t { kAbsent, kOpen, kRegistering, kRegistered, kBeginning, kReady };
  struct Rank {
    bool here = true;  // as far as this node knows
    Stage stage = Stage::kAbsent;
    SessionId session = 0;
    std::string offered;     // digest of its last registration
    std::string digest;      // of its last accepted registration; kept while absent
    bool closed = false;     // left in order
    bool resume = false;     // counts on state
    Ticket ticket = 0;       // of the request that waits; 0: none
    absl::Time deadline;     // of that request
    bool gave_up = false;    // waited in vain and has not called again
    bool stepping = false;   // has arrived at step last_step_ + 1, or at Restore instead
    std::string hypers;
    std::string restore;     // name of what to restore; empty: a step
  };

  Rank* Find(SessionId session, uint32_t* rank);
  [[nodiscard]] const Rank* Find(SessionId session) const;
  absl::Status CheckOffer(uint32_t rank) const;
  absl::Status CheckCaller(const Rank* rank, uint64_t generation) const;
  void Wait(Rank& rank, absl::Time now, Ticket ticket, absl::Time deadline);
  void Answer(Rank& rank, const absl::Status& status, Actions& actions);
  void Detach(absl::Time now, Rank& rank, Actions& actions);
  template <typename Condition>
  [[nodiscard]] bool AllHere(const Condition& condition) const;
  [[nodiscard]] absl::Time FirstDeadline() const;
  void MaybeInitialize(Actions& actions);
  // Of a rank that is ready: its step, or what it restores.
  void Arrive(Rank& rank, absl::Time now, Ticket ticket, absl::Time deadline, Actions& actions);
  void MaybeRunStep(Actions& actions);
  void AnswerArrived(const absl::Status& status, Actions& actions);
  absl::Status CompareArrivals() const;
  absl::Status Missing(const Rank& waiting) const;
  std::string Others(Stage at_least, bool stepping) const;

  const JobCoreOptions options_;
  std::vector<Rank> ranks_;  // by rank
  std::map<SessionId, uint32_t> rank_of_;
  uint64_t generation_ = 0;
  uint64_t last_step_ = 0;
  bool initialized_ = false;
  bool can_come_back_ = false;
  bool follows_ = false;  // none of the ranks is here
  uint64_t undone_ = 0;   // steps up to this one were done, and have been undone
  absl::Status why_undone_;
  absl::Time orphaned_since_ = absl::InfiniteFuture();
  absl::Status failure_;
};

}  // namespace dmuon::node
