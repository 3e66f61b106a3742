// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "tests/daemon/node/test_node.h"

#include <sys/socket.h>

#include <array>
#include <cmath>
#include <utility>

#include "daemon/base/clock.h"
#include "wire/arena_channel.h"
#include "wire/error.h"
#include "wire/grpc_status.h"

namespace dmuon::node {
namespace {

// Far above anything a test waits for; only a hang reaches it.
constexpr auto kPatience = std::chrono::seconds(60);
constexpr double kMuonMomentum = 0.95;

// As the gRPC service: a reply that dies unused says UNAVAILABLE.
template <typename Response>
struct Answer {
  std::promise<absl::StatusOr<Response>> promise;
  bool sent = false;
  ~Answer() {
    if (!sent) promise.set_value(absl::UnavailableError("the reply died unused"));
  }
};

template <typename Response>
Reply<Response> Into(std::future<absl::StatusOr<Response>>& future) {
  auto answer = std::make_shared<Answer<Response>>();
  future = answer->promise.get_future();
  return [answer](absl::StatusOr<Response> result) {
    answer->sent = true;
    answer->promise.set_value(std::move(result));
  };
}

template <typename Response>
absl::StatusOr<Response> Get(std::future<absl::StatusOr<Response>>& future) {
  if (future.wait_for(kPatience) != std::future_status::ready) {
    return absl::InternalError("the engine never answered");
  }
  return future.get();
}

absl::Time Deadline() { return MonotonicNow() + absl::Seconds(50); }

}  // namespace

// The local link, with a memory, which may leave out what is new, or what is told.
class RecordingLink final : public CoordinatorLink {
 public:
  explicit RecordingLink(std::unique_ptr<CoordinatorLink> link) : link_(std::move(link)) {}

  void Start(PlanSink sink, std::function<v1::JoinRequest()> join) override {
    sink_ = std::move(sink);
    link_->Start(
        [this](const v1::WatchPlansResponse& event) {
          {
            wire::MutexLock lock(mu_);
            events_.push_back(event);
          }
          if (!deaf_) sink_(event);
        },
        std::move(join));
  }
  void Stop() override { link_->Stop(); }
  absl::Status RegisterWorker(v1::RegisterWorkerRequest request) override {
    return link_->RegisterWorker(std::move(request));
  }
  absl::Status ReleaseJob(v1::ReleaseJobRequest request) override {
    return link_->ReleaseJob(std::move(request));
  }
  absl::StatusOr<uint64_t> NextAttempt(v1::Meeting meeting) override {
    return link_->NextAttempt(std::move(meeting));
  }
  absl::Status SetKey(v1::Meeting meeting, const std::string& key,
                      const std::string& value) override {
    return link_->SetKey(std::move(meeting), key, value);
  }
  absl::StatusOr<std::optional<std::string>> GetKey(v1::Meeting meeting,
                                                    const std::string& key) override {
    return link_->GetKey(std::move(meeting), key);
  }
  void Rejoin() override {
    if (!silent_) link_->Rejoin();
  }
  bool AwaitRejoin(absl::Duration patience) override { return silent_ || link_->AwaitRejoin(patience); }
  absl::StatusOr<v1::ReportPartResponse> ReportPart(v1::ReportPartRequest request) override {
    return link_->ReportPart(std::move(request));
  }
  std::string address() const override { return link_->address(); }

  void Replay(const v1::WatchPlansResponse& event) { sink_(event); }
  void SetDeaf(bool deaf) { deaf_ = deaf; }
  void SetSilent(bool silent) {
    silent_ = silent;
    Rejoin();
  }
  std::vector<v1::WatchPlansResponse> events() const {
    wire::MutexLock lock(mu_);
    return events_;
  }

