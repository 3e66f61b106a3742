// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The coordinator's decisions: who is a member, which job has all its ranks, what plan it gets.
// A pure core: no I/O, no clock, no lock, no thread. Time comes in, events go out, and every
// decision carries its reason in words. The shell (host.h) serialises the inputs.
//
// `now` is a reading of a monotonic clock; only differences of it mean something. It never goes
// backwards from one call to the next.
//
// A job's life:
//
//   (unknown) --first rank--> waiting --last rank, all covered--> planned --release--> (unknown)
//                             waiting --hole, specs differ--> refused: forgotten everywhere
//   (unknown) --a node that joins holds it--> planned
//   planned   --a planned node comes back as another process without it--> forgotten everywhere, unless another node
//                                                                           has copies: then the plan stays
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/coordinator/meeting_point.h"
#include "daemon/coordinator/part_board.h"
#include "dmuon/v1/coordinator.pb.h"
#include "wire/validate.h"

namespace dmuon::coordinator {

// Bounds of what a node may say.
inline constexpr uint32_t kMaxSlotsPerNode = 1'024;
// Far from the end of the number range, so that no report can use the generations up.
inline constexpr uint64_t kMaxReportedGeneration = uint64_t{1} << 62;

struct Options {
  // A node that has not renewed for this long is out. Longer rides out slow beats; a dead node is
  // noticed later.
  absl::Duration lease = absl::Seconds(15);
  // Generations start above this one. The shell keeps the highest ever given out on disk.
  uint64_t highest_generation = 0;
};

// An event for one node.
struct Outgoing {
  std::string node_id;
  v1::WatchPlansResponse event;
};

// Whether an input led to the planner.
enum class Planning : uint8_t { kNone, kPlanned, kRefused };

// What an input led to.
struct Outcome {
  absl::Status status;             // the caller's answer
  std::vector<Outgoing> outgoing;  // in order
  std::string reason;              // for the log; empty when nothing was decided
  Planning planning = Planning::kNone;
  bool succeeded = false;  // a job has gone over to the successor of its plan
};

class Coordinator {
 public:
  explicit Coordinator(Options options);

  // INVALID_ARGUMENT for a malformed request, FAILED_PRECONDITION/PROTOCOL_VERSION for another
  // version, FAILED_PRECONDITION/UNKNOWN_NODE for a process that another one of its node id has followed, such as one
  // that was frozen meanwhile. Joining again as the same incarnation only renews.
  Outcome Join(absl::Time now, const v1::JoinRequest& request);
  // NOT_FOUND/UNKNOWN_NODE unless the node is a member in this incarnation; so do all below.
  Outcome Beat(absl::Time now, const v1::BeatRequest& request);
  Outcome Leave(absl::Time now, const v1::LeaveRequest& request);
  // The last rank of a job triggers proof of coverage and planning; the caller's answer is OK even
  // then, and plan or refusal go out as events. A rank that registers again replaces what it
  // registered before; in a planned job it must say the same and gets the current plan again.
  Outcome RegisterWorker(absl::Time now, const v1::RegisterWorkerRequest& request);
  // OK also when the job or its generation is unknown: releasing twice is harmless. A job released in
  // order ends, and its nodes are told, when every node has released it or is no member any more.
  Outcome ReleaseJob(absl::Time now, const v1::ReleaseJobRequest& request);
  // The meeting of a planned job's nodes. All: NOT_FOUND/UNKNOWN_JOB when the job is not planned,
  // FAILED_PRECONDITION/STALE_GENERATION for another plan, ABORTED when a newer attempt has begun.
  // A new attempt calls the job's other nodes. A process that comes after one that was in the current attempt begins a
  // new one.
  Outcome NextAttempt(const v1::Meeting& meeting, uint64_t& attempt);
  absl::Status SetKey(const v1::SetKeyRequest& request);
  // nullopt: nobody has set it yet.
  [[nodiscard]] absl::StatusOr<std::optional<std::string>> GetKey(
      const v1::GetKeyRequest& request) const;
  // Where a checkpoint of a planned job stands, with what this node says of its part: see part_board.h. Errors as of
  // a meeting.
  Outcome ReportPart(const v1::ReportPartRequest& request, v1::ReportPartResponse& response);
  // The node is to own nothing, or (undo) may again. NOT_FOUND/UNKNOWN_NODE; FAILED_PRECONDITION/NOT_READY when a job would
  // have no owner left. New plans come from Replan.
  Outcome Drain(const v1::DrainNodeRequest& request);
  // Whether a job's plan is not what the drained nodes ask for, and it can be planned anew.
  [[nodiscard]] bool NeedsReplan() const;
  // Makes a successor for one such job, and tells its nodes.
  Outcome Replan();
  // Drops members whose lease has run out.
  Outcome Tick(absl::Time now);

