// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A job on three nodes whose processes may be lost, or get other units, while it runs. The judge is the same job
// undisturbed: gradients are multiples of 1/64, so that every bit must agree.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/daemon/node/exact_run.h"
#include "tests/daemon/node/test_node.h"
#include "wire/error.h"

namespace dmuon::node {

inline constexpr size_t kNodes = 3;
inline constexpr uint32_t kRanks = 2 * kNodes;

inline TestJob ReplicatedModel(v1::Replication replication) {
  TestJob job("model", kRanks);
  for (int layer = 0; layer < 4; ++layer) {
    job.Add(absl::StrCat("up", layer), {13, 6});
    job.Add(absl::StrCat("down", layer), {6, 13});
  }
  job.Add("norm", {7}, 1);
  job.Add("embedding", {11, 5}, 1);
  job.spec.set_replication(replication);
  return job;
}

// Two workers a node, FSDP over all of them. One more node has none; or `more` nodes, which own units of all jobs.
class ClusterRun : public ::testing::Test {
 protected:
  explicit ClusterRun(v1::Replication replication, absl::Duration step_timeout = absl::Seconds(2), size_t more = 0,
                      const std::vector<checkpoint::Store*>& stores = {})
      : job_(ReplicatedModel(replication)),
        cluster_(kNodes + std::max<size_t>(more, 1), Impatient(step_timeout), stores, more > 0 ? kNodes : SIZE_MAX) {
    std::vector<Engine*> engines;
    for (uint32_t rank = 0; rank < kRanks; ++rank) engines.push_back(&cluster_.engine(rank / 2));
    run_ = std::make_unique<TestRun>(engines, job_);
  }
  void SetUp() override { ASSERT_TRUE(run_->Start(Rows(job_, kRanks, true)).ok()); }

  static std::vector<uint32_t> RanksOf(size_t node) {
    return {static_cast<uint32_t>(2 * node), static_cast<uint32_t>(2 * node + 1)};
  }

  // Its workers have stayed, and find it started again.
  absl::StatusOr<uint64_t> ComeBack(size_t node, bool must_resume = true) {
    cluster_.Restart(node);
    return ComeBackOn(node, node, must_resume);
  }

  // Those of `node` are on another one from now on.
  absl::StatusOr<uint64_t> ComeBackOn(size_t another, size_t node, bool must_resume = true) {
    ++lives_;
    for (const uint32_t rank : RanksOf(node)) {
      (*run_)[rank].MoveTo(&cluster_.engine(another));
      DMUON_RETURN_IF_ERROR((*run_)[rank].Open(absl::StrCat("life-", lives_)));
      (*run_)[rank].StartRegister((*run_)[rank].shards());
    }
    for (const uint32_t rank : RanksOf(node)) DMUON_RETURN_IF_ERROR((*run_)[rank].FinishRegister());
    return BeginSoon(node, must_resume);
  }

  // Again and again, as clients do while nodes have not found together.
  absl::StatusOr<uint64_t> BeginSoon(size_t node, bool must_resume) {
    absl::StatusOr<uint64_t> last_step = absl::UnknownError("not asked");
    for (int i = 0; i < 20; ++i) {
      last_step = Begin(node, must_resume);
      if (wire::ReasonOf(last_step.status()) != v1::ERROR_REASON_PEER_LOST) break;
    }
    return last_step;
  }

  absl::StatusOr<uint64_t> Begin(size_t node, bool must_resume) {
    for (const uint32_t rank : RanksOf(node)) (*run_)[rank].StartBegin(must_resume);
    absl::StatusOr<uint64_t> last_step = uint64_t{0};
    for (const uint32_t rank : RanksOf(node)) {
      const absl::StatusOr<v1::BeginResponse> begun = (*run_)[rank].FinishBegin();
      if (!begun.ok()) last_step = begun.status();
      if (!begun.ok() || !last_step.ok()) continue;
      EXPECT_TRUE(begun->resumed());
      last_step = begun->last_step();
    }
    return last_step;
  }

  // A step in which `node` is killed after `moment`, and started again; where the job is then.
  absl::StatusOr<uint64_t> LoseIn(uint64_t step, size_t node, std::chrono::microseconds moment) {
    for (uint32_t rank = 0; rank < kRanks; ++rank) (*run_)[rank].FillAndSubmit(step, Exact);
    for (uint32_t rank = 0; rank < kRanks; ++rank) (*run_)[rank].StartStep(step);
    std::this_thread::sleep_for(moment);
    cluster_.Kill(node);
    for (const uint32_t rank : RanksOf(node)) Finish(rank, step);
    const absl::StatusOr<uint64_t> last_step = ComeBack(node);  // the others may be waiting for it
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      if (rank / 2 != node && (*run_)[rank].answered()) Finish(rank, step);
    }
    return last_step;  // who still waits for the step calls for it again
  }

  void Finish(uint32_t rank, uint64_t step) {
    if ((*run_)[rank].FinishStep().ok()) acknowledged_ = std::max(acknowledged_, step);
  }

  // All steps after `done`, up to `step`.
  absl::Status GoOn(uint64_t done, uint64_t step) {
    for (uint64_t next = done + 1; next <= step; ++next) DMUON_RETURN_IF_ERROR(StepUntilItWorks(*run_, next));
    return absl::OkStatus();
  }

  std::vector<std::vector<float>> Parameters() { return ParametersOf(*run_, job_); }
  std::vector<std::vector<float>> Undisturbed(uint64_t steps) const {
    TestJob alone = job_;
    alone.spec.set_replication(v1::REPLICATION_NONE);
    return node::Undisturbed(alone, Rows(alone, kRanks, true), steps);
  }

  const TestJob job_;
  TestCluster cluster_;
  std::unique_ptr<TestRun> run_;
  uint64_t acknowledged_ = 0;  // the last step that a worker was told is done
  int lives_ = 0;
};

}  // namespace dmuon::node
