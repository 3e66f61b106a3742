// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A node's way to the other nodes of a job: a model of daemon/node/peers.cc over a model of a transport. Connections
// are made in attempts at the real meeting point, break for good, and deliver by tag and sender.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/node/round.h"
#include "dmuon/v1/coordinator.pb.h"
#include "dmuon/v1/plan.pb.h"
#include "tests/sim/cluster.h"
#include "tests/sim/task.h"

namespace dmuon::sim {

class NodeLink;

// One node's end of the connections of one attempt.
class Mesh {
 public:
  Mesh(Cluster* cluster, Process* process, const v1::Plan* plan, uint32_t self);
  ~Mesh();  // closes: the others see it, unless a partition keeps them from that
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  // Meets the others under the attempt's keys.
  Task<absl::Status> Connect(NodeLink* link, v1::Meeting meeting, absl::Time until);
  void Send(uint32_t node, uint64_t tag, std::string bytes);
  // From the nodes of `from`, by node. ABORTED when one is gone, DEADLINE_EXCEEDED when one has sent nothing.
  // `kind` is its first character: all nodes must mean the same by a tag.
  Task<absl::Status> Receive(uint64_t tag, char kind, std::vector<bool> from, absl::Time until,
                             std::vector<std::string>* messages);
  // As a network that resets all connections.
  void Break();

 private:
  struct End;  // what stays of it for messages on their way

  Cluster* const cluster_;
  Process* const process_;
  const v1::Plan* const plan_;
  const uint32_t self_;
  std::shared_ptr<End> end_;
};

class Peers {
 public:
  Peers(Cluster* cluster, Process* process, NodeLink* link, const v1::Plan* plan, uint32_t self);

  // Each as its namesake in daemon/node/peers.h.
  Task<absl::Status> Connect(absl::Time until);
  bool Leave(uint64_t attempt);
  Task<absl::StatusOr<node::Reports>> Tell(v1::PeerReport mine, absl::Time until);
  // A mail of one message to each other node. Its tag is taken when it is opened, its content given with Close.
  void Open();
  [[nodiscard]] bool is_open() const { return mail_ != 0; }
  Task<absl::Status> Close(char kind, std::vector<std::string> out, absl::Time until, std::vector<std::string>* in);
  // A second one beside it, for copies of state: to and from some nodes only.
  void OpenCopies();
  [[nodiscard]] bool copies_are_open() const { return copies_ != 0; }
  void SendCopy(char kind, uint32_t node, const std::string& bytes);
  Task<absl::Status> CloseCopies(char kind, std::vector<bool> from, absl::Time until, std::vector<std::string>* in);
  void Drop();
  // Ends the meeting in progress, and all later ones.
  void Cancel();
  [[nodiscard]] bool connected() const { return mesh_ != nullptr; }
  void Break() {
    if (mesh_ != nullptr) mesh_->Break();
  }

 private:
  absl::Status Broken(const absl::Status& status);
  [[nodiscard]] v1::Meeting Meeting() const;
  [[nodiscard]] std::vector<bool> Others() const;

  Cluster* const cluster_;
  Process* const process_;
  NodeLink* const link_;
  const v1::Plan* const plan_;
  const uint32_t self_;
  std::unique_ptr<Mesh> mesh_;
  uint64_t mail_ = 0;  // 1 + tag of the open one; 0: none
  uint64_t copies_ = 0;  // likewise
  uint64_t attempt_ = 0;
  bool cancelled_ = false;
  uint64_t next_tag_ = 0;
};

}  // namespace dmuon::sim