 private:
  const std::unique_ptr<CoordinatorLink> link_;
  PlanSink sink_;
  std::atomic<bool> silent_ = false;
  std::atomic<bool> deaf_ = false;
  mutable wire::Mutex mu_;
  std::vector<v1::WatchPlansResponse> events_ ABSL_GUARDED_BY(mu_);
};

TestNode::TestNode(EngineOptions options, const std::string& backend)
    : TestNode(std::move(options), kernels::MakeBackend(backend).value()) {}

TestNode::TestNode(EngineOptions options, std::unique_ptr<kernels::Backend> backend) : backend_(std::move(backend)) {
  host_ = std::make_unique<coordinator::Host>(coordinator::HostOptions(),
                                              coordinator::GenerationStore(), &metrics_);
  link_ = std::make_unique<RecordingLink>(coordinator::MakeLocalLink(host_.get()));
  engine_ = std::make_unique<Engine>(std::move(options), backend_.get(), link_.get(), &metrics_,
                                     ConnectPeers());
  engine_->Start();
}

TestNode::~TestNode() { engine_->Drain(); }

std::vector<v1::WatchPlansResponse> TestNode::events() const { return link_->events(); }

void TestNode::Replay(const v1::WatchPlansResponse& event) { link_->Replay(event); }

TestCluster::TestCluster(size_t nodes, const EngineOptions& options, const std::vector<checkpoint::Store*>& stores,
                         size_t first_for_all)
    : backend_(kernels::MakeBackend("cpu").value()),
      host_(std::make_unique<coordinator::Host>(
          coordinator::HostOptions{.now = [this] { return MonotonicNow() + absl::Seconds(stopped_seconds_.load()); }},
          coordinator::GenerationStore(), &metrics_)) {
  for (size_t i = 0; i < nodes; ++i) {
    Node& node = *nodes_.emplace_back(std::make_unique<Node>());
    node.options = options;
    node.options.node_id = absl::StrCat("node-", i);
    if (!stores.empty()) node.options.checkpoints = stores[i];
    node.options.owns_all = i >= first_for_all;
    Restart(i);
  }
}

TestCluster::~TestCluster() {
  for (const auto& node : nodes_) {
    if (node->engine != nullptr) node->engine->Drain();
  }
}

void TestCluster::Kill(size_t node) {
  switchboard_.Drop(nodes_[node]->options.node_id);
  nodes_[node]->engine.reset();
  nodes_[node]->link.reset();
}

void TestCluster::Restart(size_t node) {
  const ConnectPeers connect = [this](const transport::Mesh& mesh, transport::KeyValueStore&,
                                      absl::Time) { return switchboard_.Connect(mesh); };
  Node& started = *nodes_[node];
  started.link = std::make_unique<RecordingLink>(coordinator::MakeLocalLink(host_.get()));
  started.engine = std::make_unique<Engine>(started.options, backend_.get(), started.link.get(), &metrics_, connect);
  started.engine->Start();
}

bool HasNoJobSoon(Engine& engine) {
  for (int i = 0; i < 1000 && !engine.JobStatuses().empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return engine.JobStatuses().empty();
}

void TestCluster::HoldNews(bool held) {
  for (const auto& node : nodes_) node->link->SetSilent(held);
}

void TestCluster::Deafen(size_t node, bool deaf) { nodes_[node]->link->SetDeaf(deaf); }

void TestCluster::LetLeasesEnd() {
  stopped_seconds_ += 100;
  host_->Tick();
}

double CounterOf(const Metrics& metrics, const std::string& series) {
  const std::string text = metrics.Text();
  const size_t at = text.find("\n" + series);
  if (at == std::string::npos) return 0.0;
  const size_t value = text.find("} ", at) + 2;
  return std::stod(text.substr(value, text.find('\n', value) - value));
}

TestJob::TestJob(const std::string& id, uint32_t world_size) {
  spec.set_job_id(id);
  spec.set_world_size(world_size);
  spec.set_missing_gradient(v1::MISSING_GRADIENT_ERROR);
  v1::Group* muon = spec.add_groups();
  muon->set_name("muon");
  muon->mutable_muon()->set_variant(v1::VARIANT_MUON);
  v1::Group* adamw = spec.add_groups();
  adamw->set_name("adamw");
  adamw->mutable_adamw()->set_eps(1e-8);
}

v1::Tensor* TestJob::Add(const std::string& name, const std::vector<int64_t>& shape,
                         uint32_t group) {
  v1::Tensor* tensor = spec.add_tensors();
  tensor->set_name(name);
  for (const int64_t length : shape) tensor->add_shape(length);
  tensor->set_param_dtype(v1::DTYPE_FLOAT32);
  tensor->set_grad_dtype(v1::DTYPE_FLOAT32);
  tensor->set_group(group);
  return tensor;
}

wire::Box Whole(const v1::Tensor& tensor) {
  return wire::WholeBox(
      {tensor.shape().data(), static_cast<size_t>(tensor.shape_size())});
}

wire::Box RowShard(const v1::Tensor& tensor, uint32_t rank, uint32_t world) {
  wire::Box box = Whole(tensor);
  const int64_t rows = tensor.shape(0);
  const int64_t chunk = (rows + world - 1) / world;
  box.offset[0] = std::min(rows, chunk * rank);
  box.length[0] = std::min(rows, chunk * (rank + 1)) - box.offset[0];
  return box;
}

std::vector<wire::ShardBoxes> TestWorker::DefaultShards() const {
  std::vector<wire::ShardBoxes> shards;
  for (const v1::Tensor& tensor : job_->spec.tensors()) {
    const wire::Box box = RowShard(tensor, rank_, job_->spec.world_size());
    shards.push_back({box, box, true});
  }
  return shards;
}

absl::Status TestWorker::Open(const std::string& incarnation) {
  v1::OpenRequest request;
  request.set_job_id(job_->spec.job_id());
  request.set_rank(rank_);
  request.set_world_size(job_->spec.world_size());
  request.set_incarnation(incarnation);
  request.set_protocol_version(wire::kProtocolVersion);
  std::future<absl::StatusOr<v1::OpenResponse>> opened;
  engine_->Open(request, Into(opened));
  DMUON_ASSIGN_OR_RETURN(const v1::OpenResponse response, Get(opened));
  session_ = response.session_id();
  std::array<int, 2> pair{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data()) != 0) {
    return absl::InternalError("socketpair");
  }
  channel_ = wire::ScopedFd(pair[0]);
  daemon_channel_ = wire::ScopedFd(pair[1]);
  wire::ChannelFrame hello;
  hello.session_id = session_;
  std::copy(response.token().begin(), response.token().end(), hello.token.begin());
  return engine_->Hello(hello, daemon_channel_.get(), -1);
}

void TestWorker::StartRegister(std::vector<wire::ShardBoxes> shards) {
  shards_ = std::move(shards);
  v1::RegisterRequest request;
  request.set_session_id(session_);
  *request.mutable_job() = job_->spec;
  for (size_t i = 0; i < shards_.size(); ++i) {
    v1::Shard* shard = request.add_shards();
    shard->set_tensor(static_cast<uint32_t>(i));
    *shard->mutable_grad_box() = wire::ToProto(shards_[i].grad);
    *shard->mutable_param_box() = wire::ToProto(shards_[i].param);
    shard->set_reduced(shards_[i].reduced);
  }
  engine_->Register(std::move(request), Deadline(), Into(registered_));
}

absl::Status TestWorker::FinishRegister() {
  DMUON_ASSIGN_OR_RETURN(const v1::RegisterResponse response, Get(registered_));
  generation = response.generation();
  DMUON_ASSIGN_OR_RETURN(wire::ReceivedFrame received,
                         wire::ReceiveFrame(channel_.get(), absl::Seconds(10)));
  DMUON_ASSIGN_OR_RETURN(const wire::ArenaLayout layout,
                         wire::LayOut(job_->spec, shards_, uint64_t{1} << 40));
  DMUON_ASSIGN_OR_RETURN(arena_, wire::Arena::Map(std::move(received.fd), layout, generation));
  return absl::OkStatus();
}

void TestWorker::StartBegin(bool must_resume) {
  v1::BeginRequest request;
  request.set_must_resume(must_resume);
  request.set_session_id(session_);
  request.set_generation(generation);
  engine_->Begin(request, Deadline(), Into(begun_));
}

absl::StatusOr<v1::BeginResponse> TestWorker::FinishBegin() { return Get(begun_); }

v1::StepRequest TestWorker::RequestOf(uint64_t step, double lr) const {
  v1::StepRequest request;
  request.set_session_id(session_);
  request.set_generation(generation);
  request.set_step(step);
  request.set_waited_seconds(waited_seconds);
  for (int group = 0; group < job_->spec.groups_size(); ++group) {
    v1::Hyper* hyper = request.add_hypers();
    hyper->set_lr(lr);
    hyper->set_weight_decay(weight_decay);
    hyper->set_momentum(group == 0 ? momentum : 0.9);
    hyper->set_beta2(kMuonMomentum);
  }
  request.mutable_row_factors()->Assign(row_factors.begin(), row_factors.end());
  return request;
}

void TestWorker::StartStep(uint64_t step, double lr) {
  engine_->Step(RequestOf(step, lr), Deadline(), Into(stepped_));
}

absl::Status TestWorker::Ring(uint64_t step, double lr) {
  header().answer_word.Store(0);
  wire::ReceivedFrame frame;
  frame.frame.type = wire::FrameType::kStep;
  frame.frame.bytes = 10'000;
  frame.payload = RequestOf(step, lr).SerializeAsString();
  return engine_->Ring(session_, frame);
}

absl::Status TestWorker::ExpectGradients(uint64_t step) {
  wire::ChannelFrame frame;
  frame.type = wire::FrameType::kGradients;
  frame.generation = generation;
  frame.bytes = step;
  return engine_->ExpectGradients(session_, frame);
}

uint64_t TestWorker::AwaitAnswerWord() {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (header().answer_word.Load() == 0 && std::chrono::steady_clock::now() < until) {
    header().answer_word.Sleep(0, std::chrono::milliseconds(100));
  }
  return header().answer_word.Load();
}

absl::StatusOr<v1::StepResponse> TestWorker::FinishStep() { return Get(stepped_); }

absl::Status TestWorker::Close() {
  v1::CloseRequest request;
  request.set_session_id(session_);
  std::future<absl::StatusOr<v1::CloseResponse>> closed;
  engine_->Close(request, Into(closed));
  return Get(closed).status();
}

void TestWorker::StartRestore(const std::string& name) {
  v1::RestoreRequest request;
  request.set_session_id(session_);
  request.set_generation(generation);
  request.set_name(name);
  engine_->Restore(request, Deadline(), Into(restored_));
}

absl::StatusOr<v1::RestoreResponse> TestWorker::FinishRestore() { return Get(restored_); }

absl::StatusOr<wire::ScopedFd> TestWorker::Export(uint64_t step) {
  v1::ExportRequest request;
  request.set_session_id(session_);
  request.set_generation(generation);
  request.set_step(step);
  std::future<absl::StatusOr<v1::ExportResponse>> exported;
  engine_->Export(request, Deadline(), Into(exported));
  DMUON_ASSIGN_OR_RETURN(const v1::ExportResponse response, Get(exported));
  DMUON_ASSIGN_OR_RETURN(wire::ReceivedFrame state, wire::ReceiveFrame(channel_.get(), absl::Seconds(10)));
  if (state.frame.type == wire::FrameType::kState && state.frame.bytes == response.bytes()) return std::move(state.fd);
  return absl::InternalError("another frame than that of the state");
}

absl::Status TestWorker::Release() { return engine_->Release(session_); }

absl::Status TestWorker::Offer(wire::ScopedFd state) {
  DMUON_RETURN_IF_ERROR(engine_->Offer(session_, std::move(state)));
  DMUON_ASSIGN_OR_RETURN(const wire::ReceivedFrame taken, wire::ReceiveFrame(channel_.get(), absl::Seconds(10)));
  return taken.frame.type == wire::FrameType::kTaken ? absl::OkStatus() : absl::InternalError("another frame");
}

void TestWorker::StartImport(const std::string& digest) {
  v1::ImportRequest request;
  request.set_session_id(session_);
  request.set_generation(generation);
  request.set_digest(digest);
  engine_->Import(request, Deadline(), Into(imported_));
}

absl::StatusOr<v1::ImportResponse> TestWorker::FinishImport() { return Get(imported_); }

absl::Status TestWorker::Save(const std::string& name, uint64_t step, bool wait) {
  v1::SaveRequest request;
  request.set_session_id(session_);
  request.set_generation(generation);
  request.set_name(name);
  request.set_step(step);
  request.set_wait(wait);
  std::future<absl::StatusOr<v1::SaveResponse>> saved;
  engine_->Save(request, Deadline(), Into(saved));
  return Get(saved).status();
}

void TestWorker::Die() {
  channel_.Reset();
  engine_->ChannelGone(session_);
  daemon_channel_.Reset();
  arena_ = wire::Arena();
}

std::span<float> TestWorker::grad(size_t tensor) {
  const std::span<std::byte> bytes = arena_.grad(tensor);
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / 4};
}

