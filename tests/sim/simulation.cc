// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "tests/sim/simulation.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/daemon/plan/job_builder.h"
#include "tests/sim/cluster.h"
#include "tests/sim/coordinator_process.h"
#include "tests/sim/ledger.h"
#include "tests/sim/node_process.h"
#include "tests/sim/worker.h"
#include "wire/validate.h"

namespace dmuon::sim {
namespace {

constexpr absl::Duration kActivity = absl::Milliseconds(1500);  // in which faults begin
constexpr uint64_t kLongTraining = 40;  // steps, where owners change
constexpr absl::Duration kAskAgain = absl::Seconds(1);  // an operator, when nothing fails any more
constexpr absl::Duration kLook = absl::Milliseconds(50);        // of the launcher
// How long the launcher waits for workers of a job that has lost its state to hear of it.
constexpr absl::Duration kToldWithin = absl::Seconds(40);

// Every worker holds the whole model, and its gradients are its own: all of them reach all owners.
v1::RegisterWorkerRequest RegistrationOf(const v1::JobSpec& job) {
  v1::RegisterWorkerRequest request;
  *request.mutable_job() = job;
  for (int i = 0; i < job.tensors_size(); ++i) {
    v1::Shard& shard = *request.add_shards();
    shard.set_tensor(static_cast<uint32_t>(i));
    *shard.mutable_grad_box() = wire::ToProto(plan::WholeTensor(job.tensors(i)));
    *shard.mutable_param_box() = shard.grad_box();
    shard.set_reduced(false);
  }
  return request;
}

class Simulation {
 public:
  Simulation(uint64_t seed, const SimOptions& options)
      : options_(options), random_(Mix(seed, 0xfa01)), cluster_(seed, options.trace, options.plant) {
    result_.seed = seed;
    nodes_wanted_ = 1 + static_cast<uint32_t>(random_.Below(3));
    const uint32_t per_node = 1 + static_cast<uint32_t>(random_.Below(2));
    workers_wanted_ = nodes_wanted_ * per_node;
    faults_ = DrawFaults(options.menu, nodes_wanted_, workers_wanted_, kActivity, random_);
    Random replication(Mix(seed, 0x2e91));  // apart, so that the other schedules are what they would be without
    const bool replicated = nodes_wanted_ > 1 && replication.Chance(0.5);
    Random operators(Mix(seed, 0xd4a1));  // apart, too
    AddDrains(options.menu, nodes_wanted_, kActivity, operators, faults_);
    cluster_.no_memory = faults_.no_memory;
    cluster_.network.SetWeather(faults_.network);
    plan::JobBuilder builder(workers_wanted_);
    builder.Matrix("w1", 8, 4).Elementwise("b1", {8}).Matrix("w2", 4, 8);
    if (replicated) builder.Matrix("w3", 8, 8).Matrix("w4", 8, 8);  // so that every node has something to lose
    job_ = builder.Build();
    job_.set_max_grad_norm(50.0);
    if (!replicated) return;
    job_.set_replication(replication.Chance(0.5) ? v1::REPLICATION_SYNC : v1::REPLICATION_ASYNC);
    AddNodeCrashes(options.menu, nodes_wanted_, kActivity, replication, faults_);
  }

  ~Simulation() {
    cluster_.world.End();
    for (const auto& node : nodes_) node->process.up = false;  // nobody is there to be answered
  }
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  SimResult Run() {
    Build();
    World& world = cluster_.world;
    Arrange();
    const absl::Time calm = world.now() + faults_.calm;
    const bool ended = world.RunUntil(calm + kProgressWithin, [this] { return done_; });
    if (!ended) Complain("I10", absl::StrCat("no end within ", absl::FormatDuration(kProgressWithin), " of calm: ", Describe()));
    if (ended) AwaitBaseline(calm);
    for (Violation& violation : Check(cluster_.history, job_, nodes_wanted_)) result_.violations.push_back(std::move(violation));
    result_.events = world.events();
    result_.starts = start_;
    result_.replicated = job_.replication() != v1::REPLICATION_UNSPECIFIED;
    for (const Event& event : cluster_.history) result_.recoveries += event.what == What::kSafe && event.number > 0 ? 1 : 0;
    result_.time = world.now() - absl::UnixEpoch();
    if (options_.trace) {
      for (const Violation& violation : result_.violations) world.Trace(violation.invariant, violation.what);
    }
    return std::move(result_);
  }

 private:
  void Complain(const char* invariant, std::string what) { result_.violations.push_back({invariant, std::move(what)}); }

