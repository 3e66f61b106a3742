// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// When a job is saved and under which name: by its workers' call, an operator's, or its schedule. The state is copied
// between two steps; the copy is written (saver.h) while the next steps run. Copies are made one after the other, so
// that there is never more than one.
//
// The job's thread only, but for Status.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/base/coordinator_link.h"
#include "daemon/base/metrics.h"
#include "daemon/checkpoint/store.h"
#include "daemon/node/memory_budget.h"
#include "daemon/node/saver.h"
#include "daemon/node/step_pipeline.h"
#include "dmuon/v1/node.pb.h"
#include "dmuon/v1/plan.pb.h"
#include "dmuon/v1/tensor.pb.h"
#include "wire/mutex.h"

namespace dmuon::node {

class JobCheckpoints {
 public:
  struct Environment {
    std::string node_id;
    checkpoint::Store* store = nullptr;  // null: the daemon keeps no checkpoints
    CoordinatorLink* link = nullptr;
    MemoryBudget* budget = nullptr;
    Metrics* metrics = nullptr;
    absl::Duration peer_timeout;
    std::function<void(std::function<void()>)> post;  // runs something on the job's thread
  };
  // `job`, `plan` and `pipeline` outlive it.
  JobCheckpoints(Environment environment, const v1::JobSpec& job, const v1::Plan& plan, StepPipeline* pipeline);
  ~JobCheckpoints();

  using Reply = std::function<void(const absl::Status&)>;
  // Saves the state, which is of `step`. `copied` is answered when training may go on, `exists` when the checkpoint
  // does, or at the deadline; each may be null. Asked again for the same name and step, it saves once; so it is known
  // what became of the last 16, those of the schedule counted.
  void Save(const std::string& name, uint64_t step, absl::Time deadline, Reply copied, Reply exists);
  // Whether that is under way, or done: then `step` need not be the state's any more.
  [[nodiscard]] bool Knows(const std::string& name, uint64_t step) const { return Find(name, step, false) != nullptr; }
  // Saves after the next step that all nodes do, and answers when it exists.
  void SaveNext(const std::string& name, absl::Time deadline, std::function<void(const absl::StatusOr<uint64_t>&)> reply);

  // What this node wishes to have saved after `step`, which is about to run; empty: nothing.
  [[nodiscard]] std::string WishFor(uint64_t step) const;
  // All nodes have done `step`; `save`: what they have agreed on.
  void StepDone(uint64_t step, const std::string& save);

  // Of the state under another plan from now on. When nothing is under way.
  void GoOver(const v1::Plan& plan, StepPipeline* pipeline) {
    plan_ = &plan;
    pipeline_ = pipeline;
  }
  // Whether something is being written, or waits for that.
  [[nodiscard]] bool busy() const { return saving_.has_value() || !pending_.empty(); }
  // Whether a state that is to be saved has yet to be copied.
  [[nodiscard]] bool has_yet_to_copy() const { return !pending_.empty(); }
  // Steps have been undone: the same step again is another one.
  void WentBack() { ++life_; }
  // The state becomes that of a checkpoint of this job, wherever its files are. Errors as of StepPipeline::Restore.
  absl::StatusOr<StepPipeline::Restored> Restore(const std::string& name, absl::Time deadline);
  // Of another source; `wanted` as of StepPipeline::Restore.
  absl::StatusOr<StepPipeline::Restored> Restore(const RestoreSource& source, const std::string& wanted, absl::Time deadline);

  // Answers who has waited too long.
  void Tick(absl::Time now);
  [[nodiscard]] absl::Time next_deadline() const;
  // Until nothing is being written.
  void Finish();

  // Any thread.
  [[nodiscard]] v1::CheckpointStatus Status() const;

 private:
  struct Id {
    std::string name;
    uint64_t step = 0;
    uint64_t life = 0;  // the same step again, after a checkpoint was restored, is another one
    friend bool operator==(const Id&, const Id&) = default;
  };
  struct Outcome {
    Id id;
    absl::Status status;
  };
  struct Waiter {
    Id id;
    absl::Time deadline;
    Reply reply;
  };
  struct Pending {  // for the one before it
    Id id;
    Reply copied;
  };
  struct Wish {
    std::string name;
    absl::Time deadline;
    std::function<void(const absl::StatusOr<uint64_t>&)> reply;
  };

  absl::Status CheckStore() const;
  // One that is known, in whatever life or in this one only; null: none.
  [[nodiscard]] const Id* Find(const std::string& name, uint64_t step, bool in_this_life) const;
  // Null unless it has ended, and is remembered.
  [[nodiscard]] const Outcome* OutcomeOf(const Id& id) const;
  absl::Status Begin(const Id& id);
  void Ended(const Id& id, double seconds, const absl::StatusOr<uint64_t>& bytes);
  void AnswerWaiters(const Id& id, const absl::Status& status);
  void SaveScheduled(const Id& id);
  void HasNoPart(const Id& id, const absl::Status& why);

  const Environment environment_;
  const v1::JobSpec* const job_;
  const v1::Plan* plan_;
  StepPipeline* pipeline_;
  uint64_t life_ = 0;  // grows when a checkpoint is restored
  std::optional<Id> saving_;
  std::deque<Pending> pending_;
  std::vector<Waiter> waiters_;
  std::deque<Wish> wishes_;
  std::deque<Outcome> ended_;  // the last kOutcomes, oldest first
  absl::Time scheduled_at_;  // when the schedule's last one began

  mutable wire::Mutex mu_;  // leaf lock
  v1::CheckpointStatus status_ ABSL_GUARDED_BY(mu_);
  absl::Time saved_at_ ABSL_GUARDED_BY(mu_);

  std::unique_ptr<Saver> saver_;  // last: its thread ends first
};

}  // namespace dmuon::node
