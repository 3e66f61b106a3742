// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// dmuon-coordinator: the shell around a host.
#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "daemon/base/failpoint.h"
#include "daemon/base/log.h"
#include "daemon/base/metrics.h"
#include "daemon/base/rpc_server.h"
#include "daemon/base/signals.h"
#include "daemon/base/version.h"
#include "daemon/coordinator/host.h"
#include "daemon/coordinator/service.h"
#include "wire/address.h"
#include "wire/error.h"
#include "wire/grpc_status.h"

namespace {

using dmuon::coordinator::GenerationStore;
using dmuon::coordinator::Host;
using dmuon::coordinator::Service;

constexpr absl::Duration kDrainTime = absl::Seconds(5);
// A node beats three times a lease, and a busy machine may keep it from that for a while.
constexpr double kLocalBound = 0.5;

struct Flags {
  std::string listen = "127.0.0.1:7460";
  std::string state_dir;
  double lease_seconds = 20;
  std::string metrics;
  std::string log_level = "info";
};

void Describe(CLI::App& app, Flags& flags) {
  app.description(
      "Knows every node (dmuond) and every training job of a cluster, and plans which node's slot\n"
      "owns which matrix. One a cluster. A single box needs none: run dmuond --standalone.\n"
      "State is soft: after a restart the nodes tell it what exists. Only the highest generation\n"
      "is kept on disk, so that no plan's number is ever used twice.");
  app.set_version_flag("--version", dmuon::VersionText());
  app.add_option("--listen", flags.listen,
                 "Where nodes and dmuonctl reach it: host:port (loopback only; port 0 takes a free "
                 "one) or unix:/path")
      ->envname("DMUON_LISTEN")
      ->capture_default_str();
  app.add_option("--state-dir", flags.state_dir,
                 "Existing directory for the highest generation. Without it a restart begins at 0 "
                 "and relies on the nodes' reports; do not leave it out in a cluster")
      ->envname("DMUON_STATE_DIR");
  app.add_option("--lease", flags.lease_seconds,
                 "Seconds without a sign of life after which a node is out. Longer rides out slow "
                 "networks; a dead node is noticed later. Longer than the keepalive (15 s), unless "
                 "--listen is a unix socket")
      ->envname("DMUON_LEASE")
      ->capture_default_str();
  app.add_option("--metrics", flags.metrics,
                 "host:port of the Prometheus endpoint /metrics; empty: none")
      ->envname("DMUON_METRICS");
  app.add_option("--log-level", flags.log_level, "debug, info, warning or error")
      ->envname("DMUON_LOG_LEVEL")
      ->capture_default_str();
  app.footer(
      "Example, with a node beside it:\n"
      "  dmuon-coordinator --listen 127.0.0.1:7460 --state-dir /var/lib/dmuon\n"
      "  dmuond --coordinator 127.0.0.1:7460\n"
      "  dmuonctl status\n"
      "SIGTERM drains and exits 0; a second one exits at once.\n"
      "For tests: DMUON_FAILPOINTS=NAME=exit[@NTH],... ends it at a named place; a wrong name lists them.");
}

// A connection that is dead is found before the node behind it is declared dead, so a node has the
// time to connect anew. 15 s with the keepalive of this release. The connections of a unix socket end with their
// processes, and need none.
absl::Status CheckTimeouts(const Flags& flags) {
  const double keepalive =
      (dmuon::wire::kKeepaliveMs + dmuon::wire::kKeepaliveTimeoutMs) / 1000.0;
  const bool local = dmuon::wire::UnixPath(flags.listen).has_value();
  const double bound = local ? kLocalBound : keepalive;
  if (flags.lease_seconds > bound && flags.lease_seconds <= 3600) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--lease is ", flags.lease_seconds, " s; it must be longer than ",
                   local ? absl::StrCat(bound, " s") : absl::StrCat("the keepalive (", bound, " s)"),
                   " and at most 3600 s"));
}

absl::Status Serve(const Flags& flags) {
  DMUON_RETURN_IF_ERROR(CheckTimeouts(flags));
  DMUON_ASSIGN_OR_RETURN(const dmuon::LogLevel level, dmuon::ParseLogLevel(flags.log_level));
  dmuon::SetLogLevel(level);
  DMUON_RETURN_IF_ERROR(dmuon::ArmFailpoints(std::getenv(dmuon::kFailpointsVariable),
                                             std::array{dmuon::coordinator::kServiceName}));
  dmuon::Metrics metrics;
  metrics.Set(dmuon::MetricId::kBuildInfo, {dmuon::Version(), dmuon::Commit(), "none"}, 1);
  GenerationStore store;
  if (!flags.state_dir.empty()) {
    DMUON_ASSIGN_OR_RETURN(store, GenerationStore::Open(flags.state_dir));
  }
  Host host({.lease = absl::Seconds(flags.lease_seconds)}, std::move(store), &metrics);
  const std::unique_ptr<Service> service = Service::Create(&host);
  if (!flags.metrics.empty()) {
    DMUON_ASSIGN_OR_RETURN(const std::string bound, metrics.Serve(flags.metrics));
    dmuon::LogInfo("metrics at http://", bound, "/metrics");
  }
  dmuon::RpcServerOptions options;
  options.address = flags.listen;
  options.service_names = {std::string(dmuon::coordinator::kServiceName)};
  DMUON_ASSIGN_OR_RETURN(const std::unique_ptr<dmuon::RpcServer> server,
                         dmuon::RpcServer::Start(options, {service->grpc_service()}, &metrics));
  dmuon::ShutdownWatch watch;
  server->SetServing(true);
  dmuon::LogInfo("dmuon-coordinator ", dmuon::VersionText(), " listens on ", server->address(),
                 "; keepalive ", dmuon::wire::kKeepaliveMs + dmuon::wire::kKeepaliveTimeoutMs,
                 " ms, lease ", flags.lease_seconds, " s");
  watch.Wait();
  dmuon::LogInfo("draining");
  server->SetServing(false);
  host.EndWatches();
  server->Shutdown(kDrainTime);
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  dmuon::BlockShutdownSignals();
  Flags flags;
  CLI::App app("", "dmuon-coordinator");
  Describe(app, flags);
  CLI11_PARSE(app, argc, argv);
  if (const absl::Status status = Serve(flags); !status.ok()) {
    std::fprintf(stderr, "dmuon-coordinator: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}
