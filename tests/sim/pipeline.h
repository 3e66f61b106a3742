// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The step of one job on one node: a model of daemon/node/step_pipeline.cc and step_recovery.cc, message by message, on
// digests. What the nodes conclude from their reports is the real daemon/node/round.h and recovery.h. Functions are named as those that they mirror;
// whoever changes one changes the other.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/node/round.h"
#include "dmuon/v1/plan.pb.h"
#include "dmuon/v1/tensor.pb.h"
#include "tests/sim/cluster.h"
#include "tests/sim/copies.h"
#include "tests/sim/lane.h"
#include "tests/sim/task.h"
#include "tests/sim/training.h"

namespace dmuon::sim {

// daemon/node/successor.h.
struct Successor {
  v1::Plan plan;
  std::function<bool()> ready;
};

class Pipeline {
 public:
  // `peers` is null on one node.
  Pipeline(Cluster* cluster, Process* process, const v1::JobSpec* job, const v1::Plan* plan, uint32_t self, Peers* peers);

  Task<absl::Status> Initialize(absl::Time until, bool resume);
  Task<absl::Status> Run(uint64_t step, std::string hypers, absl::Time until);
  Task<absl::Status> Help(absl::Time until);
  [[nodiscard]] bool IsAheadOf(uint64_t step) const { return reached_ > step + node::kLoaded; }
  // The parameters of `step`, to one worker.
  void Deliver(uint64_t step, uint32_t rank);
  [[nodiscard]] bool TakeWentBack() { return std::exchange(went_back_, false); }
  [[nodiscard]] bool recovering() const { return recovering_; }
  [[nodiscard]] uint64_t recoveries() const { return recoveries_; }
  [[nodiscard]] bool readmitted() const { return readmitted_; }

  // step_handover.cc: from a plan to its successor.
  struct Heir {
    std::shared_ptr<const Successor> successor;
    std::unique_ptr<Pipeline> pipeline;
  };
  void Succeed(std::shared_ptr<const Successor> successor) { successor_ = std::move(successor); }
  [[nodiscard]] Heir TakeHeir();
  // What has come of it, of the heir.
  [[nodiscard]] Event HandedOver() const;
  void ConfirmHandover() { is_over_ = heir_.pipeline != nullptr; }
  [[nodiscard]] absl::Status TakeHandoverFailure() { return std::exchange(handover_failure_, absl::OkStatus()); }

  // Of an attached worker; null while it is away.
  void SetArena(uint32_t rank, std::shared_ptr<Arena> arena) { arenas_[rank] = std::move(arena); }
  [[nodiscard]] uint64_t reached_step() const { return reached_ - node::kLoaded; }
  // What a checkpoint of this node's part has.
  [[nodiscard]] Digest PartDigest() const { return DigestOf(masters_); }

 private:
  using Parts = std::map<uint32_t, Gradient>;  // by unit

  // Without `hypers` no step is taken.
  Task<absl::Status> Reach(uint64_t target, std::optional<std::string> hypers, absl::Time until);
  Task<absl::Status> Round(uint64_t target, node::Reports reports, absl::Time until);
  Task<absl::Status> Load(absl::Time until);
  Task<absl::Status> Advance(uint64_t target, node::Reports reports, absl::Time until);
  Task<absl::Status> Publish(uint64_t target, absl::Time until);
  Task<absl::Status> ExchangeParameters(absl::Time until);
  Task<absl::Status> PublishAll(absl::Time until);
  Task<absl::Status> Settle(absl::Time until);
  Task<absl::Status> Recover(node::Reports reports, absl::Time until);
  Task<absl::Status> Readmit(node::Reports reports, absl::Time until);
  absl::Status GoBack(uint64_t step);
  Task<absl::Status> HandOver(absl::Time until);
  Task<absl::Status> MakeHeir(absl::Time until);
  Task<absl::Status> TellHandover(absl::Status mine, absl::Time until);
  [[nodiscard]] absl::StatusOr<uint64_t> StepToGoTo(const node::Reports& reports, const std::vector<bool>& lost);
  void CopyOut(uint32_t rank);
  void MarkDelivered(uint64_t step);
  Task<absl::StatusOr<node::Reports>> Assemble(v1::PeerReport mine, absl::Time until);
  Task<absl::StatusOr<node::Reports>> Tell(v1::PeerReport mine, absl::Time until);
  Task<absl::Status> FinishReduction(bool collect, absl::Time until);
  Task<absl::Status> GiveUpReduction(absl::Time until);
  [[nodiscard]] v1::PeerReport ReportOf(uint64_t target) const;
  void FindMissing(uint64_t step);
  void OpenGradients();
  void Collect();
  void Apply(uint64_t target);
  [[nodiscard]] uint32_t OwnerOf(uint32_t unit) const {
    return plan_->units(static_cast<int>(unit)).owners(0).node();
  }
  [[nodiscard]] Event EventOf(What what) const;
  [[nodiscard]] Values Owned() const;  // masters, 0 where another node is the owner

  Cluster* const cluster_;
  Process* const process_;
  const v1::JobSpec* const job_;
  const v1::Plan* const plan_;
  const uint32_t self_;
  Peers* const peers_;
  const uint32_t units_;
  std::map<uint32_t, std::shared_ptr<Arena>> arenas_;  // by rank
  Values masters_;    // of the units owned here
  Values published_;  // of all units, as they came last
  Gradients packed_;  // this node's sums, as they were sent last
  Gradients sums_;    // over all nodes, of the units owned here
  bool open_ = false;
  std::vector<uint32_t> missing_;  // ranks
  Copies copies_;
  uint64_t reached_ = 0;
  bool resume_ = false;
  uint64_t recoveries_ = 0;
  bool recovering_ = false;
  bool went_back_ = false;
  bool readmitted_ = false;
  std::shared_ptr<const Successor> successor_;
  Heir heir_;
  bool is_over_ = false;
  absl::Status handover_failure_;
  bool deaf_ = false;  // planted
  v1::StepVerdict verdict_;
};

}  // namespace dmuon::sim