  [[nodiscard]] bool IsMember(const v1::NodeIdentity& node) const;
  [[nodiscard]] size_t member_count() const { return members_.size(); }
  // All current plans that concern the node, calls to meet, and the end of what it holds and is over, for a watch that begins.
  [[nodiscard]] std::vector<v1::WatchPlansResponse> CurrentEvents(const std::string& node_id) const;
  [[nodiscard]] v1::GetClusterStatusResponse Status(absl::Time now) const;
  // NOT_FOUND/UNKNOWN_JOB.
  [[nodiscard]] absl::StatusOr<v1::GetPlanResponse> GetPlan(const std::string& job_id) const;
  // Given out or reported. One call hands out at most one new generation, and only RegisterWorker
  // and Replan do.
  [[nodiscard]] uint64_t highest_generation() const { return highest_generation_; }
  [[nodiscard]] const Options& options() const { return options_; }

 private:
  struct Member {
    std::string incarnation;
    uint32_t slots = 1;
    uint64_t memory_bytes = 0;
    std::string backend;
    bool owns_all = false;
    absl::Time lease_end;
    std::vector<v1::WatchPlansResponse> ends;  // of what it said it holds that is over, for a watch that begins
  };
  // Kept as bytes: a tenth of the parsed boxes' memory, and one comparison tells whether a rank
  // says the same again.
  struct Registration {
    std::string node_id;
    uint64_t sequence = 0;
    std::string shards;  // a serialised RegisterWorkerRequest with nothing but shards
    std::vector<v1::UnitTime> times;
  };
  // A plan that the nodes of a job are to go over to.
  struct Successor {
    v1::Plan plan;
    std::map<std::string, v1::Routes> routes;  // by node id
  };
  struct Job {
    v1::JobSpec spec;
    std::string spec_bytes;  // its serialisation, for comparison
    std::map<uint32_t, Registration> ranks;
    std::optional<v1::Plan> plan;
    std::map<std::string, v1::Routes> routes;  // by node id; of a plan that was learned when all ranks' shards are known
    MeetingPoint meeting_point;
    std::map<std::string, std::string> met;  // node id -> process, of those in the current attempt
    PartBoard parts;  // of checkpoints
    std::set<std::string> released;  // nodes whose workers have left in order
    // Node id -> the process that the plan was made for.
    std::map<std::string, std::string> incarnations;
    std::set<std::string> early;  // nodes that registered before the job was known again, and are to get the plan
    std::optional<Successor> successor;
    std::string handover_failure;             // why the nodes could not go over to the last one; empty: they have
    std::set<std::string> refused_drain;      // the drained nodes of that one
    std::map<std::string, uint64_t> holders;  // node id -> the generation that it has said it holds
    std::set<std::string> lost;  // nodes whose process has not said that it has its part of the state again