  void Build() {
    coordinator_ = std::make_unique<CoordinatorProcess>(&cluster_);
    cluster_.coordinator = coordinator_.get();
    coordinator_->Start();
    for (uint32_t n = 0; n < nodes_wanted_; ++n) {
      nodes_.push_back(std::make_unique<NodeProcess>(&cluster_, absl::StrCat("node-", n)));
      cluster_.nodes.push_back(nodes_.back().get());
      nodes_.back()->Start();
    }
    for (uint32_t rank = 0; rank < workers_wanted_; ++rank) {
      workers_.push_back(std::make_unique<WorkerProcess>(&cluster_, nodes_[rank % nodes_wanted_].get(), rank));
    }
    StartJob();
    LookLater();
  }

  // A new start of the training, as a job of its own.
  void StartJob() {
    lost_since_ = absl::InfiniteFuture();
    ++start_;
    job_.set_job_id(absl::StrCat("job-", start_));
    for (auto& worker : workers_) StartWorker(*worker, start_);
  }

  // A process that comes back has other initial parameters: nobody may take them for the job's.
  void StartWorker(WorkerProcess& worker, uint64_t initial) {
    WorkerProcess::Options options;
    options.registration = RegistrationOf(job_);
    options.start = initial;
    if (!faults_.drains.empty()) options.goal = kLongTraining;
    options.mistakes = cluster_.world.now() < absl::UnixEpoch() + faults_.calm ? faults_.mistakes : 0.0;
    worker.Start(options);
  }

  void LookLater() {
    cluster_.world.After(kLook, nullptr, [this] {
      Look();
      if (!done_) LookLater();
    });
  }

  [[nodiscard]] bool AllAre(WorkerEnd end) const {
    return std::all_of(workers_.begin(), workers_.end(), [end](const auto& worker) { return worker->end() == end; });
  }
  [[nodiscard]] bool AnyIs(WorkerEnd end) const {
    return std::any_of(workers_.begin(), workers_.end(), [end](const auto& worker) { return worker->end() == end; });
  }

  // The launcher: starts what has ended too early; when state is lost, waits until all know it, and starts anew.
  void Look() {
    const absl::Time now = cluster_.world.now();
    if (AllAre(WorkerEnd::kDone) || OthersHaveEnded()) {
      done_ = true;
      result_.steps = workers_.size();
      return;
    }
    const bool told = AnyIs(WorkerEnd::kLost);
    if (!told && !(AnyIs(WorkerEnd::kGaveUp) && StateWasLost())) {
      lost_since_ = absl::InfiniteFuture();
      return RestartFailed();
    }
    if (lost_since_ == absl::InfiniteFuture()) lost_since_ = now;
    const absl::Time patience = std::max(lost_since_, absl::UnixEpoch() + faults_.calm) + kToldWithin;
    const bool all_told = std::all_of(workers_.begin(), workers_.end(), [](const auto& worker) {
      return worker->end() != WorkerEnd::kRuns || !worker->has_begun();
    });
    if (!all_told && now < patience) return;
    if (!all_told && !told) return RestartFailed();  // it may not be lost
    if (!all_told) Complain("I5", absl::StrCat("state is lost, and not all workers are told: ", Describe()));
    for (auto& worker : workers_) {
      if (worker->end() == WorkerEnd::kGaveUp && worker->has_begun()) ++result_.untold;
      worker->Crash();
    }
    StartJob();
  }

  [[nodiscard]] std::string NodeOf(const std::string& worker) const {
    for (size_t rank = 0; rank < workers_.size(); ++rank) {
      if (workers_[rank]->process.name == worker) return nodes_[rank % nodes_wanted_]->process.name;
    }
    return {};
  }

  // Whether whoever has not ended in order came back to a job that all others had left, and that ended because its node was
  // silent, or to a node that was lost after another worker of it had left: it waits for ranks that will not come, and is told so.
  bool OthersHaveEnded() {
    std::set<std::string> left_out;
    std::set<std::string> left;  // nodes of which a worker has
    for (const Event& event : cluster_.history) {
      if (event.what == What::kLeftOut && event.job == job_.job_id()) left_out.insert(event.who);
      if (event.what == What::kLeft && event.flag && event.job == job_.job_id()) left.insert(NodeOf(event.who));
      if (event.what == What::kCrashed && left.contains(event.who)) left_out.insert(event.who);
    }
    uint64_t behind = 0;
    for (size_t rank = 0; rank < workers_.size() && !left_out.empty(); ++rank) {
      if (workers_[rank]->end() == WorkerEnd::kDone) continue;
      const bool told = workers_[rank]->end() == WorkerEnd::kGaveUp && !workers_[rank]->has_begun();
      if (!told || !left_out.contains(nodes_[rank % nodes_wanted_]->process.name)) return false;
      ++behind;
    }
    if (behind == 0 || behind == workers_.size()) return false;
    result_.behind = behind;
    return true;
  }

