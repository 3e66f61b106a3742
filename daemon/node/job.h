// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// One job on this node: the shell around JobCore. Its thread alone feeds the core, carries out the
// actions and runs the step pipeline; gRPC threads post and return. On a node without workers of the job
// nobody calls for anything: there it follows the other nodes (job_following.cc).
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/base/coordinator_link.h"
#include "daemon/base/metrics.h"
#include "daemon/node/autotuner.h"
#include "daemon/node/job_checkpoints.h"
#include "daemon/node/job_core.h"
#include "daemon/node/memory_budget.h"
#include "daemon/node/peers.h"
#include "daemon/node/slot_threads.h"
#include "daemon/node/state_exchange.h"
#include "daemon/node/step_pipeline.h"
#include "daemon/node/successor.h"
#include "daemon/node/worker_boxes.h"
#include "daemon/node/worker_session.h"
#include "dmuon/v1/coordinator.pb.h"
#include "dmuon/v1/node.pb.h"
#include "kernels/backend.h"
#include "wire/mutex.h"

namespace dmuon::node {

// Exactly one call, from the job's thread. A status that is not OK means that nothing changed.
template <typename Response>
using Reply = std::function<void(absl::StatusOr<Response>)>;

// What a job needs of its node. Everything outlives the job.
struct JobEnvironment {
  v1::NodeIdentity node;
  uint32_t slots = 1;
  int threads_per_slot = 1;
  bool overlap = true;  // see step_pipeline.h
  kernels::Backend* backend = nullptr;
  CoordinatorLink* link = nullptr;
  Metrics* metrics = nullptr;
  MemoryBudget* budget = nullptr;
  Autotuner* autotuner = nullptr;
  checkpoint::Store* checkpoints = nullptr;  // null: none are kept
  std::atomic<uint64_t>* registrations = nullptr;  // sent by this process
  ConnectPeers connect_peers;  // for jobs of several nodes
  // How long nodes wait for each other when a plan is adopted.
  absl::Duration connect_timeout = absl::Seconds(60);
  // Called once, from the job's thread, when the job is over: it answers nothing any more.
  std::function<void(const std::string& job_id)> on_end;
  // Called from the job's thread when a session is over.
  std::function<void(SessionId session)> on_session_dropped;
};

class Job {
 public:
  Job(JobCoreOptions options, JobEnvironment environment);
  ~Job();  // stops the thread; requests still waiting are answered UNAVAILABLE
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // Thread-safe; all return at once. `deadline` is the caller's, on MonotonicNow()'s clock.
  void Open(std::shared_ptr<WorkerSession> session, Reply<v1::OpenResponse> reply);
  // `boxes` are the request's shards, parsed; the request is valid.
  void Register(SessionId session, absl::Time deadline, v1::RegisterRequest request,
                std::vector<wire::ShardBoxes> boxes, Reply<v1::RegisterResponse> reply);
  void Begin(absl::Time deadline, const v1::BeginRequest& request,
             Reply<v1::BeginResponse> reply);
  void Step(SessionId session, absl::Time deadline, v1::StepRequest request,
            Reply<v1::StepResponse> reply);
  // As Step, answered in the session's arena. What the arena cannot say is kept for the next Step.
  void Ring(SessionId session, absl::Time deadline, v1::StepRequest request);
  // A worker marks the gradients of `step` one by one: they may be there before the step is called for.
  void ExpectGradients(uint64_t generation, uint64_t step);
  void Save(absl::Time deadline, const v1::SaveRequest& request, Reply<v1::SaveResponse> reply);
  void Restore(absl::Time deadline, const v1::RestoreRequest& request, Reply<v1::RestoreResponse> reply);
  void Export(absl::Time deadline, const v1::ExportRequest& request, Reply<v1::ExportResponse> reply);
  // The worker has no more need of what Export gave it.
  void Release(SessionId session);
  // Of a state that the session, or another one of this node, has been offered before.
  void Import(absl::Time deadline, const v1::ImportRequest& request, Reply<v1::ImportResponse> reply);
  // For an operator. At once where no other node has to agree, else after the next step.
  void SaveNext(absl::Time deadline, const std::string& name, Reply<v1::SaveJobResponse> reply);
  void Close(SessionId session, Reply<v1::CloseResponse> reply);
  // The worker's channel has ended, or its process.
  void Gone(SessionId session);
  // An event of the coordinator.
  void OnPlanEvent(v1::WatchPlansResponse event);