    // Whether the state of the nodes that are lost, and of `another` one, is still on their buddies.
    [[nodiscard]] bool HasCopiesWithout(const std::string& another) const;
    // Whether the node has nothing to lose.
    [[nodiscard]] bool OwnsNothing(const std::string& node_id) const;
    // The nodes of the plan among `nodes`.
    [[nodiscard]] std::set<std::string> Among(const std::set<std::string>& nodes) const;
    // Of `shards`, by node id.
    [[nodiscard]] static std::map<std::string, v1::Routes> RoutesOf(const v1::Plan& plan,
                                                                    const std::vector<std::vector<wire::ShardBoxes>>& shards);
    // In rank order; nullopt when a rank is missing, or does not say what can be.
    [[nodiscard]] std::optional<std::vector<std::vector<wire::ShardBoxes>>> Shards() const;

    [[nodiscard]] v1::WatchPlansResponse PlanEvent(const std::string& node_id) const;
    [[nodiscard]] v1::WatchPlansResponse SuccessorEvent(const std::string& node_id) const;
    // The plan, and its successor if there is one.
    void TellPlan(const std::string& node_id, std::vector<Outgoing>& outgoing) const;
    [[nodiscard]] v1::WatchPlansResponse RefusalEvent(const std::string& node_id,
                                                      const absl::Status& why) const;
    [[nodiscard]] v1::WatchPlansResponse CallEvent() const;
    // A plan of one node needs none.
    [[nodiscard]] bool has_routes() const { return !routes.empty() || plan->nodes_size() < 2; }
    // Of the node's registrations.
    [[nodiscard]] uint64_t LastSequence(const std::string& node_id) const;
  };
  using Jobs = std::map<std::string, Job>;