  // Whether a process that held the present job's state has crashed, and what it had may be on no other node.
  [[nodiscard]] bool StateWasLost() const {
    if (job_.replication() != v1::REPLICATION_UNSPECIFIED) return CopiesWereLost();
    std::set<std::pair<std::string, uint64_t>> holders;
    for (const Event& event : cluster_.history) {
      if (event.what == What::kAdopted && event.job == job_.job_id()) {
        Owns(event) ? static_cast<void>(holders.emplace(event.who, event.life)) : static_cast<void>(holders.erase({event.who, event.life}));
      }
      if (event.what == What::kCrashed && holders.contains({event.who, event.life})) return true;
    }
    return false;
  }

  // Whether the node that has adopted this plan is the owner of something under it.
  [[nodiscard]] bool Owns(const Event& adopted) const {
    return std::any_of(adopted.digests.begin(), adopted.digests.end(),
                       [&](Digest owner) { return nodes_[owner - 1]->process.name == adopted.who; });
  }

  [[nodiscard]] bool CopiesWereLost() const {
    StateLedger ledger(nodes_wanted_);
    std::set<uint64_t> generations;  // of the job
    for (const Event& event : AsOneGeneration(cluster_.history)) {
      ledger.See(event);
      if (event.what == What::kAdopted && event.job == job_.job_id()) generations.insert(event.generation);
    }
    return ledger.MayBeLost(generations);
  }

  void RestartFailed() {
    for (auto& worker : workers_) {
      if (worker->end() != WorkerEnd::kCrashed && worker->end() != WorkerEnd::kGaveUp) continue;
      if (restarting_.contains(worker.get())) continue;
      restarting_.insert(worker.get());
      const absl::Duration pause = random_.Spread(absl::Milliseconds(20), absl::Seconds(1));
      cluster_.world.After(pause, nullptr, [this, worker = worker.get(), start = start_] {
        restarting_.erase(worker);
        if (start == start_ && worker->end() != WorkerEnd::kRuns) StartWorker(*worker, 1000 + ++restarts_);
      });
    }
  }

  void Arrange() {
    World& world = cluster_.world;
    if (world.tracing()) {
      world.Trace("schedule", nodes_wanted_, " nodes, ", workers_wanted_, " workers, loss ", faults_.network.loss, ", ",
                  v1::Replication_Name(job_.replication()));
    }
    for (const Fault& fault : faults_.faults) {
      world.Trace("schedule", fault.Describe());
      world.After(fault.at, nullptr, [this, fault] { Strike(fault); });
    }
    for (const DrainCall& call : faults_.drains) {
      world.After(call.at, nullptr, [this, call] {
        call.undo ? static_cast<void>(drained_.erase(call.node)) : static_cast<void>(drained_.insert(call.node));
        Drain(call.node, call.undo);
      });
    }
    world.After(faults_.calm, nullptr, [this] {
      cluster_.no_memory = 0.0;
      cluster_.network.SetWeather({});
      coordinator_->SetDisk(absl::Microseconds(200));
      Event event;
      event.what = What::kCalm;
      cluster_.Record(std::move(event));
      cluster_.world.Trace("schedule", "calm");
      if (!faults_.drains.empty()) AskForDrains();
    });
  }

  // What operators want is asked for again, because a coordinator that starts again may not know it.
  void AskForDrains() {
    for (uint32_t node = 0; node < nodes_wanted_ && !faults_.drains.empty(); ++node) Drain(node, !drained_.contains(node));
    cluster_.world.After(kAskAgain, nullptr, [this] {
      if (!done_) AskForDrains();
    });
  }

  void Drain(uint32_t node, bool undo) {
    v1::DrainNodeRequest request;
    request.set_node_id(nodes_[node]->process.name);
    request.set_undo(undo);
    coordinator_->Drain(request);
  }

  [[nodiscard]] const Process& Place(uint32_t number) const {
    return number < nodes_.size() ? nodes_[number]->process : coordinator_->process;
  }

  void Freeze(Process& process, const Fault& fault) {
    if (!process.up) return;
    cluster_.world.Trace(process.name, "FREEZES for ", absl::FormatDuration(fault.lasts));
    process.frozen_until = std::max(process.frozen_until, cluster_.world.now() + fault.lasts);
  }

