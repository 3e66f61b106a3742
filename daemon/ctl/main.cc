// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// dmuonctl: the operator's command line. Exit codes: 0, 1 for an error, 2 for wrong usage.

#include <CLI/CLI.hpp>
#include <iostream>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "daemon/base/version.h"
#include "daemon/ctl/connection.h"
#include "daemon/ctl/report.h"
#include "wire/address.h"
#include "wire/error.h"

namespace dmuon::ctl {
namespace {

constexpr double kMaxTimeoutSeconds = 3600;

struct Flags {
  std::string address = wire::DefaultAddress();
  double timeout_seconds = 5;
  bool json = false;
  bool explain = false;
  std::string job_id;
};

// What the two services of the address say.
struct Seen {
  Node node;
  Cluster cluster;
};

absl::StatusOr<Seen> Look(Connection& connection, const std::string& address) {
  Seen seen;
  DMUON_ASSIGN_OR_RETURN(seen.node, connection.NodeStatus());
  DMUON_ASSIGN_OR_RETURN(seen.cluster, connection.ClusterStatus());
  if (!seen.node.has_value() && !seen.cluster.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the server at ", address, " is neither a dmuon node nor a coordinator"));
  }
  return seen;
}

absl::StatusOr<std::string> Status(Connection& connection, const Flags& flags) {
  DMUON_ASSIGN_OR_RETURN(const Seen seen, Look(connection, flags.address));
  return flags.json ? StatusJson(seen.node, seen.cluster) : StatusText(seen.node, seen.cluster);
}

absl::StatusOr<std::string> Jobs(Connection& connection, const Flags& flags) {
  DMUON_ASSIGN_OR_RETURN(const Seen seen, Look(connection, flags.address));
  return flags.json ? JobsJson(seen.node, seen.cluster) : JobsText(seen.node, seen.cluster);
}

absl::StatusOr<std::string> Plan(Connection& connection, const Flags& flags) {
  DMUON_ASSIGN_OR_RETURN(const v1::GetPlanResponse plan, connection.Plan(flags.job_id));
  return flags.json ? PlanJson(plan) : PlanText(plan, flags.explain);
}

absl::StatusOr<std::string> Kernels(Connection& connection, const Flags& flags) {
  DMUON_ASSIGN_OR_RETURN(const v1::GetKernelsResponse kernels, connection.Kernels());
  return flags.json ? KernelsJson(kernels) : KernelsText(kernels);
}

// Our own version is an answer also when no daemon runs.
absl::StatusOr<std::string> Version(Connection& connection, const Flags& flags) {
  const auto node = connection.NodeStatus();
  std::optional<std::string> daemon;
  if (node.ok() && node->has_value()) daemon = (*node)->version();
  const std::string own = dmuon::VersionText();
  if (flags.json) return VersionJson(own, daemon);
  return VersionText(own, daemon.value_or(node.ok() ? "no node at " + flags.address
                                                    : std::string(node.status().message())));
}

using Verb = absl::StatusOr<std::string> (*)(Connection&, const Flags&);

int Run(Verb verb, const Flags& flags) {
  Connection connection(flags.address, absl::Seconds(flags.timeout_seconds));
  const absl::StatusOr<std::string> text = verb(connection, flags);
  if (!text.ok()) {
    std::cerr << "dmuonctl: " << text.status().message() << "\n";
    return 1;
  }
  std::cout << *text << std::flush;
  return std::cout.good() ? 0 : 1;
}

void AddFlags(CLI::App& app, Flags& flags) {
  app.add_option("--address", flags.address,
                 "unix:/path or host:port of a daemon; default: $DMUON_ADDRESS, else the user's "
                 "unix socket")
      ->capture_default_str();
  app.add_flag("--json", flags.json, "JSON for programs, with the field names of dmuon.v1");
  app.add_option("--timeout", flags.timeout_seconds, "Seconds that a call may take")
      ->check(CLI::Range(0.001, kMaxTimeoutSeconds))
      ->capture_default_str();
  app.fallthrough();
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  dmuonctl status                      is it up, who is in the cluster\n"
      "  dmuonctl jobs                        which jobs, at which step, how fast\n"
      "  dmuonctl plan demo                   who owns what, and how even the work is\n"
      "  dmuonctl kernels                     what was measured, and which method is the fastest\n"
      "  dmuonctl plan demo --json | jq '.plan.units | length'\n"
      "Exit codes: 0; 1 for an error, which is on stderr; 2 for wrong usage.");
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Looks into a running dmuon service; changes nothing.", "dmuonctl");
  AddFlags(app, flags);
  Verb verb = nullptr;
  const auto add = [&](const char* name, const char* help, Verb chosen) {
    CLI::App* const sub = app.add_subcommand(name, help);
    sub->callback([&verb, chosen] { verb = chosen; });
    return sub;
  };
  add("status", "The node, its version, its metrics address, and the members of the cluster", Status);
  add("jobs", "Every job: workers, step, time, bytes, and what it does", Jobs);
  CLI::App* const plan = add(
      "plan", "A job's plan: units with owner and cost, load of each slot and link, balance", Plan);
  plan->add_option("JOB", flags.job_id, "Id of the job, as `dmuonctl jobs` shows it")->required();
  plan->add_flag("--explain", flags.explain, "Bytes on each link bucket by bucket, too");
  add("kernels", "What the node's kernels are, and how long each unit takes, as measured", Kernels);
  add("version", "Versions of this program and of the daemon", Version);
  try {  // CLI11 reports by exception
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return Run(verb, flags);
}

}  // namespace
}  // namespace dmuon::ctl

int main(int argc, char** argv) { return dmuon::ctl::Main(argc, argv); }
