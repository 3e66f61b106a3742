// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The gradients of one step on their way to their owners: summed on the node in rank order, sent, and
// summed by the owner in node order.
//
//   Open     all nodes, at the same place: what other nodes send may come from now on
//   Ahead    a bucket that all workers have submitted, while they still compute others; any number of times
//   Finish   the step is wanted: everything else
//
// A bucket is sent, and a unit summed, at most once between Open and Finish, by the same sums in the same
// order whether ahead or not.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/node/countdown.h"
#include "daemon/node/messages.h"
#include "daemon/node/owned_state.h"
#include "daemon/node/peers.h"
#include "daemon/node/slot_threads.h"
#include "daemon/node/step_report.h"
#include "daemon/node/worker_boxes.h"
#include "kernels/backend.h"

namespace dmuon::node {

class Reduction {
 public:
  // `states` of the slots; all outlive the reduction. `peers` is null on one node. Without `overlap` there
  // is no Ahead, and Finish takes its stages one after the other.
  Reduction(const v1::JobSpec& job, const v1::Plan& plan, const v1::Routes& routes, uint32_t self,
            const WorkerBoxes* workers, std::span<const std::unique_ptr<OwnedState>> states,
            kernels::Backend* backend, SlotThreads* slots, Peers* peers, bool overlap);
  ~Reduction();
  Reduction(const Reduction&) = delete;
  Reduction& operator=(const Reduction&) = delete;

  // Nothing of `step` is done.
  void Open(uint64_t step);
  // Other connections take the place of these; what is done of the step is done again there.
  void TakePeers(Peers* peers);
  // Does one bucket, if there is one to be done. How long to wait before the next call: nothing while there
  // is more to do, for ever when there is nothing left to look for.
  absl::Duration Ahead();
  // What was done ahead is not what the workers have submitted any more: one of them submitted
  // again, or came back.
  [[nodiscard]] bool outdated() const;
  // Closes what is open, for good or (StartOver) to begin anew; all nodes together. PEER_LOST as Finish.
  absl::Status GiveUp(absl::Time deadline);
  absl::Status StartOver(absl::Time deadline);
  // All sums of this node's units are there when it is OK. `collect`: from the workers. Otherwise the
  // messages hold the gradients, whatever has become of the workers, and other nodes still want them.
  // PEER_LOST: nothing is open any more.
  absl::Status Finish(bool collect, absl::Time deadline, StepReport& report);

  // Ranks whose gradient of the step that is wanted is missing, by tensor.
  using Missing = std::vector<MissingRanks>;
  [[nodiscard]] const Missing& missing() const { return missing_; }
  // On this node; then what others report.
  void FindMissing(uint64_t step);
  void AddMissing(const v1::MissingGradients& missing);
  // No gradient of this tensor is used.
  [[nodiscard]] bool skipped(uint32_t tensor) const {
    return !missing_[tensor].empty() && skip_missing_;
  }

 private:
  struct Outgoing {
    Message* message;
    const Piece* piece;
    std::vector<uint32_t> ranks;  // that have the piece
    size_t slot;                  // that sums it
  };
  struct Incoming {
    size_t slot;
    size_t unit;  // of the slot's state
    bool local;  // no other node has a part of it
  };
  struct Word {
    uint32_t tensor;
    uint32_t rank;
    auto operator<=>(const Word&) const = default;
  };
  struct Bucket {
    std::vector<Outgoing> out;
    std::vector<Incoming> in;
    std::vector<Word> needs;  // of the workers here, to be ready before it can be done ahead
    size_t ready = 0;         // of `needs`, known to be
    bool done = false;        // ahead
  };

  void Connect(uint32_t self);
  void AddNeeds(Bucket& bucket, uint32_t tensor, std::span<const uint32_t> ranks);
  [[nodiscard]] bool IsOpen() const;
  void Begin();
  [[nodiscard]] bool IsReady(Bucket& bucket) const;
  // One slot's share of what is packed, and sent once all of it is; of what is summed.
  void Pack(size_t slot, const Bucket& bucket, const Missing& missing, bool send);
  void PackPiece(const Outgoing& outgoing, const MissingRanks& missing) const;
  void SumRest(size_t slot, bool bucketwise, SlotWork& work);
  [[nodiscard]] MailExchange* mail() const { return peers_ == nullptr ? nullptr : peers_->mail(); }

  const bool skip_missing_;
  const bool overlap_;
  const WorkerBoxes* const workers_;
  const std::span<const std::unique_ptr<OwnedState>> states_;
  kernels::Backend* const backend_;
  SlotThreads* const slots_;
  Peers* peers_;
  Mail gradients_;
  std::vector<Bucket> buckets_;
  Countdown unpacked_;  // pieces, by bucket
  Missing missing_;
  const Missing none_missing_;  // of what is done ahead
  bool open_ = false;
  uint64_t step_ = 0;                                 // that is open
  std::vector<WorkerBoxes::SubmissionStamp> stamps_;  // before the first bucket was done ahead
  StepReport ahead_;                                  // what was done ahead
};

}  // namespace dmuon::node