  void CrashNode(NodeProcess& node, const Fault& fault) {
    if (!node.process.up) return;
    node.Crash(fault.kind == FaultKind::kPowerLoss);
    if (fault.kind == FaultKind::kPowerLoss) {  // its workers go with it
      for (auto& worker : workers_) {
        if (worker->process.up && nodes_[RankOf(*worker) % nodes_wanted_].get() == &node) worker->Crash();
      }
    }
    cluster_.world.After(fault.lasts, nullptr, [&node] { node.Start(); });
  }
  [[nodiscard]] size_t RankOf(const WorkerProcess& worker) const {
    for (size_t rank = 0; rank < workers_.size(); ++rank) {
      if (workers_[rank].get() == &worker) return rank;
    }
    return 0;
  }

  void Strike(const Fault& fault) {
    switch (fault.kind) {
      case FaultKind::kCoordinatorCrash:
        coordinator_->Crash();
        cluster_.world.After(fault.lasts, nullptr, [this] {
          if (!coordinator_->process.up) coordinator_->Start();
        });
        return;
      case FaultKind::kNodeCrash:
      case FaultKind::kPowerLoss: return CrashNode(*nodes_[fault.a], fault);
      case FaultKind::kWorkerCrash: return workers_[fault.a]->Crash();
      case FaultKind::kCoordinatorFreeze: return Freeze(coordinator_->process, fault);
      case FaultKind::kNodeFreeze: return Freeze(nodes_[fault.a]->process, fault);
      case FaultKind::kWorkerFreeze: return Freeze(workers_[fault.a]->process, fault);
      case FaultKind::kPartition:
        cluster_.network.Cut(Place(fault.b), Place(fault.a), fault.lasts);
        [[fallthrough]];
      case FaultKind::kOneWay:
        cluster_.world.Trace("schedule", Place(fault.a).name, " CANNOT REACH ", Place(fault.b).name);
        return cluster_.network.Cut(Place(fault.a), Place(fault.b), fault.lasts);
      case FaultKind::kReset:
        cluster_.world.Trace("schedule", nodes_[fault.a]->process.name, " LOSES ITS CONNECTIONS to other nodes");
        return nodes_[fault.a]->BreakConnections();
      case FaultKind::kSlowDisk: return coordinator_->SetDisk(fault.lasts / 4);
    }
  }

  // Nothing may be left of workers and jobs that have ended.
  void AwaitBaseline(absl::Time calm) {
    const auto leftovers = [this] {
      std::string text;
      for (const auto& node : nodes_) text += node->Leftovers();
      if (!coordinator_->process.up) return absl::StrCat(text, "coordinator is down");
      const v1::GetClusterStatusResponse status = coordinator_->Status();
      // A release that is lost, or overtaken by a report of the job, is not repeated: a known limitation.
      const bool releases_arrive = faults_.faults.empty() && faults_.network.loss == 0 && faults_.network.delay == 0 &&
                                   faults_.network.duplication == 0;
      if (status.jobs_size() > 0 && releases_arrive) absl::StrAppend(&text, "coordinator: ", status.jobs_size(), " jobs; ");
      if (status.nodes_size() != static_cast<int>(nodes_.size())) {
        absl::StrAppend(&text, "coordinator: ", status.nodes_size(), " members of ", nodes_.size());
      }
      return text;
    };
    World& world = cluster_.world;
    const absl::Time until = std::max(world.now(), calm) + cluster_.timeouts.orphan + absl::Seconds(40);
    while (world.now() < until && !leftovers().empty()) {
      world.RunUntil(world.now() + absl::Seconds(1), [] { return false; });
    }
    result_.kept = coordinator_->process.up ? static_cast<uint64_t>(coordinator_->Status().jobs_size()) : 0;
    Event event;
    event.what = What::kBaseline;
    event.text = leftovers();
    cluster_.Record(std::move(event));
  }

  [[nodiscard]] std::string Describe() const {
    std::string text;
    for (const auto& worker : workers_) text += worker->Describe();
    for (const auto& node : nodes_) absl::StrAppend(&text, node->process.name, ": ", node->Describe());
    return text;
  }

  const SimOptions options_;
  Random random_;
  Cluster cluster_;
  SimResult result_;
  FaultPlan faults_;
  v1::JobSpec job_;
  uint32_t nodes_wanted_ = 1;
  uint32_t workers_wanted_ = 1;
  std::unique_ptr<CoordinatorProcess> coordinator_;
  std::vector<std::unique_ptr<NodeProcess>> nodes_;
  std::vector<std::unique_ptr<WorkerProcess>> workers_;
  std::set<WorkerProcess*> restarting_;
  uint64_t start_ = 0;
  uint64_t restarts_ = 0;
  absl::Time lost_since_ = absl::InfiniteFuture();
  std::set<uint32_t> drained_;  // as operators want it
  bool done_ = false;
};

}  // namespace

SimResult RunSchedule(uint64_t seed, const SimOptions& options) { return Simulation(seed, options).Run(); }

}  // namespace dmuon::sim