std::span<float> TestWorker::param(size_t tensor) {
  const std::span<std::byte> bytes = arena_.param(tensor);
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / 4};
}

std::span<const uint16_t> TestWorker::param_bf16(size_t tensor) {
  const std::span<std::byte> bytes = arena_.param(tensor);
  return {reinterpret_cast<const uint16_t*>(bytes.data()), bytes.size() / 2};
}

void TestWorker::Submit(size_t tensor, uint64_t step, wire::WordState state) {
  arena_.MarkGradient(tensor, step, state);
}

template <typename Fn>
void TestWorker::ForEachElement(size_t tensor, const wire::Box& box, Fn&& fn) const {
  const wire::Box whole = Whole(job_->spec.tensors(static_cast<int>(tensor)));
  wire::ForEachRun(whole, box, [&](const wire::Run& run) {
    for (int64_t i = 0; i < run.count; ++i) fn(static_cast<size_t>(run.b + i), run.a + i);
  });
}

void TestWorker::FillAndSubmit(size_t tensor, uint64_t step, const GradientValue& value) {
  ForEachElement(tensor, shards_[tensor].grad, [&](size_t local, int64_t global) {
    grad(tensor)[local] = value(tensor, global, step);
  });
  Submit(tensor, step);
}

void TestWorker::FillAndSubmit(uint64_t step, const GradientValue& value) {
  for (size_t tensor = 0; tensor < shards_.size(); ++tensor) FillAndSubmit(tensor, step, value);
}

