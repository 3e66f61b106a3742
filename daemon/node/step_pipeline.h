// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The step of one job on this node: the file to read first.
//
//   assemble   all nodes: the same step, everything submitted          (one report each)
//   collect    sums on the node, in rank order
//   reduce     pieces to their owners; sums in node order; a verdict over the whole gradient
//   update     orthogonalize, apply: only now does state change
//   publish    new values to the nodes that want them; deliver to the workers
//   conclude   all nodes: done                                         (one report each)
//
// On one node there is nobody to report to and nothing to move. The stages are a serial course of events;
// with `overlap` a bucket of gradients leaves while the next is summed, or computed (Ahead), and new values
// leave, arrive and are marked as delivered while others are still being orthogonalized. The bits are the
// same.
//
// When all nodes have a successor of their plan they hand their state over to its owners before the next step (step_handover.cc),
// and another pipeline goes on from there.
//
// With replication a step's state travels to another node as well (replicas.h), and a node whose process has lost its
// state gets it back from there, at the same meeting (recovery.h).
//
// A node's state is at a number: 1
// with the initial parameters, k + 1 after step k. No node goes beyond `conclude` before all are
// there, so a step that failed half-way is taken up where each node is: who has applied it does not
// apply it again, and publishes again.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/checkpoint/image.h"
#include "daemon/node/array_transfers.h"
#include "daemon/node/countdown.h"
#include "daemon/node/mail_exchange.h"
#include "daemon/node/memory_budget.h"
#include "daemon/node/messages.h"
#include "daemon/node/owned_state.h"
#include "daemon/node/peers.h"
#include "daemon/node/reduction.h"
#include "daemon/node/replicas.h"
#include "daemon/node/restore_meeting.h"
#include "daemon/node/restore_source.h"
#include "daemon/node/restored_units.h"
#include "daemon/node/round.h"
#include "daemon/node/saved_job.h"
#include "daemon/node/slot_threads.h"
#include "daemon/node/step_report.h"
#include "daemon/node/successor.h"
#include "daemon/node/worker_boxes.h"
#include "dmuon/v1/peer.pb.h"
#include "kernels/backend.h"

namespace dmuon::node {

class StepPipeline {
 public:
  // `job`, `plan`, `workers` and `peers` must outlive the pipeline; `peers` is null on one node. One
  // OwnedState a slot of node `self`.
  StepPipeline(const v1::JobSpec& job, const v1::Plan& plan, const v1::Routes& routes,
               uint32_t self, const WorkerBoxes* workers, kernels::Backend* backend,
               SlotThreads* slots, Peers* peers, bool overlap);

  // All of state, staging and messages of such a pipeline.
  static uint64_t BytesFor(const v1::JobSpec& job, const v1::Plan& plan, const v1::Routes& routes,
                           uint32_t self);

  // Masters from the workers' initial parameters. INVALID_ARGUMENT names a tensor that is not finite. `resume`: the
  // workers count on state; with replication it comes from another node, also where the others have gone on. STATE_LOST
  // when it cannot.
  absl::Status Initialize(absl::Time deadline, bool resume);

  // FAILED_PRECONDITION: a gradient is missing; nothing changed. PEER_LOST (ABORTED or
  // DEADLINE_EXCEEDED): another node; call again. INTERNAL: the state is broken.
  // STATE_LOST: a node is lost, and the state with it. ROLLED_BACK: all nodes have gone back, to reached_step().
  // OK: applied or skipped, on all nodes, and delivered to all attached workers of this one.
  // With `save` all nodes' reports name that checkpoint, to be made after the step.
  absl::Status Run(uint64_t step, const StepSettings& settings, absl::Time deadline,
                   StepReport& report, const std::string& save = {});

  // Between steps: collects, and sends, a bucket of the next step's gradients if all workers have submitted
  // theirs. How long to wait before the next call: nothing while there is more to do, for ever when there is
  // nothing left to look for.
  absl::Duration Ahead() { return reduction_.Ahead(); }

  // Takes part in a round for what this node has reached, so that another node that has not can.
  // Errors as of Run.
  absl::Status Help(absl::Time deadline);

  // On a node without workers of the job, which has no wishes of its own. Waits for as long as it takes until the others
  // want something of it that has gone to `step`, or has yet to load (0); connects first, for as long as `patience`. Their
  // reports go to Follow. Errors as of Run, and ABORTED after Peers::Interrupt.
  absl::StatusOr<Reports> AwaitOthers(uint64_t step, absl::Duration patience);
  // Does the one thing that they want next; `report.reached` tells whether that was `step`. Not a restore, which is called for
  // when RestoreToFollow names it. Errors as of Run.
  absl::Status Follow(Reports reports, uint64_t step, absl::Time deadline, StepReport& report);
  // For such nodes: workers of this one have called for a checkpoint of the state after `step`. They hear of it at the next
  // meeting, before it leads to another state.
  void CallForSave(const std::string& name, uint64_t step);
  // Whether they have yet to.
  [[nodiscard]] bool has_untold_saves() const { return untold_saves_; }