  absl::Status CheckMember(const v1::NodeIdentity& node) const;
  // A process that was frozen, or whose Join was long on its way, does not take the place of one that came after it.
  absl::Status CheckNotReplaced(const v1::NodeIdentity& node) const;
  absl::Status CheckPlanned(const v1::NodeIdentity& node, const std::string& job_id, uint64_t generation) const;
  absl::Status CheckMeeting(const v1::Meeting& meeting) const;
  // Forgets what the process before this one took with it and no other node has.
  void DropLost(const v1::JoinRequest& request, Outcome& outcome);
  void AdoptHeld(const v1::JoinRequest& request, Outcome& outcome);
  static void TakeEarly(Job& waiting, Job& job);
  void LearnDrained(const v1::Plan& plan);
  static void LearnShards(const v1::JoinRequest& request, const v1::HeldJob& held, Job& job);
  static void CompleteRoutes(Job& job);
  static void AnswerEarly(Job& job, Outcome& outcome);
  // Of a job that was not known, or not planned: a member that joined without it has lost its part of the state. Its process must
  // not be taken for the one that the plan was made for, or it would begin anew beside what the others have. Marks those of whose
  // state there are copies.
  absl::Status FindLost(const std::string& job_id, Job& job, const std::string& reporter) const;
  // Forgets the node's registrations in jobs that have no plan yet.
  void ForgetWaiting(const std::string& node_id);
  void ForgetWaiting(const std::string& node_id, Jobs::iterator job);
  Outcome RegisterWaiting(const v1::RegisterWorkerRequest& request);
  Outcome RegisterPlanned(absl::Time now, const v1::RegisterWorkerRequest& request, Jobs::iterator planned);
  // `outcome` says why the job is over for all; the caller is the first of a new one.
  Outcome BeginAnew(const v1::RegisterWorkerRequest& request, Jobs::iterator lost, Outcome outcome);
  void PlanJob(Jobs::iterator job, Outcome& outcome);
  // Members that own units for all jobs, and are to own some of one that runs over `nodes` and computes with `backend`.
  [[nodiscard]] std::vector<std::string> NodesForAll(const std::set<std::string>& nodes, const std::string& backend) const;
  // Instead of a plan.
  void RefusePlan(Jobs::iterator job, const absl::Status& why, Outcome& outcome);
  // FAILED_PRECONDITION/SPEC_MISMATCH when the nodes would compute other bits than each other.
  absl::Status CheckBackends(const Job& job) const;
  // Whether the rank's node is out for good, as far as anybody knows, and its worker has come back on one that the job does
  // not run over.
  [[nodiscard]] bool HasMoved(absl::Time now, const v1::RegisterWorkerRequest& request, const Job& job) const;
  // The caller's node takes the place of that one, whose state others have copies of.
  void ReplaceNode(const v1::RegisterWorkerRequest& request, Job& job, Outcome& outcome);
  absl::Status CheckReplacement(const Member& member, const std::string& node_id, int place, const Job& job) const;
  [[nodiscard]] bool NeedsReplan(const Job& job) const;
  absl::StatusOr<Successor> MakeSuccessor(const Job& job) const;
  // Nodes without workers of a planned job: which are to come, where in the plan's order those begin that are to go, or to make
  // way for these, and whether they can.
  [[nodiscard]] std::vector<std::string> FollowersToAdd(const Job& job) const;
  [[nodiscard]] size_t FollowersToKeep(const Job& job) const;
  [[nodiscard]] bool CanDropFollowers(const Job& job) const;
  // Nodes that are to own nothing under the next plan.
  [[nodiscard]] std::set<std::string> ToDrain(const Job& job) const;
  // The same owners over other nodes.
  [[nodiscard]] v1::Plan WithOtherFollowers(const Job& job, uint64_t generation) const;
  // Nodes that are new in the plan, and those that are no more.
  void TakeFollowers(const v1::Plan& former, Job& job, Outcome& outcome);
  // Whether one that is to go is out already: it takes part in nothing any more, and is not waited for.
  [[nodiscard]] bool LosesFollower(const Job& job) const;
  void DropFollowers(Job& job, Outcome& outcome);
  // Who speaks of the successor has gone over to it, and all others have been ready to.
  void Promote(const std::string& job_id, uint64_t generation, Outcome& outcome);
  static void GiveUpSuccessor(const v1::ReleaseJobRequest& request, Job& job, Outcome& outcome);
  static v1::WatchPlansResponse EndEvent(const v1::Plan& plan);
  static void TellEnd(const std::string& node_id, const v1::Plan& plan, Outcome& outcome);
  // Forgets the job, and remembers that it is over: what other nodes were told must stay true whoever reports it later.
  void Erase(Jobs::iterator job);
  [[nodiscard]] bool IsOver(const v1::Plan& plan) const;
  void TellOver(const std::string& node_id, const v1::Plan& plan, Outcome& outcome);
  // As a node reports it.
  [[nodiscard]] Job JobOf(const std::string& reporter, const v1::HeldJob& held) const;
  // Tells every node of a planned job, but for `except`, that it is over, and forgets it.
  void EndJob(Jobs::iterator job, absl::string_view except, Outcome& outcome);
  // Ends the jobs that were released and that no member needs any more.
  void EndReleased(Outcome& outcome);
  // Tells every node concerned, but for `except`, and forgets the job.
  void Refuse(Jobs::iterator job, const absl::Status& why, absl::string_view except,
              Outcome& outcome);

  Options options_;
  uint64_t highest_generation_;
  std::map<std::string, Member> members_;  // by node id
  Jobs jobs_;                              // by job id
  std::map<std::string, uint64_t> over_;   // job id -> its highest generation that has ended; of the last kMostOver jobs
  std::set<std::string> drained_;          // node ids, members or not
  absl::Time started_ = absl::InfiniteFuture();  // when the first node joined
};

// The request's shards, proved to be shards of the job's tensors.
absl::StatusOr<std::vector<wire::ShardBoxes>> ParseShards(const v1::JobSpec& job,
                                                          const v1::RegisterWorkerRequest& request, uint32_t rank);
// Nothing has changed.
Outcome Fail(absl::Status status);
// "...; text".
void AddReason(absl::string_view text, Outcome& outcome);

}  // namespace dmuon::coordinator
