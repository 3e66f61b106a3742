// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// dmuond: the shell around an engine.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "daemon/base/failpoint.h"
#include "daemon/base/log.h"
#include "daemon/base/metrics.h"
#include "daemon/base/rpc_server.h"
#include "daemon/base/signals.h"
#include "daemon/base/version.h"
#include "daemon/checkpoint/store.h"
#include "daemon/coordinator/generation_store.h"
#include "daemon/coordinator/host.h"
#include "daemon/coordinator/local_link.h"
#include "daemon/coordinator/service.h"
#include "daemon/node/channel_server.h"
#include "daemon/node/checkpoint_service.h"
#include "daemon/node/engine.h"
#include "daemon/node/grpc_link.h"
#include "daemon/node/service.h"
#include "daemon/transport/gloo_transport.h"
#include "kernels/backend.h"
#include "wire/address.h"
#include "wire/error.h"

namespace {

using dmuon::node::Engine;
using dmuon::node::EngineOptions;

// After the engine has drained, only answers are left to send.
constexpr absl::Duration kDrainTime = absl::Seconds(1);
constexpr int kMaxThreadsPerSlot = 8;

// Empty where the user has no home.
std::string DefaultCacheDirectory() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != '\0') {
    return absl::StrCat(cache, "/dmuon");
  }
  const char* home = std::getenv("HOME");
  return home != nullptr && *home != '\0' ? absl::StrCat(home, "/.cache/dmuon") : "";
}

struct Flags {
  std::string listen = dmuon::wire::DefaultAddress();
  bool standalone = false;
  std::string coordinator;
  std::string state_dir;
  std::string node_id;
  std::string data_address = "127.0.0.1";
  std::string owns = "local";
  std::string backend = "cpu";
  std::string metrics = "127.0.0.1:0";
  std::string log_level = "info";
  uint32_t slots = 0;
  int threads_per_slot = 0;
  bool overlap = true;
  double step_timeout_seconds = 60;
  double attach_timeout_seconds = 10;
  double orphan_timeout_seconds = 3600;
  double memory_limit_gib = 0;
  std::string cache_dir = DefaultCacheDirectory();
  std::string checkpoint_dir;
  double autotune_budget_seconds = -1;
};

void DescribeBehaviour(CLI::App& app, Flags& flags) {
  app.add_option("--listen", flags.listen,
                 "Where workers and dmuonctl reach it: unix:/path (the arena channel is beside it)")
      ->envname("DMUON_ADDRESS")
      ->capture_default_str();
  auto* standalone = app.add_flag("--standalone", flags.standalone,
                                  "Run the coordinator inside: one box needs one process");
  app.add_option("--coordinator", flags.coordinator, "Address of the dmuon-coordinator to join")
      ->envname("DMUON_COORDINATOR")
      ->excludes(standalone);
  app.add_option("--state-dir", flags.state_dir,
                 "With --standalone: directory for the highest generation, so that no "
                 "plan's number is used twice over restarts")
      ->envname("DMUON_STATE_DIR");
  app.add_option("--node-id", flags.node_id, "Name of this node; default: the host name")
      ->envname("DMUON_NODE_ID");
  app.add_option("--data-address", flags.data_address,
                 "With --coordinator: IP address or host name of this node on the network that its "
                 "gradients and parameters travel to other nodes; no encryption, a trusted network "
                 "only")
      ->envname("DMUON_DATA_ADDRESS")
      ->capture_default_str();
  app.add_option("--owns", flags.owns,
                 "With --coordinator: local: matrices of the jobs whose workers are attached here; all: of every job, so that a node "
                 "without workers takes its part of their optimizers' work and state, also of those that run already")
      ->envname("DMUON_OWNS")
      ->check(CLI::IsMember({"local", "all"}))
      ->capture_default_str();
  app.add_option("--checkpoint-dir", flags.checkpoint_dir,
                 "Where checkpoints of jobs are written and restored from: a directory that all nodes share, or of "
                 "this node; empty: none are made")
      ->envname("DMUON_CHECKPOINT_DIR");
  app.add_option("--step-timeout", flags.step_timeout_seconds,
                 "Seconds that the workers of a step wait for each other. Longer rides out slow "
                 "restarts; a lost worker is reported later. Clients wait longer than this")
      ->envname("DMUON_STEP_TIMEOUT")
      ->capture_default_str();
  app.add_option("--attach-timeout", flags.attach_timeout_seconds,
                 "Seconds from a worker's Open to its hello on the arena channel")
      ->envname("DMUON_ATTACH_TIMEOUT")
      ->capture_default_str();
  app.add_option("--orphan-timeout", flags.orphan_timeout_seconds,
                 "Seconds that a job's state is kept after its last worker died")
      ->envname("DMUON_ORPHAN_TIMEOUT")
      ->capture_default_str();
}