absl::StatusOr<v1::BeginResponse> TestWorker::Return(const std::string& incarnation,
                                                     std::vector<wire::ShardBoxes> shards) {
  DMUON_RETURN_IF_ERROR(Open(incarnation));
  StartRegister(std::move(shards));
  DMUON_RETURN_IF_ERROR(FinishRegister());
  StartBegin();
  return FinishBegin();
}

void TestWorker::FillParams(const ParamValue& value) {
  for (size_t tensor = 0; tensor < shards_.size(); ++tensor) {
    if (job_->spec.tensors(static_cast<int>(tensor)).param_dtype() != v1::DTYPE_FLOAT32) continue;
    ForEachElement(tensor, shards_[tensor].param, [&](size_t local, int64_t global) {
      param(tensor)[local] = value(tensor, global);
    });
  }
}

TestRun::TestRun(Engine* engine, const TestJob& job) {
  for (uint32_t rank = 0; rank < job.spec.world_size(); ++rank) {
    workers_.push_back(std::make_unique<TestWorker>(engine, &job, rank));
  }
}

TestRun::TestRun(const std::vector<Engine*>& engines, const TestJob& job) {
  for (uint32_t rank = 0; rank < job.spec.world_size(); ++rank) {
    workers_.push_back(std::make_unique<TestWorker>(engines[rank], &job, rank));
  }
}

