// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// One job on one node: the real core in a model of its shell (daemon/node/job.cc, job_plan.cc). The job's thread is a
// task: what it does takes time, and its inputs wait meanwhile. Functions are named as those that they mirror.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/node/job_core.h"
#include "dmuon/v1/coordinator.pb.h"
#include "dmuon/v1/node.pb.h"
#include "tests/sim/cluster.h"
#include "tests/sim/coordinator_process.h"
#include "tests/sim/lane.h"
#include "tests/sim/node_link.h"
#include "tests/sim/pipeline.h"
#include "tests/sim/task.h"
#include "tests/sim/training.h"

namespace dmuon::sim {

struct Session {
  node::SessionId id = 0;
  uint32_t rank = 0;
  std::string incarnation;
  bool connected = false;  // its arena channel
  absl::Time opened;
  std::shared_ptr<Arena> arena;
};

struct Registered {
  uint64_t generation = 0;
  std::shared_ptr<Arena> arena;
};

class NodeJob {
 public:
  struct Environment {
    v1::NodeIdentity node;
    Process* process = nullptr;
    NodeLink* link = nullptr;
    uint64_t* registrations = nullptr;
    std::function<void(const std::string& job_id)> on_end;
    std::function<void(node::SessionId)> on_session_dropped;
  };
  NodeJob(Cluster* cluster, node::JobCoreOptions options, Environment environment);
  ~NodeJob();
  NodeJob(const NodeJob&) = delete;
  NodeJob& operator=(const NodeJob&) = delete;

  // Each posts an input. `until`: when to answer at the latest.
  void Open(std::shared_ptr<Session> session, Reply<node::SessionId> reply);
  void Register(node::SessionId session, absl::Time until, v1::RegisterWorkerRequest request, Reply<Registered> reply);
  void Begin(absl::Time until, v1::BeginRequest request, Reply<v1::BeginResponse> reply);
  void Step(absl::Time until, v1::StepRequest request, Reply<v1::StepResponse> reply);
  void Close(node::SessionId session, Reply<Nothing> reply);
  void Gone(node::SessionId session);
  void OnPlanEvent(v1::WatchPlansResponse event);
  void RegisterAnew();

  [[nodiscard]] const v1::HeldJob* Held();  // null before there is a plan
  [[nodiscard]] std::string Describe() const { return core_.Describe(); }
  void BreakConnections() {
    if (peers_ != nullptr) peers_->Break();
  }

 private:
  using ReplyAny = std::function<void(const absl::Status&)>;
  struct Input {
    std::function<Task<void>()> run;
    ReplyAny refuse;  // when it is never run
  };

  void Post(std::function<Task<void>()> run, ReplyAny refuse);
  Task<void> Loop();
  [[nodiscard]] absl::Time NextLook() const;
  node::Ticket Await(ReplyAny reply);
  Task<void> CarryOut(node::Actions actions);
  Task<void> CarryOutOne(node::Action action);

  Task<void> DoOpen(std::shared_ptr<Session> session, Reply<node::SessionId> reply);
  Task<void> DoRegister(node::SessionId session, absl::Time until, v1::RegisterWorkerRequest request,
                        Reply<Registered> reply);
  Task<void> DoBegin(absl::Time until, v1::BeginRequest request, Reply<v1::BeginResponse> reply);
  Task<void> DoStep(absl::Time until, v1::StepRequest request, Reply<v1::StepResponse> reply);
  Task<void> DoClose(node::SessionId session, Reply<Nothing> reply);
  Task<void> DoGone(node::SessionId session);
  Task<void> DoPlanEvent(v1::WatchPlansResponse event);

  // job_handover.cc.
  Task<void> OnSuccessor(v1::WatchPlansResponse event);
  bool GoOver();
  Task<bool> EndMeeting();
  Task<absl::Status> HelpOthers(absl::Duration timeout);
  void RecordAdopted();

  Task<absl::Status> ConcludeRecovery();
  Task<absl::Status> ConcludeStep();
  Task<void> Initialize(bool resume, absl::Time until);
  Task<bool> TakeLoss(absl::Status status);
  Task<void> OnLossElsewhere(v1::WatchPlansResponse event);
  Task<void> RunStep(uint64_t step, absl::Time until);
  absl::Status GiveArena(node::SessionId session);
  void DropSession(node::SessionId session);
  Task<void> Meet(v1::Meeting call);
  Task<void> OnPlan(v1::WatchPlansResponse event);
  Task<absl::Status> Adopt(v1::Plan plan, v1::Routes routes);
  [[nodiscard]] static bool IsForgotten(const absl::Status& status);
  void DropPlan();
  void HoldPlan();
  Task<void> DoRegisterAnew();
  Task<void> Refuse(std::vector<uint32_t> ranks, absl::Status why);
  [[nodiscard]] std::vector<uint32_t> AnsweredRanks(uint64_t last_sequence) const;
  [[nodiscard]] std::vector<uint32_t> RanksHere(const v1::Plan& plan) const;
  Task<void> SendRegistration(node::SessionId session);
  Task<void> ResendRegistrations();
  Task<void> OnEventAfterTheEnd(v1::WatchPlansResponse event);
  Task<void> End(bool in_order);
  Task<void> Release(uint64_t generation, bool in_order);
  void Forget();
  // The saver's thread: this node's part of the checkpoint of `step`, until the whole exists or not.
  Task<void> Save(uint64_t step, Digest part);

  Cluster* const cluster_;
  World& world_;
  const std::string job_id_;
  const absl::Duration peer_timeout_;
  const absl::Duration orphan_timeout_;
  const Environment environment_;
  node::JobCore core_;
  std::map<node::Ticket, ReplyAny> replies_;
  node::Ticket next_ticket_ = 1;
  std::map<node::SessionId, std::shared_ptr<Session>> sessions_;
  std::map<node::SessionId, v1::RegisterWorkerRequest> unsent_;
  absl::Time resend_at_ = absl::InfiniteFuture();
  struct AcceptedShards {
    uint64_t sequence = 0;
    google::protobuf::RepeatedPtrField<v1::Shard> shards;
  };
  std::map<uint32_t, AcceptedShards> accepted_;  // by rank
  v1::JobSpec spec_;
  v1::Plan plan_;
  std::unique_ptr<Peers> peers_;
  std::unique_ptr<Pipeline> pipeline_;
  std::shared_ptr<const Successor> next_;     // that the job is to go over to
  std::optional<v1::WatchPlansResponse> early_;
  std::shared_ptr<const Successor> current_;  // that it has gone over to: its pipeline refers to it
  bool saving_ = false;
  std::string hypers_;  // of the step in flight
  bool ended_ = false;
  absl::Time kept_until_ = absl::InfiniteFuture();
  v1::HeldJob held_;
  std::deque<Input> inputs_;
  Signal posted_;
  Task<void> saver_;
  Task<void> loop_;  // last: it uses the rest
};

}  // namespace dmuon::sim