  [[nodiscard]] const std::string& job_id() const { return job_id_; }
  [[nodiscard]] uint32_t world_size() const { return world_size_; }
  // A recent copy; never waits for a step.
  [[nodiscard]] v1::NodeJobStatus Status() const;
  // What a Join reports; nullopt while the job has no plan.
  [[nodiscard]] std::optional<v1::HeldJob> Held() const;
  // The node joins, perhaps a coordinator that has started again: what a job without a plan has registered is sent again.
  void RegisterAnew();

 private:
  using ReplyAny = std::function<void(const absl::Status&)>;
  struct Registration {
    v1::RegisterRequest request;
    std::vector<wire::ShardBoxes> boxes;
  };
  // The answer to a step that rang, for the RPC that asks for it.
  struct Referral {
    uint64_t step = 0;
    absl::StatusOr<v1::StepResponse> result;
  };
  // What the coordinator plans with.
  struct AcceptedShards {
    uint64_t sequence = 0;
    std::vector<wire::ShardBoxes> boxes;
    google::protobuf::RepeatedPtrField<v1::Shard> shards;  // the same, as they came
  };

  void Post(std::function<void()> input);
  void Loop();
  [[nodiscard]] absl::Time NextLook() const;
  void LookForGradients();
  Ticket Await(ReplyAny reply);
  void CarryOut(Actions actions);
  // Ranks whose accepted registration an event that rests on `last_sequence` answers.
  std::vector<uint32_t> AnsweredRanks(uint64_t last_sequence) const;
  void Refuse(const std::vector<uint32_t>& ranks, const absl::Status& why);
  void OnPlan(const v1::WatchPlansResponse& event);
  void OnLossElsewhere(const v1::WatchPlansResponse& event);
  [[nodiscard]] bool IsForgotten(const absl::Status& status) const;
  void DropPlan();
  void Meet(const v1::Meeting& call);
  absl::Status HelpOthers(absl::Duration timeout);
  void OnSuccessor(const v1::WatchPlansResponse& event);
  void MeetForSuccessor();
  // Runs a meeting of the nodes in which something is wanted, and again when they go over to another plan instead.
  absl::Status Together(const std::function<absl::Status()>& meeting);
  // After each meeting. Whether the nodes have gone over to another plan in it.
  bool EndMeeting();
  // When this node, if it has no worker of the job, can look for what the others want; infinite future: not before an input.
  [[nodiscard]] absl::Time NextFollow() const;
  // Waits until they want something, or does that.
  void Follow();
  void AwaitOthers();
  void DoAsOthers();
  // Nodes without workers are told now of the checkpoints that workers have called for.
  void TellSaves();
  bool GoOver();
  // Whether the event is a plan in which only other nodes than this one have changed.
  bool OnNodes(const v1::WatchPlansResponse& event);
  void TakeNodes(std::shared_ptr<const v1::Plan> plan);
  void SetPeers(std::shared_ptr<Peers> peers);
  void TakeEarly();
  void OnEventAfterTheEnd(const v1::WatchPlansResponse& event);
  absl::Status Adopt(const v1::Plan& plan, const v1::Routes& routes);
  [[nodiscard]] std::vector<uint32_t> RanksHere(const v1::Plan& plan) const;
  // Of this node; nullopt: the plan is not over it.
  [[nodiscard]] std::optional<uint32_t> PlaceIn(const v1::Plan& plan) const;
  void InterruptFor(const v1::WatchPlansResponse& event);
  void SendRegistration(SessionId session);
  // Measures, for the first registration of a specification.
  const std::vector<v1::UnitTime>& TimesFor(const v1::JobSpec& job);
  void ResendRegistrations();
  absl::Status GiveArena(SessionId session);
  void ArriveAtStep(SessionId session, absl::Time deadline, v1::StepRequest request,
                    Reply<v1::StepResponse> reply);
  void Refer(SessionId session, uint64_t step, absl::StatusOr<v1::StepResponse> result);
  void Initialize(bool resume, absl::Time deadline);
  void TellState(bool recovered);
  void RunStep(uint64_t step, absl::Time deadline);
  bool TakeLoss(const absl::Status& status);
  void NoteRecovery(absl::Duration took);
  void RunRestore(const std::string& name, absl::Time deadline);
  // True for a session that has come after the last restore and asks for the same, with no step since: its worker has
  // lost the answer, and the others may have gone on.
  [[nodiscard]] bool HasRestored(SessionId session, uint64_t generation, const std::string& name) const;
  absl::StatusOr<v1::ExportResponse> GiveState(absl::Time deadline, const v1::ExportRequest& request);
  BroughtState BroughtHere(const std::string& digest);
  absl::Status ConcludeRecovery();
  absl::Status ConcludeStep();
  void DropSession(SessionId session);
  void ReplaceDeadSession(const WorkerSession& successor);
  void End(bool in_order);
  void Release(uint64_t generation, bool in_order);
  void Forget();
  void PublishPlan(std::string_view why);
  // What a Join says from now on.
  void HoldPlan();
  void PublishSnapshot();
  void DescribeReplicas(v1::ReplicationStatus& status);
  void CountNewtonSchulz(const NewtonSchulzWork& work);
  void CountStep(const absl::Status& status, const StepReport& report, double seconds);
  void CountTraffic();
  void CountWait(SessionId session, double seconds);
  v1::RegisterResponse RegisteredResponse(SessionId session) const;
  v1::StepResponse SteppedResponse(uint64_t step, bool replayed) const;
  [[nodiscard]] wire::StepAnswer Answer() const;