void DescribePerformance(CLI::App& app, Flags& flags) {
  app.add_option("--slots", flags.slots,
                 "Matrices worked on at the same time; 0: by the number of cores")
      ->envname("DMUON_SLOTS")
      ->capture_default_str();
  app.add_option("--threads-per-slot", flags.threads_per_slot,
                 "Threads of a slot; the bits do not depend on them. 0: by the number of cores")
      ->envname("DMUON_THREADS_PER_SLOT")
      ->capture_default_str();
  app.add_flag("--overlap,!--no-overlap", flags.overlap,
               "Exchange gradients and new parameters while later matrices are being worked on; the "
               "bits are the same without")
      ->envname("DMUON_OVERLAP")
      ->capture_default_str();
  app.add_option("--memory-limit", flags.memory_limit_gib,
                 "GiB for arenas, masters and optimizer state; 0: half of the machine's memory")
      ->envname("DMUON_MEMORY_LIMIT")
      ->capture_default_str();
  app.add_option("--backend", flags.backend, "Kernels: cpu, cuda (one GPU; tensors stay in host memory), or reference (slow, in double)")
      ->envname("DMUON_BACKEND")
      ->capture_default_str();
  app.add_option("--cache-dir", flags.cache_dir,
                 "Where measured times of kernels are kept for the next start on the same kind of machine; "
                 "empty: nowhere")
      ->envname("DMUON_CACHE_DIR")
      ->capture_default_str();
  app.add_option("--autotune-budget", flags.autotune_budget_seconds,
                 "Seconds that a new job's measurements may take, below --step-timeout; default: half of that, at most 30. "
                 "More measures larger matrices instead of estimating them from smaller ones")
      ->envname("DMUON_AUTOTUNE_BUDGET");
  app.add_option("--metrics", flags.metrics,
                 "host:port of the Prometheus endpoint /metrics; port 0 takes a free one (see "
                 "dmuonctl status); empty: none")
      ->envname("DMUON_METRICS")
      ->capture_default_str();
  app.add_option("--log-level", flags.log_level, "debug, info, warning or error")
      ->envname("DMUON_LOG_LEVEL")
      ->capture_default_str();
}

void Describe(CLI::App& app, Flags& flags) {
  app.description(
      "Owns the optimizer state of training jobs and runs their optimizer steps. One a node.\n"
      "Workers register their shards, hand over gradients in shared memory, and get parameters back.");
  app.set_version_flag("--version", dmuon::VersionText());
  DescribeBehaviour(app, flags);
  DescribePerformance(app, flags);
  app.footer(
      "Example:\n"
      "  dmuond --standalone\n"
      "  dmuonctl status\n"
      "SIGTERM ends the running steps, answers what waits, and exits 0; a second one exits at once.\n"
      "Optimizer state ends with the process; what is to outlive it is saved (--checkpoint-dir).\n"
      "For tests: DMUON_FAILPOINTS=NAME=exit[@NTH],... ends it at a named place; a wrong name lists them.");
}

std::string HostName() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name[0] == '\0' ? "node" : std::string(name.data());
}

