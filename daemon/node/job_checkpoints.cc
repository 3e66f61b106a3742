// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/job_checkpoints.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/base/version.h"
#include "daemon/checkpoint/names.h"
#include "daemon/node/checkpoint_files.h"
#include "wire/error.h"

namespace dmuon::node {
namespace {

using checkpoint::AutomaticName;

constexpr size_t kOutcomes = 16;

absl::Status Refusal(absl::StatusCode code, const std::string& why) {
  return wire::Error(code, v1::ERROR_REASON_CHECKPOINT, why);
}

// Without its parts.
checkpoint::Manifest ManifestOf(const v1::JobSpec& job, const v1::Plan& plan, const std::string& name, uint64_t step) {
  checkpoint::Manifest manifest;
  manifest.job_id = job.job_id();
  manifest.name = name;
  manifest.step = step;
  manifest.generation = plan.generation();
  manifest.automatic = name == AutomaticName(step);
  manifest.version = std::string(Version());
  return manifest;
}

}  // namespace

JobCheckpoints::JobCheckpoints(Environment environment, const v1::JobSpec& job, const v1::Plan& plan,
                               StepPipeline* pipeline)
    : environment_(std::move(environment)), job_(&job), plan_(&plan), pipeline_(pipeline), scheduled_at_(MonotonicNow()) {
  if (environment_.store == nullptr) return;
  // Of a process before this one.
  environment_.store->Tidy(job.job_id(), environment_.node_id, job.checkpoints().keep()).IgnoreError();
  saver_ = std::make_unique<Saver>(environment_.node_id, environment_.store, environment_.link,
                                   environment_.peer_timeout);
}

JobCheckpoints::~JobCheckpoints() = default;

absl::Status JobCheckpoints::CheckStore() const { return node::CheckStore(environment_.store, environment_.node_id); }

const JobCheckpoints::Id* JobCheckpoints::Find(const std::string& name, uint64_t step, bool in_this_life) const {
  const auto is_it = [&](const Id& id) {
    return id.name == name && id.step == step && (!in_this_life || id.life == life_);
  };
  if (saving_.has_value() && is_it(*saving_)) return &*saving_;
  for (const Pending& pending : pending_) {
    if (is_it(pending.id)) return &pending.id;
  }
  const auto ended = std::find_if(ended_.rbegin(), ended_.rend(), [&](const Outcome& outcome) { return is_it(outcome.id); });
  return ended == ended_.rend() ? nullptr : &ended->id;
}

const JobCheckpoints::Outcome* JobCheckpoints::OutcomeOf(const Id& id) const {
  const auto found = std::find_if(ended_.rbegin(), ended_.rend(), [&](const Outcome& outcome) { return outcome.id == id; });
  return found == ended_.rend() || saving_ == id ? nullptr : &*found;
}

void JobCheckpoints::Save(const std::string& name, uint64_t step, absl::Time deadline, Reply copied, Reply exists) {
  const auto answer = [&](const absl::Status& status) {
    if (copied) copied(status);
    if (exists) exists(status);
  };
  // Who only waits, or comes after later steps, means the one that was called for, whatever has been restored since.
  const bool can_copy = copied && pipeline_->reached_step() == step;
  const Id* const known = Find(name, step, /*in_this_life=*/can_copy);
  const Id id = known != nullptr ? *known : Id{name, step, life_};
  if (absl::Status status = CheckStore(); !status.ok()) {
    HasNoPart(id, status);
    return answer(status);
  }
  // One that has failed is made anew for who can still have it.
  if (const Outcome* const ended = OutcomeOf(id); ended != nullptr && (ended->status.ok() || !can_copy)) {
    return answer(absl::Status(ended->status));
  }
  if (exists) waiters_.push_back({id, deadline, std::exchange(exists, nullptr)});
  if (saving_ == id) return answer(absl::OkStatus());
  if (saving_.has_value()) {
    pending_.push_back({id, std::move(copied)});
    return;
  }
  const absl::Status status = Begin(id);
  answer(status);
  if (!status.ok()) HasNoPart(id, status);
}

// Copies the state, and has it written.
absl::Status JobCheckpoints::Begin(const Id& id) {
  const absl::Time begun = MonotonicNow();
  DMUON_ASSIGN_OR_RETURN(MemoryBudget::Share share,
                         environment_.budget->Take(pipeline_->state_bytes(), absl::StrCat("a copy of the state of job '", job_->job_id(),
                                                                       "' for checkpoint '", id.name, "'")));
  DMUON_ASSIGN_OR_RETURN(checkpoint::Image image, pipeline_->Copy());
  environment_.metrics->Observe(MetricId::kCheckpointCopy, {job_->job_id()},
                                absl::ToDoubleSeconds(MonotonicNow() - begun));
  saving_ = id;
  saver_->Start({ManifestOf(*job_, *plan_, id.name, id.step), std::move(image), std::move(share),
                 plan_->nodes_size() == 1, job_->checkpoints().keep()},
                [this, id, begun](const absl::StatusOr<uint64_t>& written) {
                  const double seconds = absl::ToDoubleSeconds(MonotonicNow() - begun);  // the job may be in a step
                  environment_.post([this, id, seconds, written] { Ended(id, seconds, written); });
                });
  return absl::OkStatus();
}

void JobCheckpoints::Ended(const Id& id, double seconds, const absl::StatusOr<uint64_t>& bytes) {
  const std::string& job = job_->job_id();
  environment_.metrics->Observe(MetricId::kCheckpointDuration, {job, "save", bytes.ok() ? "ok" : "error"}, seconds);
  if (bytes.ok()) {
    environment_.metrics->Increment(MetricId::kCheckpointBytes, {job, "save"}, static_cast<double>(*bytes));
    environment_.metrics->Set(MetricId::kCheckpointLastSuccess, {job},
                              absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()));
    LogInfo("job ", job, ": checkpoint '", id.name, "' of step ", id.step, " exists: ", *bytes, " bytes here, ",
            absl::FormatDuration(absl::Seconds(seconds)));
  } else {
    LogError("job ", job, ": no checkpoint '", id.name, "' of step ", id.step, ": ", bytes.status().message());
  }
  saving_.reset();
  ended_.push_back({id, bytes.status()});
  if (ended_.size() > kOutcomes) ended_.pop_front();
  {
    wire::MutexLock lock(mu_);
    status_.set_error(std::string(bytes.status().message()));
    if (bytes.ok()) {
      status_.set_name(id.name);
      status_.set_step(id.step);
      saved_at_ = MonotonicNow();
    }
  }
  AnswerWaiters(id, bytes.status());
  while (!pending_.empty() && !saving_.has_value()) {
    const Pending next = std::move(pending_.front());
    pending_.pop_front();
    absl::Status status = pipeline_->reached_step() == next.id.step
                              ? Begin(next.id)
                              : Refusal(absl::StatusCode::kAborted,
                                        absl::StrCat("checkpoint '", next.id.name, "' of step ", next.id.step,
                                                     ": while the one before it was written the job went on to step ",
                                                     pipeline_->reached_step()));
    if (next.copied) next.copied(status);
    // One copy is for all workers that have called for it.
    for (Pending& other : std::exchange(pending_, {})) {
      if (other.id != next.id) {
        pending_.push_back(std::move(other));
      } else if (other.copied) {
        other.copied(status);
      }
    }
    if (!status.ok()) HasNoPart(next.id, status);
  }
}

