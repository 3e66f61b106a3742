// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A node in the test's process, and workers that speak to its engine without sockets but with a real
// arena channel and real arenas.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/base/metrics.h"
#include "daemon/coordinator/host.h"
#include "daemon/coordinator/local_link.h"
#include "daemon/node/engine.h"
#include "daemon/transport/local_transport.h"
#include "dmuon/v1/node.pb.h"
#include "kernels/backend.h"
#include "wire/arena.h"

namespace dmuon::node {

class RecordingLink;

// The value of the sample that begins with `series`; 0 when there is none.
double CounterOf(const Metrics& metrics, const std::string& series);

// Whether the engine has dropped all its jobs within ten seconds.
bool HasNoJobSoon(Engine& engine);

// A standalone node: coordinator host, local link, engine.
class TestNode {
 public:
  explicit TestNode(EngineOptions options = {}, const std::string& backend = "cpu");
  TestNode(EngineOptions options, std::unique_ptr<kernels::Backend> backend);
  ~TestNode();
  Engine& engine() { return *engine_; }
  // All that the coordinator has told the node.
  [[nodiscard]] std::vector<v1::WatchPlansResponse> events() const;
  // Tells the node `event`, as one that was long on its way.
  void Replay(const v1::WatchPlansResponse& event);
  [[nodiscard]] double Counter(const std::string& series) const {
    return CounterOf(metrics_, series);
  }

 private:
  Metrics metrics_;
  std::unique_ptr<kernels::Backend> backend_;
  std::unique_ptr<coordinator::Host> host_;
  std::unique_ptr<RecordingLink> link_;
  std::unique_ptr<Engine> engine_;
};

// Several nodes under one coordinator, connected by the local transport.
class TestCluster {
 public:
  // Nodes "node-0", "node-1", ... all with `options`, each with its own of `stores`, if there are any. Those from
  // `first_for_all` on own units of all jobs.
  explicit TestCluster(size_t nodes, const EngineOptions& options = {}, const std::vector<checkpoint::Store*>& stores = {},
                       size_t first_for_all = SIZE_MAX);
  ~TestCluster();
  Engine& engine(size_t node) { return *nodes_[node]->engine; }
  transport::Switchboard& switchboard() { return switchboard_; }
  coordinator::Host& coordinator() { return *host_; }
  // As if the node's process were killed, and started again with nothing.
  void Kill(size_t node);
  void Restart(size_t node);
  // What nodes hold they tell the coordinator only when they connect to each other, or (false) at once again, and now.
  void HoldNews(bool held);
  // Nothing that the coordinator says reaches the node, as between a Join and the watch that follows it.
  void Deafen(size_t node, bool deaf);
  // All nodes are out, as after a stop of the coordinator's process that was longer than a lease.
  void LetLeasesEnd();
  // Of all nodes together.
  [[nodiscard]] double Counter(const std::string& series) const {
    return CounterOf(metrics_, series);
  }

 private:
  struct Node {
    EngineOptions options;
    std::unique_ptr<RecordingLink> link;
    std::unique_ptr<Engine> engine;
  };
  Metrics metrics_;
  transport::Switchboard switchboard_;
  std::unique_ptr<kernels::Backend> backend_;
  std::atomic<int64_t> stopped_seconds_ = 0;
  std::unique_ptr<coordinator::Host> host_;
  std::vector<std::unique_ptr<Node>> nodes_;
};

// A job to register: groups 0 (muon) and 1 (adamw), tensors as added.
class TestJob {
 public:
  explicit TestJob(const std::string& id, uint32_t world_size);

  v1::Tensor* Add(const std::string& name, const std::vector<int64_t>& shape, uint32_t group = 0);
  v1::JobSpec spec;
};

// The rows that torch.chunk gives to `rank` of `world`: ceil-sized, then a rest, then nothing.
wire::Box RowShard(const v1::Tensor& tensor, uint32_t rank, uint32_t world);
wire::Box Whole(const v1::Tensor& tensor);

class TestWorker {
 public:
  TestWorker(Engine* engine, const TestJob* job, uint32_t rank)
      : engine_(engine), job_(job), rank_(rank) {}

  // Row shards, reduced; change them before Register.
  std::vector<wire::ShardBoxes> DefaultShards() const;