uint64_t PhysicalMemory() {
  return static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

// Small matrices scale by matrices, large ones by threads: slots of one thread up to 8 cores, then
// up to 8 threads a slot.
void ChooseSlots(Flags& flags) {
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  if (flags.threads_per_slot == 0) {
    flags.threads_per_slot = std::clamp(cores / 8, 1, kMaxThreadsPerSlot);
  }
  if (flags.slots == 0) {
    flags.slots = static_cast<uint32_t>(std::max(1, cores / flags.threads_per_slot));
  }
}

absl::StatusOr<EngineOptions> ToOptions(Flags& flags) {
  if (flags.standalone == !flags.coordinator.empty()) {
    return absl::InvalidArgumentError(
        "say where the coordinator is: --standalone (in this process) or --coordinator ADDRESS");
  }
  if (!dmuon::wire::UnixPath(flags.listen).has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--listen is '", flags.listen, "', must be unix:/path"));
  }
  ChooseSlots(flags);
  EngineOptions options;
  options.node_id = flags.node_id.empty() ? HostName() : flags.node_id;
  options.step_timeout = absl::Seconds(flags.step_timeout_seconds);
  options.attach_timeout = absl::Seconds(flags.attach_timeout_seconds);
  options.orphan_timeout = absl::Seconds(flags.orphan_timeout_seconds);
  options.memory_limit_bytes = flags.memory_limit_gib > 0
                                   ? static_cast<uint64_t>(flags.memory_limit_gib * (1 << 30))
                                   : PhysicalMemory() / 2;
  options.slots = flags.slots;
  options.threads_per_slot = flags.threads_per_slot;
  options.overlap = flags.overlap;
  options.owns_all = flags.owns == "all";
  options.cache_directory = flags.cache_dir;
  options.autotune_budget = flags.autotune_budget_seconds < 0 ? std::min(options.autotune_budget, options.step_timeout / 2)
                                                              : absl::Seconds(flags.autotune_budget_seconds);
  DMUON_RETURN_IF_ERROR(options.Validate());
  return options;
}

// The coordinator of --standalone, or the way to another process's. Members in order of use.
struct CoordinatorSide {
  std::unique_ptr<dmuon::coordinator::Host> host;
  std::unique_ptr<dmuon::coordinator::Service> service;
  std::unique_ptr<dmuon::CoordinatorLink> link;
};

absl::StatusOr<CoordinatorSide> MakeCoordinatorSide(const Flags& flags, dmuon::Metrics* metrics) {
  CoordinatorSide side;
  if (!flags.standalone) {
    side.link = dmuon::node::MakeGrpcLink(flags.coordinator);
    return side;
  }
  dmuon::coordinator::GenerationStore store;
  if (!flags.state_dir.empty()) {
    DMUON_ASSIGN_OR_RETURN(store, dmuon::coordinator::GenerationStore::Open(flags.state_dir));
  }
  side.host = std::make_unique<dmuon::coordinator::Host>(dmuon::coordinator::HostOptions(),
                                                         std::move(store), metrics);
  side.service = dmuon::coordinator::Service::Create(side.host.get());
  side.link = dmuon::coordinator::MakeLocalLink(side.host.get());
  return side;
}

absl::Status Run(dmuon::RpcServer& server, Engine& engine, dmuon::node::CheckpointService& checkpoints,
                 CoordinatorSide& side) {
  dmuon::ShutdownWatch watch;
  engine.Start();
  server.SetServing(true);
  const EngineOptions& options = engine.options();
  dmuon::LogInfo("dmuond ", dmuon::VersionText(), " listens on ", server.address(), "; node ",
                 options.node_id, ", ", options.slots, " slots of ", options.threads_per_slot,
                 " threads, coordinator ", side.link->address(), "; attach timeout ",
                 absl::FormatDuration(options.attach_timeout), " < step timeout ",
                 absl::FormatDuration(options.step_timeout), " <= orphan timeout ",
                 absl::FormatDuration(options.orphan_timeout));
  watch.Wait();
  dmuon::LogInfo("draining");
  server.SetServing(false);
  engine.Drain();
  checkpoints.Drain();
  if (side.host != nullptr) side.host->EndWatches();
  server.Shutdown(kDrainTime);
  dmuon::LogInfo("stopped");
  return absl::OkStatus();
}

// Nodes of one job connect over TCP. A standalone node has no others.
absl::StatusOr<dmuon::node::ConnectPeers> MakeConnectPeers(const Flags& flags,
                                                           uint64_t memory_limit_bytes) {
  if (flags.standalone) return dmuon::node::ConnectPeers();
  dmuon::transport::GlooAddress address;
  address.host = flags.data_address;
  DMUON_ASSIGN_OR_RETURN(std::shared_ptr<dmuon::transport::GlooDevice> device,
                         dmuon::transport::OpenGlooDevice(address));
  dmuon::transport::Options options;
  options.max_batch_bytes = memory_limit_bytes;  // messages are staged within it
  return [device, options](const dmuon::transport::Mesh& mesh,
                           dmuon::transport::KeyValueStore& store, absl::Time deadline) {
    return dmuon::transport::ConnectGloo(device, store, mesh, options, deadline);
  };
}

std::unique_ptr<dmuon::node::CheckpointService> MakeCheckpointService(dmuon::checkpoint::Store* store,
                                                                      const std::string& directory, Engine& engine,
                                                                      dmuon::Metrics* metrics) {
  return dmuon::node::CheckpointService::Create(
      store, directory,
      [&engine](const std::string& job_id, const std::string& name, absl::Time deadline,
                dmuon::node::Reply<dmuon::v1::SaveJobResponse> reply) {
        engine.SaveJob(job_id, name, deadline, std::move(reply));
      },
      metrics);
}

absl::Status Arm() {
  return dmuon::ArmFailpoints(std::getenv(dmuon::kFailpointsVariable),
                              std::array{dmuon::node::kServiceName, dmuon::node::kCheckpointServiceName,
                                         dmuon::coordinator::kServiceName});
}

absl::Status Serve(Flags flags) {
  DMUON_ASSIGN_OR_RETURN(EngineOptions engine_options, ToOptions(flags));
  DMUON_ASSIGN_OR_RETURN(const dmuon::LogLevel level, dmuon::ParseLogLevel(flags.log_level));
  dmuon::SetLogLevel(level);
  dmuon::Metrics metrics;
  dmuon::CountLogLines(&metrics);
  DMUON_RETURN_IF_ERROR(Arm());
  DMUON_ASSIGN_OR_RETURN(const std::unique_ptr<dmuon::kernels::Backend> backend,
                         dmuon::kernels::MakeBackend(flags.backend));
  metrics.Set(dmuon::MetricId::kBuildInfo, {dmuon::Version(), dmuon::Commit(), backend->name()}, 1);
  DMUON_ASSIGN_OR_RETURN(CoordinatorSide side, MakeCoordinatorSide(flags, &metrics));
  DMUON_ASSIGN_OR_RETURN(dmuon::node::ConnectPeers connect_peers,
                         MakeConnectPeers(flags, engine_options.memory_limit_bytes));
  std::unique_ptr<dmuon::checkpoint::Store> checkpoints;
  if (!flags.checkpoint_dir.empty()) {
    DMUON_ASSIGN_OR_RETURN(checkpoints, dmuon::checkpoint::Store::Open(flags.checkpoint_dir));
    engine_options.checkpoints = checkpoints.get();
  }
  Engine engine(engine_options, backend.get(), side.link.get(), &metrics,
                std::move(connect_peers));
  dmuon::node::NodeDescription description;
  description.version = dmuon::VersionText();
  description.backend = std::string(backend->name());
  description.coordinator = side.link->address();
  if (!flags.metrics.empty()) {
    DMUON_ASSIGN_OR_RETURN(description.metrics_address, metrics.Serve(flags.metrics));
    dmuon::LogInfo("metrics at http://", description.metrics_address, "/metrics");
  }
  const auto service = dmuon::node::Service::Create(&engine, &metrics, std::move(description));
  dmuon::RpcServerOptions options;
  options.address = flags.listen;
  options.service_names = {std::string(dmuon::node::kServiceName)};
  const auto checkpoint_service = MakeCheckpointService(checkpoints.get(), flags.checkpoint_dir, engine, &metrics);
  options.service_names.emplace_back(dmuon::node::kCheckpointServiceName);
  std::vector<grpc::Service*> services = {service->grpc_service(), checkpoint_service->grpc_service()};
  if (side.service != nullptr) {
    services.push_back(side.service->grpc_service());
    options.service_names.emplace_back(dmuon::coordinator::kServiceName);
  }
  // Takes the lock on the socket: from here on the paths beside it are ours too.
  DMUON_ASSIGN_OR_RETURN(const std::unique_ptr<dmuon::RpcServer> server,
                         dmuon::RpcServer::Start(options, services, &metrics));
  const std::string channel_path = absl::StrCat(*dmuon::wire::UnixPath(flags.listen),
                                                dmuon::wire::kChannelSuffix);
  DMUON_ASSIGN_OR_RETURN(const std::unique_ptr<dmuon::node::ChannelServer> channels,
                         dmuon::node::ChannelServer::Start(channel_path, &engine));
  const absl::Status status = Run(*server, engine, *checkpoint_service, side);
  dmuon::CountLogLines(nullptr);
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  dmuon::BlockShutdownSignals();
  Flags flags;
  CLI::App app("", "dmuond");
  Describe(app, flags);
  CLI11_PARSE(app, argc, argv);
  if (const absl::Status status = Serve(std::move(flags)); !status.ok()) {
    std::fprintf(stderr, "dmuond: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}
