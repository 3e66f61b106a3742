// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The other nodes of a job: connects to them, and again after every failure, and moves reports and
// messages. All nodes make the same calls in the same order.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/base/coordinator_link.h"
#include "daemon/node/mail_exchange.h"
#include "daemon/node/messages.h"
#include "daemon/transport/key_value_store.h"
#include "daemon/transport/transport.h"
#include "dmuon/v1/peer.pb.h"
#include "wire/mutex.h"

namespace dmuon::node {

// Makes the connections of a mesh, leaving and finding addresses in the store.
using ConnectPeers = std::function<absl::StatusOr<std::unique_ptr<transport::Transport>>(
    const transport::Mesh& mesh, transport::KeyValueStore& store, absl::Time deadline)>;

// One thread, but for Cancel. Deadlines are of MonotonicNow()'s clock. Errors have the reason PEER_LOST and name a
// peer: DEADLINE_EXCEEDED when it does not answer, ABORTED when it is gone. Then the connections
// of all nodes are closed, and the round is over.
class Peers {
 public:
  Peers(const v1::Plan& plan, uint32_t self, CoordinatorLink* link, ConnectPeers connect);

  // Connects, unless connected: at the beginning of every round, so that all nodes meet at the same
  // place of it. Nothing else connects.
  absl::Status Connect(absl::Time deadline);
  // Another node calls to `attempt`: the connections are given up unless they are of it, or of a later
  // one. True when they were; then Connect meets the others.
  bool Leave(uint64_t attempt);
  // Gives `mine` to all others, and gets theirs: by node, mine among them.
  absl::StatusOr<std::vector<v1::PeerReport>> Tell(const v1::PeerReport& mine,
                                                   absl::Time deadline);
  // Sends and receives messages, at most one a node and direction, beside an open mail; all nodes at once, and both ends
  // know the sizes.
  absl::Status Move(std::vector<transport::Outgoing> out, std::vector<transport::Incoming> in, absl::Time deadline);
  // Sends and receives the messages of `mail`, one mail at a time, until Close. Reports may be exchanged in
  // between. A connection that breaks takes the open mail with it.
  void Open(Mail& mail);
  [[nodiscard]] MailExchange* mail() const { return mail_.get(); }  // null: none is open
  absl::Status Close();
  // A second one beside it, for copies of state.
  void OpenCopies(Mail& mail);
  [[nodiscard]] MailExchange* copies() const { return copies_.get(); }
  absl::Status CloseCopies();
  // Closes the connections, and what is open.
  void Drop();

  // What is connected stays; all nodes at once. New connections are of the successor of the plan, over the same nodes.
  void GoOver(uint64_t generation) { generation_ = generation; }
  // The coordinator does not know the job: it hears again of what this node holds, and knows it then or says that it is over.
  void ReportAgain() { link_->Rejoin(); }

  // Closes the connections; new ones are of this plan, in which other nodes have taken some places.
  void TakeNodes(const v1::Plan& plan);

  // Any thread: ends the call in progress, and all later ones, with UNAVAILABLE/DRAINING.
  void Cancel();
  // Any thread: breaks the connections, unless they are of `attempt` or a later one, so that a call in progress ends with
  // ABORTED.
  void Interrupt(uint64_t attempt);

  // What has crossed the wire in both directions since this was asked last, reports included.
  struct Traffic {
    std::vector<transport::Traffic::Peer> peers;  // by node; the own entry stays zero
    uint64_t broken = 0;                          // connections of all nodes that were given up
    std::string transport;                        // "gloo"; empty before the first connection
    std::vector<MailExchange::Arrival> arrivals;  // of whole exchanges
  };
  Traffic TakeTraffic();

  [[nodiscard]] bool connected() const { return transport_ != nullptr; }
  [[nodiscard]] const std::string& name(uint32_t node) const { return mesh_.nodes[node]; }

 private:
  absl::Status TellRest(const std::string& mine, std::vector<std::string>& theirs,
                        absl::Time deadline);
  absl::Status Exchange(transport::Batch batch, absl::Time deadline);
  std::unique_ptr<MailExchange> OpenMail(Mail& mail);
  absl::Status CloseMail(std::unique_ptr<MailExchange>& mail);
  absl::Status Broken(const absl::Status& status);
  bool Cancelled();
  void CountTraffic();
  v1::Meeting Meeting(uint64_t attempt) const;

  const std::string job_id_;
  uint64_t generation_;
  const uint32_t buckets_;
  const uint32_t self_;
  CoordinatorLink* const link_;
  const ConnectPeers connect_;
  transport::Mesh mesh_;
  std::unique_ptr<transport::Transport> transport_;  // changed under mu_, which Cancel takes
  std::unique_ptr<MailExchange> mail_;               // goes before transport_
  std::unique_ptr<MailExchange> copies_;             // likewise
  std::atomic<uint64_t> attempt_ = 0;  // of transport_, or of the last one
  uint64_t next_tag_ = 0;  // the same on all nodes
  Traffic traffic_;        // not yet taken
  transport::Traffic counted_;  // of transport_, in traffic_ or taken
  wire::Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace dmuon::node
