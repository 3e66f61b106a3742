// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Copies of a node's state in the memory of another one, its buddy. Each node sends its own state and receives its
// ward's: that of the node whose buddy it is. Of both it has two: the last one, and the one that is on its way.
//
//   Begin   all nodes, at the same place: the copy of a step is on its way from now on
//   Pack    each unit, when its state is that of the step; a bucket leaves when the last one is packed
//   End     all nodes: the copy has arrived
//
// What a copy is of is known by steps. One that is on its way takes the place of the older one, so that the last one
// stays whole until it has arrived.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/node/copy_steps.h"
#include "daemon/node/countdown.h"
#include "daemon/node/messages.h"
#include "daemon/node/owned_state.h"
#include "daemon/node/peers.h"
#include "daemon/node/slot_threads.h"
#include "dmuon/v1/peer.pb.h"
#include "dmuon/v1/plan.pb.h"
#include "dmuon/v1/tensor.pb.h"

namespace dmuon::node {

class Replicas {
 public:
  // `states` of the slots; all outlive it. Without replication it has nothing, and does nothing.
  Replicas(const v1::JobSpec& job, const v1::Plan& plan, uint32_t self,
           std::span<const std::unique_ptr<OwnedState>> states, SlotThreads* slots, Peers* peers);

  ~Replicas();
  Replicas(const Replicas&) = delete;
  Replicas& operator=(const Replicas&) = delete;

  static uint64_t BytesFor(const v1::JobSpec& job, const v1::Plan& plan, uint32_t self);

  // The same on all nodes of a job.
  [[nodiscard]] bool on() const { return on_; }
  // This node, and the one that it keeps copies for: indices into the plan's nodes. Nullopt: none, for one that owns nothing
  // and has no workers.
  [[nodiscard]] uint32_t self() const { return self_; }
  [[nodiscard]] std::optional<uint32_t> ward() const { return ward_; }
  // A step is not over before its copies have arrived.
  [[nodiscard]] bool sync() const { return on() && sync_; }
  // Whether a copy is on its way.
  [[nodiscard]] bool underway() const;

  // The copy of the state after `step`. What was on its way must have ended.
  void Begin(uint64_t step);
  // Unit `i` of `slot`, by that slot's thread; once between Begin and End. Its bucket leaves as soon as it is whole,
  // or with `send` false not before SendRest.
  void Pack(size_t slot, size_t i, bool send);
  void PackAll();
  void SendRest();
  // Until all of it has come and gone. Errors as of Peers::Close; then it has not arrived.
  absl::Status End(absl::Time deadline);
  // Begin, PackAll, End.
  absl::Status Exchange(uint64_t step, absl::Time deadline);

  // Other connections take the place of these, with what is on its way there.
  void TakePeers(Peers* peers);

  // The state after `step` is that before it.
  void Extend(uint64_t step);
  // There is no copy any more: the state has become another one, not by a step.
  void Forget();
  // What comes after `step` has not been.
  void ForgetAfter(uint64_t step);

  // What there is, into the report.
  void Describe(v1::PeerReport& report) const;
  // The state of this node's units becomes that after `step`, of its own copy. False: it has none.
  [[nodiscard]] bool GoBack(uint64_t step);
  // All nodes: those of `lost` get their state after `step` from their buddies, which have it. Errors as of Peers::Close.
  absl::Status GiveBack(const std::vector<bool>& lost, uint64_t step, absl::Time deadline);

  // Bytes of one copy of this node's state.
  [[nodiscard]] uint64_t bytes() const { return bytes_; }
  // The newest step of which the buddy is known to have a copy; nullopt: none.
  [[nodiscard]] std::optional<uint64_t> newest() const { return kept_.steps.newest(); }

 private:
  // Two of one state, by bucket.
  struct Copies {
    CopySteps steps;
    std::array<std::vector<Message>, 2> messages;
  };
  // Where a unit lies in the messages.
  struct Place {
    size_t message = 0;
    size_t offset = 0;
  };

  // Of the units of node `owner`; `peer` is whom they travel to or come from.
  static std::vector<Message> MessagesOf(const v1::JobSpec& job, const v1::Plan& plan, uint32_t owner, uint32_t peer);
  void Unpack(const std::vector<Message>& copy);
  void PutBack();

  const uint32_t self_;
  const bool on_;
  const bool sync_;
  const std::span<const std::unique_ptr<OwnedState>> states_;
  SlotThreads* const slots_;
  Peers* peers_;
  std::optional<uint32_t> ward_;
  Copies kept_;    // of this node's state
  Copies copied_;  // of its ward's
  std::vector<std::vector<Place>> places_;  // by slot and unit
  Countdown unpacked_;                      // units, by bucket
  uint64_t bytes_ = 0;

  std::optional<size_t> sending_;  // of kept_; nullopt: nothing is on its way
  size_t receiving_ = 0;           // of copied_
  uint64_t step_ = 0;  // what they will be of
  Mail mail_;          // their messages, meanwhile
};

}  // namespace dmuon::node