  // True when the state has gone beyond `step` but not every node is known to have: Run the next step
  // again, which needs no worker's gradient any more, before anybody is told of this state.
  [[nodiscard]] bool IsAheadOf(uint64_t step) const;

  // Between steps: a copy of the state, of state_bytes(), as this node's part of a checkpoint. RESOURCE_EXHAUSTED when
  // the kernel has no memory.
  [[nodiscard]] absl::StatusOr<checkpoint::Image> Copy();
  // The same in an image that `make` makes.
  using MakeImage = std::function<absl::StatusOr<checkpoint::Image>(std::vector<checkpoint::Entry> entries)>;
  [[nodiscard]] absl::StatusOr<checkpoint::Image> CopyInto(const MakeImage& make);
  struct Restored {
    std::string id;  // of the contents
    uint64_t step = 0;
    uint64_t fetched_bytes = 0;  // that came from other nodes
  };
  // Replaces the state by what `source` and those of the other nodes have together, on all nodes or on none, and publishes
  // it. All nodes must restore the same. Takes the memory for it from `budget` until it is done. After PEER_LOST some nodes
  // may have done it: nothing runs before it has been repeated. Other errors: nothing changed.
  // `wanted` is what nodes without workers are to restore, as RestoreToFollow gives it to them.
  absl::StatusOr<Restored> Restore(const RestoreSource& source, const std::string& wanted, MemoryBudget& budget, absl::Time deadline);

  // Whether there is any yet.
  [[nodiscard]] bool has_state() const { return reached_ > 0; }
  // The step that the state is of, between steps.
  [[nodiscard]] uint64_t reached_step() const { return reached_ - kLoaded; }

  // A plan that all nodes go over to when all have it, in Initialize, Run or Help; null: none.
  void Succeed(std::shared_ptr<const Successor> successor) { successor_ = std::move(successor); }
  [[nodiscard]] const Successor* successor() const { return successor_.get(); }
  // What goes on in this one's place, with the memory that it takes; no successor: nothing. Its plan is the
  // successor's, which must outlive it. Whatever was called for meanwhile is to be called for again, there.
  struct Heir {  // without a pipeline: this one goes on, with the successor's nodes
    std::shared_ptr<const Successor> successor;
    std::unique_ptr<StepPipeline> pipeline;
    MemoryBudget::Share share;
  };
  [[nodiscard]] Heir TakeHeir();
  // Who asks knows that other nodes have gone over. So does this one: with what it has made for that, or, as a process that came
  // back too late to take part, with nothing, to get its state there.
  void ConfirmHandover();
  // The plan differs in nodes only (plan::OnlyNodesDiffer). It and the connections to them outlive the pipeline.
  void TakeNodes(const v1::Plan& plan, Peers* peers);
  // Why all nodes have stayed with their plan instead; OK: they have not.
  [[nodiscard]] absl::Status TakeHandoverFailure() { return std::exchange(handover_failure_, absl::OkStatus()); }

  // The current parameters to one worker, as of `step`.
  void Deliver(uint64_t step, uint32_t rank);

  [[nodiscard]] uint64_t state_bytes() const { return state_bytes_; }
  [[nodiscard]] const Replicas& replicas() const { return replicas_; }
  // Whether a recovery since the last call has undone something of this node.
  [[nodiscard]] bool TakeWentBack() { return std::exchange(went_back_, false); }
  // What the gradients of the last step said.
  [[nodiscard]] Verdict verdict() const { return Conclude(*job_, verdict_); }
  // A recovery has been begun and is not known to have ended on all nodes: the parameters here may be of two states. Help
  // first.
  [[nodiscard]] bool recovering() const { return recovering_; }
  // Recoveries of the job so far.
  [[nodiscard]] uint64_t recoveries() const { return recoveries_; }
  // Whether this node, which owns nothing, began anew and was given the parameters by the others, of step 0 perhaps.
  [[nodiscard]] bool readmitted() const { return readmitted_; }
  [[nodiscard]] uint64_t matrix_units() const { return matrix_units_; }
  [[nodiscard]] uint64_t elementwise_units() const { return elementwise_units_; }
  // Read between steps only.
  [[nodiscard]] const OwnedState& slot_state(size_t slot) const { return *states_[slot]; }

 private:
  using Until = std::function<absl::Time()>;  // the deadline of what comes next

  void Connect();  // the units to the messages
  // Whether all nodes have gone to another state together because one had lost its own.
  absl::StatusOr<bool> MakeWhole(Reports& reports, absl::Time deadline, StepReport& report);
  // Without `settings` no step is taken: what has been reached is made sure of.
  absl::Status Reach(uint64_t target, const StepSettings* settings, const std::string& save, absl::Time deadline,
                     StepReport& report);
  absl::Status Round(uint64_t target, const Reports& reports, const StepSettings& settings,
                     absl::Time deadline, StepReport& report);
  absl::Status Load(absl::Time deadline);
  absl::Status Advance(uint64_t target, const Reports& reports, const StepSettings& settings,
                       absl::Time deadline, StepReport& report);
  absl::Status Publish(uint64_t target, const StepSettings& settings, absl::Time deadline,
                       StepReport& report);