void JobCheckpoints::AnswerWaiters(const Id& id, const absl::Status& status) {
  std::erase_if(waiters_, [&](const Waiter& waiter) {
    if (waiter.id != id) return false;
    waiter.reply(status);
    return true;
  });
}

void JobCheckpoints::SaveNext(const std::string& name, absl::Time deadline,
                              std::function<void(const absl::StatusOr<uint64_t>&)> reply) {
  if (absl::Status status = CheckStore(); !status.ok()) return reply(status);
  wishes_.push_back({name, deadline, std::move(reply)});
}

// By time only one node decides: clocks differ.
std::string JobCheckpoints::WishFor(uint64_t step) const {
  if (!wishes_.empty()) return wishes_.front().name;
  const double seconds = job_->checkpoints().every_seconds();
  const bool decides = plan_->nodes(0) == environment_.node_id;
  if (!decides || seconds <= 0.0 || MonotonicNow() < scheduled_at_ + absl::Seconds(seconds)) return {};
  return AutomaticName(step);
}

void JobCheckpoints::StepDone(uint64_t step, const std::string& save) {
  const uint32_t every = job_->checkpoints().every_steps();
  const std::string name = save.empty() && every > 0 && step % every == 0 ? AutomaticName(step) : save;
  if (name.empty()) return;
  if (name == AutomaticName(step)) scheduled_at_ = MonotonicNow();
  const Id id{name, step, life_};
  if (wishes_.empty() || wishes_.front().name != name) return SaveScheduled(id);
  const Wish wish = std::move(wishes_.front());
  wishes_.pop_front();
  Save(name, step, wish.deadline, nullptr, [step, reply = wish.reply](const absl::Status& status) {
    if (!status.ok()) return reply(status);
    reply(step);
  });
}