  absl::Status Open(const std::string& incarnation = "test");
  // Asynchronous halves of Register, Begin and Step: all ranks start before any waits.
  void StartRegister(std::vector<wire::ShardBoxes> shards);
  absl::Status FinishRegister();  // and maps the arena
  void StartBegin(bool must_resume = false);
  absl::StatusOr<v1::BeginResponse> FinishBegin();
  void StartStep(uint64_t step, double lr = 0.1);
  absl::StatusOr<v1::StepResponse> FinishStep();
  // Whether FinishStep would not wait.
  [[nodiscard]] bool answered() const { return stepped_.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }
  void StartRestore(const std::string& name);
  absl::StatusOr<v1::RestoreResponse> FinishRestore();
  // The memfd that the node's part of the state of `step` is in.
  absl::StatusOr<wire::ScopedFd> Export(uint64_t step);
  absl::Status Release();
  // Brings a state, until the engine has it.
  absl::Status Offer(wire::ScopedFd state);
  void StartImport(const std::string& digest);
  absl::StatusOr<v1::ImportResponse> FinishImport();
  // Calls for a checkpoint at `step`; `wait`: until it exists.
  absl::Status Save(const std::string& name, uint64_t step, bool wait = false);
  // Starts a step on the arena channel instead, and waits for the word that answers it.
  absl::Status Ring(uint64_t step, double lr = 0.1);
  // As before gradients are marked one by one.
  absl::Status ExpectGradients(uint64_t step);
  uint64_t AwaitAnswerWord();
  [[nodiscard]] wire::ArenaHeader& header() const { return arena_.header(); }
  [[nodiscard]] uint64_t param_word(size_t tensor) const {
    return arena_.entry(tensor).param_word.Load();
  }
  absl::Status Close();
  // Its daemon has been started again: what comes next goes to this one.
  void MoveTo(Engine* engine) { engine_ = engine; }
  // What it has registered.
  [[nodiscard]] const std::vector<wire::ShardBoxes>& shards() const { return shards_; }
  // As the kernel would tell of a killed process.
  void Die();
  // Opens, registers and begins as another incarnation. The job is planned.
  absl::StatusOr<v1::BeginResponse> Return(const std::string& incarnation,
                                           std::vector<wire::ShardBoxes> shards);

  std::span<float> grad(size_t tensor);
  std::span<float> param(size_t tensor);
  std::span<const uint16_t> param_bf16(size_t tensor);
  void Submit(size_t tensor, uint64_t step, wire::WordState state = wire::WordState::kReady);
  // Fills a gradient, or every one, from a function of (tensor, global index) and submits it.
  using GradientValue = std::function<float(size_t tensor, int64_t index, uint64_t step)>;
  using ParamValue = std::function<float(size_t tensor, int64_t index)>;
  void FillAndSubmit(size_t tensor, uint64_t step, const GradientValue& value);
  void FillAndSubmit(uint64_t step, const GradientValue& value);
  void FillParams(const ParamValue& value);

  uint64_t generation = 0;
  double momentum = 0.95;
  double weight_decay = 0.1;
  double waited_seconds = 0.0;
  std::vector<v1::RowFactors> row_factors;

 private:
  [[nodiscard]] v1::StepRequest RequestOf(uint64_t step, double lr) const;
  template <typename Fn>
  void ForEachElement(size_t tensor, const wire::Box& box, Fn&& fn) const;

  Engine* engine_;
  const TestJob* job_;
  uint32_t rank_;
  uint64_t session_ = 0;
  wire::ScopedFd channel_;
  wire::ScopedFd daemon_channel_;
  std::vector<wire::ShardBoxes> shards_;
  wire::Arena arena_;
  std::future<absl::StatusOr<v1::RegisterResponse>> registered_;
  std::future<absl::StatusOr<v1::BeginResponse>> begun_;
  std::future<absl::StatusOr<v1::StepResponse>> stepped_;
  std::future<absl::StatusOr<v1::RestoreResponse>> restored_;
  std::future<absl::StatusOr<v1::ImportResponse>> imported_;
};

// All workers of a job, started with row shards and the same initial parameters.
class TestRun {
 public:
  TestRun(Engine* engine, const TestJob& job);
  TestRun(const std::vector<Engine*>& engines, const TestJob& job);  // one a rank
  // Registers and begins; the first status that is not OK.
  absl::Status Start();
  absl::Status Start(const std::vector<std::vector<wire::ShardBoxes>>& shards,
                     const TestWorker::ParamValue& params = Param);
  // One step of all workers with deterministic gradients; the answers by rank.
  std::vector<absl::StatusOr<v1::StepResponse>> Step(uint64_t step);
  std::vector<absl::StatusOr<v1::StepResponse>> StepAsSubmitted(uint64_t step, double lr = 0.1);
  // By all workers; the first error. A checkpoint is called for by all, then waited for.
  absl::Status Save(const std::string& name, uint64_t step);
  absl::StatusOr<uint64_t> Restore(const std::string& name);  // the step
  // The tensor put together from the workers' row shards.
  std::vector<float> Gathered(size_t tensor);
  TestWorker& operator[](size_t rank) { return *workers_[rank]; }
  [[nodiscard]] size_t size() const { return workers_.size(); }

  static float Param(size_t tensor, int64_t index);
  static float Gradient(size_t tensor, int64_t index, uint64_t step);

 private:
  std::vector<std::unique_ptr<TestWorker>> workers_;
};

}  // namespace dmuon::node