  absl::StatusOr<Reports> Assemble(const v1::PeerReport& mine, absl::Time deadline) { return Assemble(mine, deadline, deadline); }
  // Connected by the one deadline, with all reports by the other.
  absl::StatusOr<Reports> Assemble(const v1::PeerReport& mine, absl::Time connected, absl::Time deadline);
  absl::StatusOr<Reports> Tell(const v1::PeerReport& mine, absl::Time deadline);
  MailExchange* Open(Mail& mail, absl::Time deadline);
  absl::Status Close();
  absl::Status CheckRestoring() const;
  absl::StatusOr<Reports> MeetToRestore(const v1::PeerReport& mine, absl::Time deadline);
  absl::StatusOr<uint64_t> Fetch(const SavedJob& saved, const std::vector<ArrayTransfer>& transfers,
                                 const RestoreMeeting::Tell& tell, RestoredUnits& units, const Until& until);
  absl::Status PublishAll(absl::Time deadline);
  RestoreMeeting::Tell TellerOf(v1::PeerReport& mine, Until until);
  // What `met` has for the units of `states`, which are `plan`'s; on all nodes or on none.
  struct Gathered {
    uint64_t fetched_bytes = 0;  // that came from other nodes
    std::unique_ptr<SavedJob> saved;
    MemoryBudget::Share share;
    std::unique_ptr<RestoredUnits> units;
  };
  absl::StatusOr<Gathered> Gather(RestoreMeeting::Sources met, const std::string& name, const v1::Plan& plan,
                                  const RestoredUnits::States& states, MemoryBudget& budget,
                                  const RestoreMeeting::Tell& tell, const Until& until);
  absl::Status HandOver(absl::Time deadline);
  // With units that hold nothing yet, and the memory for them.
  absl::StatusOr<Heir> EmptyHeir() const;
  absl::Status MakeHeir(const Until& until);
  absl::Status Readmit(const Reports& reports, absl::Time deadline);
  absl::Status Settle(absl::Time deadline);
  absl::Status Recover(const Reports& reports, absl::Time deadline);
  absl::Status GoBack(uint64_t step);
  v1::PeerReport ReportOf(uint64_t target) const;
  v1::PeerReport ReportOf(uint64_t target, const StepSettings* settings, const std::string& save) const;

  void CopyParameters(const Piece& piece, Message& message) const;
  absl::Status LoadUnits();
  v1::StepVerdict Judge(const StepSettings& settings) const;
  // One slot's units; `early`: sent and marked as they are done.
  void Update(size_t slot, const StepSettings& settings, double clip, uint64_t step, bool early,
              MailExchange* mail, SlotWork& work);
  void DeliverAsTheyArrive(MailExchange& mail, uint64_t step);
  void DeliverArrivals(int64_t only_rank);
  void DeliverArrival(const Piece& piece, const Message& message, int64_t only_rank) const;

  const v1::JobSpec* const job_;
  const v1::Plan* plan_;
  const uint32_t self_;
  const WorkerBoxes* const workers_;
  kernels::Backend* const backend_;
  SlotThreads* const slots_;
  Peers* peers_;
  const bool overlap_;
  Mail loads_;
  Mail publications_;
  std::vector<std::unique_ptr<OwnedState>> states_;  // by slot
  Reduction reduction_;
  Replicas replicas_;
  Countdown unpublished_;  // units that other nodes want, by bucket
  Countdown undelivered_;  // units of this node and arriving pieces, by tensor
  uint64_t reached_ = 0;     // where the state is
  bool resume_ = false;      // the workers say that it was further
  uint64_t recoveries_ = 0;  // begun
  bool recovering_ = false;  // not all nodes are known to have ended the last one
  bool went_back_ = false;
  bool readmitted_ = false;
  v1::StepVerdict verdict_;  // of what it reached, or failed to
  v1::StepSettings settings_;  // of the last step that workers have called for
  std::vector<v1::CalledSave> saves_;  // of the state that is reached
  bool untold_saves_ = false;
  absl::Status failure_;     // the state is broken
  std::shared_ptr<const Successor> successor_;
  Heir heir_;                             // complete, beside this one
  bool is_over_ = false;                  // the nodes have gone over to it
  absl::Status handover_failure_;
  std::shared_ptr<checkpoint::Image::Memory> copy_memory_;  // of the last copy, for the next one
  bool restoring_ = false;   // this node has been restored, and not all nodes are known to have been
  uint64_t matrix_units_ = 0;
  uint64_t elementwise_units_ = 0;
  uint64_t state_bytes_ = 0;
};

}  // namespace dmuon::node