absl::Status TestRun::Start() {
  std::vector<std::vector<wire::ShardBoxes>> shards;
  for (const auto& worker : workers_) shards.push_back(worker->DefaultShards());
  return Start(shards);
}

absl::Status TestRun::Start(const std::vector<std::vector<wire::ShardBoxes>>& shards,
                            const TestWorker::ParamValue& params) {
  for (const auto& worker : workers_) DMUON_RETURN_IF_ERROR(worker->Open());
  for (size_t rank = 0; rank < size(); ++rank) workers_[rank]->StartRegister(shards[rank]);
  for (const auto& worker : workers_) DMUON_RETURN_IF_ERROR(worker->FinishRegister());
  for (const auto& worker : workers_) {
    worker->FillParams(params);
    worker->StartBegin();
  }
  for (const auto& worker : workers_) DMUON_RETURN_IF_ERROR(worker->FinishBegin().status());
  return absl::OkStatus();
}

std::vector<absl::StatusOr<v1::StepResponse>> TestRun::Step(uint64_t step) {
  for (const auto& worker : workers_) worker->FillAndSubmit(step, Gradient);
  return StepAsSubmitted(step);
}

std::vector<absl::StatusOr<v1::StepResponse>> TestRun::StepAsSubmitted(uint64_t step, double lr) {
  for (const auto& worker : workers_) worker->StartStep(step, lr);
  std::vector<absl::StatusOr<v1::StepResponse>> answers;
  for (const auto& worker : workers_) answers.push_back(worker->FinishStep());
  return answers;
}

absl::Status TestRun::Save(const std::string& name, uint64_t step) {
  absl::Status first;
  for (const bool wait : {false, true}) {
    for (const auto& worker : workers_) first.Update(worker->Save(name, step, wait));
  }
  return first;
}

absl::StatusOr<uint64_t> TestRun::Restore(const std::string& name) {
  for (const auto& worker : workers_) worker->StartRestore(name);
  absl::StatusOr<uint64_t> step = uint64_t{0};
  for (const auto& worker : workers_) {
    const absl::StatusOr<v1::RestoreResponse> restored = worker->FinishRestore();
    if (!step.ok()) continue;
    if (restored.ok()) {
      step = restored->last_step();
    } else {
      step = restored.status();
    }
  }
  return step;
}

std::vector<float> TestRun::Gathered(size_t tensor) {
  std::vector<float> whole;
  for (const auto& worker : workers_) {
    const std::span<float> piece = worker->param(tensor);
    whole.insert(whole.end(), piece.begin(), piece.end());
  }
  return whole;
}

float TestRun::Param(size_t tensor, int64_t index) {
  return static_cast<float>(std::sin(0.7 * static_cast<double>(index) + static_cast<double>(tensor)));
}

float TestRun::Gradient(size_t tensor, int64_t index, uint64_t step) {
  return static_cast<float>(
      std::cos(1.3 * static_cast<double>(index) + 0.9 * static_cast<double>(tensor) +
               0.37 * static_cast<double>(index % 7) * static_cast<double>(step)));
}

}  // namespace dmuon::node
