// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// `dmuond`: sessions and jobs of one node, and its link to the coordinator; a model of daemon/node/engine.cc. All of it
// is lost in a crash.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/sim/cluster.h"
#include "tests/sim/coordinator_process.h"
#include "tests/sim/node_job.h"
#include "tests/sim/node_link.h"

namespace dmuon::sim {

class NodeProcess {
 public:
  NodeProcess(Cluster* cluster, std::string name);

  void Start();
  // `silent`: the host goes, too, and nobody is told that its connections have ended.
  void Crash(bool silent);

  // In this process. `budget`: what is left of the caller's deadline.
  void Open(const v1::OpenRequest& request, const Reply<node::SessionId>& reply);
  void Register(node::SessionId session, absl::Duration budget, const v1::RegisterWorkerRequest& request,
                const Reply<Registered>& reply);
  void Begin(absl::Duration budget, const v1::BeginRequest& request, const Reply<v1::BeginResponse>& reply);
  void Step(absl::Duration budget, const v1::StepRequest& request, const Reply<v1::StepResponse>& reply);
  void Close(node::SessionId session, const Reply<Nothing>& reply);
  void Hello(node::SessionId session);
  void ChannelGone(node::SessionId session);

  // As a network that resets connections between nodes.
  void BreakConnections();
  // What dead clients have left, in words; empty: nothing.
  [[nodiscard]] std::string Leftovers() const;
  [[nodiscard]] std::string Describe() const;

  Process process;

 private:
  struct Entry {
    std::shared_ptr<Session> session;
    std::shared_ptr<NodeJob> job;
  };
  std::shared_ptr<NodeJob> JobFor(const v1::OpenRequest& request);
  std::shared_ptr<NodeJob> JobOf(node::SessionId session) const;
  v1::JoinRequest JoinReport();
  void OnPlanEvent(const v1::WatchPlansResponse& event);
  void OnJobEnd(const std::string& job_id);
  void OnSessionDropped(node::SessionId session);
  void JanitorLater();
  void ReleaseLater(std::shared_ptr<NodeJob> job);

  Cluster* const cluster_;
  v1::NodeIdentity identity_;
  uint64_t registrations_ = 0;
  uint64_t highest_generation_ = 0;
  std::map<node::SessionId, Entry> sessions_;
  std::map<std::string, std::shared_ptr<NodeJob>> jobs_;
  std::unique_ptr<NodeLink> link_;
};

}  // namespace dmuon::sim