// Nobody waits for it. One that comes while the one before it is still being written falls out.
void JobCheckpoints::SaveScheduled(const Id& id) {
  absl::Status status = CheckStore();
  if (status.ok() && saving_.has_value()) {
    status = Refusal(absl::StatusCode::kUnavailable, absl::StrCat("checkpoint '", saving_->name, "' is still being written"));
  }
  if (status.ok()) status = Begin(id);
  if (!status.ok()) HasNoPart(id, status);
}

// Neither who waits for it here nor the job's other nodes need wait any more.
void JobCheckpoints::HasNoPart(const Id& id, const absl::Status& why) {
  AnswerWaiters(id, why);
  LogWarning("job ", job_->job_id(), ": no checkpoint '", id.name, "' of step ", id.step, ": ", why.message());
  environment_.metrics->Observe(MetricId::kCheckpointDuration, {job_->job_id(), "save", "error"}, 0.0);
  {
    wire::MutexLock lock(mu_);
    status_.set_error(std::string(why.message()));
  }
  if (plan_->nodes_size() == 1) return;
  const checkpoint::Manifest manifest = ManifestOf(*job_, *plan_, id.name, id.step);
  environment_.link->ReportPart(PartReport(manifest, why)).status().IgnoreError();
}

absl::StatusOr<StepPipeline::Restored> JobCheckpoints::Restore(const std::string& name, absl::Time deadline) {
  return Restore(CheckpointFiles(environment_.store, environment_.node_id, job_->job_id(), name), name, deadline);
}

absl::StatusOr<StepPipeline::Restored> JobCheckpoints::Restore(const RestoreSource& source, const std::string& wanted,
                                                               absl::Time deadline) {
  const absl::Time begun = MonotonicNow();
  const std::string& job = job_->job_id();
  absl::StatusOr<StepPipeline::Restored> restored = pipeline_->Restore(source, wanted, *environment_.budget, deadline);
  const double seconds = absl::ToDoubleSeconds(MonotonicNow() - begun);
  environment_.metrics->Observe(MetricId::kCheckpointDuration, {job, "restore", restored.ok() ? "ok" : "error"}, seconds);
  if (!restored.ok()) {
    LogWarning("job ", job, ": not restored from ", source.name(), ": ", restored.status().message());
    return restored;
  }
  ++life_;
  environment_.metrics->Increment(MetricId::kCheckpointBytes, {job, "restore"},
                                  static_cast<double>(pipeline_->state_bytes()));
  environment_.metrics->Increment(MetricId::kCheckpointBytes, {job, "fetch"}, static_cast<double>(restored->fetched_bytes));
  LogInfo("job ", job, ": restored from ", restored->id, " in ", absl::FormatDuration(absl::Seconds(seconds)), ", ",
          restored->fetched_bytes, " bytes of it from other nodes");
  return restored;
}

void JobCheckpoints::Tick(absl::Time now) {
  std::erase_if(waiters_, [&](const Waiter& waiter) {
    if (waiter.deadline > now) return false;
    waiter.reply(wire::Error(absl::StatusCode::kDeadlineExceeded, v1::ERROR_REASON_CHECKPOINT,
                             absl::StrCat("checkpoint '", waiter.id.name, "' of step ", waiter.id.step,
                                          " does not exist yet; ", saver_->Progress())));
    return true;
  });
  std::erase_if(wishes_, [&](const Wish& wish) {
    if (wish.deadline > now) return false;
    wish.reply(wire::Error(absl::StatusCode::kDeadlineExceeded, v1::ERROR_REASON_CHECKPOINT,
                           absl::StrCat("job '", job_->job_id(), "' has done no step that checkpoint '", wish.name,
                                        "' could be made after")));
    return true;
  });
}

absl::Time JobCheckpoints::next_deadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const Wish& wish : wishes_) next = std::min(next, wish.deadline);
  for (const Waiter& waiter : waiters_) next = std::min(next, waiter.deadline);
  return next;
}

void JobCheckpoints::Finish() {
  if (saver_ != nullptr) saver_->Finish();
}

v1::CheckpointStatus JobCheckpoints::Status() const {
  wire::MutexLock lock(mu_);
  v1::CheckpointStatus status = status_;
  if (!status.name().empty()) status.set_age_seconds(absl::ToDoubleSeconds(MonotonicNow() - saved_at_));
  if (saver_ != nullptr) status.set_progress(saver_->Progress());
  return status;
}

}  // namespace dmuon::node