  const std::string job_id_;
  const uint32_t world_size_;
  const absl::Duration peer_timeout_;
  const absl::Duration orphan_timeout_;
  const JobEnvironment environment_;

  // Below: the job's thread only.
  JobCore core_;
  std::map<Ticket, ReplyAny> replies_;
  Ticket next_ticket_ = 1;
  std::map<SessionId, std::shared_ptr<WorkerSession>> sessions_;
  std::map<SessionId, Registration> unsent_;  // registrations on their way to the coordinator
  absl::Time resend_at_ = absl::InfiniteFuture();
  std::map<uint32_t, AcceptedShards> accepted_;  // by rank
  v1::JobSpec spec_;
  std::string timed_spec_;  // whose times_ are, serialised
  std::vector<v1::UnitTime> times_;
  std::shared_ptr<const v1::Plan> plan_ = std::make_shared<v1::Plan>();  // empty: none yet
  std::shared_ptr<const Successor> next_;  // that the job is to go over to
  std::optional<v1::WatchPlansResponse> early_;  // the successor of a plan that this node has yet to go over to
  std::unique_ptr<WorkerBoxes> workers_;
  std::shared_ptr<Peers> peers_;  // null on one node
  std::unique_ptr<SlotThreads> slots_;
  std::unique_ptr<StepPipeline> pipeline_;
  std::unique_ptr<JobCheckpoints> checkpoints_;
  MemoryBudget::Share state_share_;
  std::weak_ptr<const GivenState> given_;  // the last that workers were given, while any of them has it
  uint64_t given_step_ = 0;
  struct LastRestore {
    std::string name;
    uint64_t step = 0;
    std::set<SessionId> sessions;  // that were answered
  };
  LastRestore restored_;
  v1::StepRequest step_request_;  // of the step in flight
  std::map<SessionId, Referral> referrals_;
  StepReport last_report_;        // of the last applied or skipped step
  double last_seconds_ = 0.0;
  absl::Time first_arrival_;
  absl::Time look_at_ = absl::InfiniteFuture();  // for gradients of the next step
  absl::Time meet_at_ = absl::InfiniteFuture();  // the other nodes, to go over to next_
  uint64_t newton_schulz_calls_ = 0;
  uint64_t skipped_steps_ = 0;
  uint64_t recoveries_ = 0;  // that metrics know of
  std::deque<double> recent_seconds_;  // of the last 100 steps
  bool ended_ = false;
  bool forgotten_ = false;  // the engine has been told
  absl::Time kept_until_ = absl::InfiniteFuture();  // an ended job, for the other nodes
  bool follows_ = false;  // this node has none of the workers
  std::optional<Reports> wanted_;  // by the others, then
  absl::Time follow_at_ = absl::InfinitePast();
  absl::Time met_at_;  // the other nodes, the last time

  mutable wire::Mutex mu_;
  wire::CondVar posted_;
  std::deque<std::function<void()>> inputs_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<Peers> to_cancel_ ABSL_GUARDED_BY(mu_);  // peers_, for who stops the job
  v1::NodeJobStatus snapshot_ ABSL_GUARDED_BY(mu_);
  std::optional<v1::HeldJob> held_ ABSL_GUARDED_BY(mu_);
  bool has_state_ ABSL_GUARDED_BY(mu_) = false;
  bool awaits_ ABSL_GUARDED_BY(mu_) = false;  // the others, and does nothing else

  std::thread thread_;  // last: joined before the rest goes
};

}  // namespace dmuon::node
