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
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "daemon/base/version.h"
#include "daemon/ctl/connection.h"
#include "daemon/ctl/report.h"
#include "wire/address.h"
#include "wire/error.h"

namespace dmuon::ctl {
namespace {

constexpr double kMaxTimeoutSeconds = 86'400;
constexpr double kTimeoutSeconds = 5;
constexpr double kLongTimeoutSeconds = 600;  // of verbs that write or read whole checkpoints, or move state
constexpr absl::Duration kLookAgain = absl::Milliseconds(100);

struct Flags {
  std::string address = wire::DefaultAddress();
  std::optional<double> timeout_seconds;
  bool json = false;
  bool explain = false;
  std::string job_id;
  std::string checkpoint;
  std::string node_id;
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

absl::StatusOr<std::string> ListCheckpoints(Connection& connection, const Flags& flags) {
  DMUON_ASSIGN_OR_RETURN(const auto list, connection.Checkpoints(flags.job_id));
  return flags.json ? ToJson(list) + "\n" : CheckpointsText(list);
}

absl::StatusOr<std::string> ShowCheckpoint(Connection& connection, const Flags& flags) {
  DMUON_ASSIGN_OR_RETURN(const auto checkpoint, connection.Checkpoint(flags.job_id, flags.checkpoint));
  return flags.json ? ToJson(checkpoint) + "\n" : CheckpointText(checkpoint);
}

absl::StatusOr<std::string> VerifyCheckpoint(Connection& connection, const Flags& flags) {
  DMUON_ASSIGN_OR_RETURN(const auto verified, connection.VerifyCheckpoint(flags.job_id, flags.checkpoint));
  return flags.json ? ToJson(verified) + "\n" : VerifiedText(flags.job_id, flags.checkpoint, verified);
}

absl::StatusOr<std::string> SaveCheckpoint(Connection& connection, const Flags& flags) {
  DMUON_ASSIGN_OR_RETURN(const auto saved, connection.SaveJob(flags.job_id, flags.checkpoint));
  return flags.json ? ToJson(saved) + "\n" : SavedText(flags.job_id, flags.checkpoint, saved);
}

// Looks first, so that it can say what is gone. A manifest that cannot be read is not listed, and may still go.
absl::StatusOr<std::string> DeleteCheckpoint(Connection& connection, const Flags& flags) {
  DMUON_ASSIGN_OR_RETURN(const auto list, connection.Checkpoints(flags.job_id));
  std::optional<v1::ListedCheckpoint> removed;
  for (const v1::ListedCheckpoint& listed : list.checkpoints()) {
    if (listed.checkpoint().name() == flags.checkpoint) removed = listed;
  }
  DMUON_RETURN_IF_ERROR(connection.DeleteCheckpoint(flags.job_id, flags.checkpoint).status());
  return flags.json ? ToJson(removed.value_or(v1::ListedCheckpoint())) + "\n"
                    : DeletedText(flags.job_id, flags.checkpoint, removed);
}

// Until the state is where the new plans want it.
absl::StatusOr<std::string> AwaitDrain(Connection& connection, const Flags& flags, bool undo) {
  DMUON_RETURN_IF_ERROR(connection.DrainNode(flags.node_id, undo).status());
  const absl::Time deadline = absl::Now() + absl::Seconds(flags.timeout_seconds.value_or(kLongTimeoutSeconds));
  for (std::string told;;) {
    DMUON_ASSIGN_OR_RETURN(const Cluster cluster, connection.ClusterStatus());
    if (!cluster.has_value()) return absl::UnavailableError(absl::StrCat("no coordinator at ", flags.address, " any more"));
    DMUON_ASSIGN_OR_RETURN(std::string awaited, AwaitedByDrain(*cluster, flags.node_id, undo));
    if (awaited.empty()) return flags.json ? ToJson(*cluster) + "\n" : DrainedText(*cluster, flags.node_id, undo);
    if (absl::Now() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat("still waiting for ", awaited, ". It goes on: jobs hand over between two "
                                                      "steps, when all of their daemons are there. Call again to wait"));
    }
    if (awaited != told) std::cerr << "waiting for " << awaited << "\n";
    told = std::move(awaited);
    absl::SleepFor(kLookAgain);
  }
}

absl::StatusOr<std::string> Drain(Connection& connection, const Flags& flags) {
  return AwaitDrain(connection, flags, /*undo=*/false);
}

absl::StatusOr<std::string> Undrain(Connection& connection, const Flags& flags) {
  return AwaitDrain(connection, flags, /*undo=*/true);
}

struct Verb {
  absl::StatusOr<std::string> (*run)(Connection&, const Flags&) = nullptr;
  double timeout_seconds = kTimeoutSeconds;
};

int Run(const Verb& verb, const Flags& flags) {
  const double timeout = flags.timeout_seconds.value_or(verb.timeout_seconds);
  Connection connection(flags.address, absl::Seconds(timeout));
  const absl::StatusOr<std::string> text = verb.run(connection, flags);
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
  app.add_option("--timeout", flags.timeout_seconds,
                 absl::StrCat("Seconds that a call may take; default: ", kTimeoutSeconds,
                              ", but of drain, undrain, checkpoint save and verify ", kLongTimeoutSeconds))
      ->check(CLI::Range(0.001, kMaxTimeoutSeconds));
  app.fallthrough();
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  dmuonctl status                      is it up, who is in the cluster\n"
      "  dmuonctl jobs                        which jobs, at which step, how fast\n"
      "  dmuonctl plan demo                   who owns what, and how even the work is\n"
      "  dmuonctl kernels                     what was measured, and which method is the fastest\n"
      "  dmuonctl plan demo --json | jq '.plan.units | length'\n"
      "  dmuonctl checkpoint list             what could be restored, and which files of it are missing here\n"
      "  dmuonctl checkpoint save demo best   saves job demo as it is, under the name best; waits until that exists\n"
      "  dmuonctl drain node-b                moves all state off node-b, so that its daemon may be restarted\n"
      "Exit codes: 0; 1 for an error, which is on stderr; 2 for wrong usage.");
}

// Verbs of `parent`, each of which sets `chosen`.
class Verbs {
 public:
  Verbs(CLI::App* parent, Flags* flags, Verb* chosen) : parent_(parent), flags_(flags), chosen_(chosen) {}

  CLI::App* Add(const char* name, const char* help, Verb verb) const {
    CLI::App* const sub = parent_->add_subcommand(name, help);
    sub->callback([chosen = chosen_, verb] { *chosen = verb; });
    return sub;
  }
  CLI::Option* AddJob(CLI::App* verb) const {
    return verb->add_option("JOB", flags_->job_id, "Id of the job, as `dmuonctl jobs` shows it");
  }
  void AddOfCheckpoint(const char* name, const char* help, Verb verb) const {
    CLI::App* const sub = Add(name, help, verb);
    AddJob(sub)->required();
    sub->add_option("NAME", flags_->checkpoint, "Name of the checkpoint: 1..128 of a-z, 0-9, '.', '_', '-'")
        ->required();
  }

 private:
  CLI::App* const parent_;
  Flags* const flags_;
  Verb* const chosen_;
};

void AddCheckpointVerbs(CLI::App& app, Flags& flags, Verb& verb) {
  CLI::App* const sub = app.add_subcommand("checkpoint", "Checkpoints of jobs: list, show, verify, save, delete");
  sub->require_subcommand(1);
  sub->footer(
      "A node sees the checkpoints in its own --checkpoint-dir. Where every node has a directory of its own, files of\n"
      "the other nodes are missing here, which is no fault: a job is restored from what its nodes have together. `verify` then\n"
      "names a missing file once all that is here is found as it was saved, and `delete` has to be run once on each node.\n"
      "`save` and `verify` may take long: see --timeout.");
  const Verbs verbs(sub, &flags, &verb);
  verbs.AddJob(verbs.Add("list", "All checkpoints, or those of one job: step, size, and files that are missing here",
                         {ListCheckpoints}));
  verbs.AddOfCheckpoint("show", "One checkpoint: its parts, and the arrays in those that are here", {ShowCheckpoint});
  verbs.AddOfCheckpoint("verify", "Reads all of it and compares checksums; names the file that is damaged or missing",
                        {VerifyCheckpoint, kLongTimeoutSeconds});
  verbs.AddOfCheckpoint("save", "Saves a running job, on all of its nodes, after its next step; waits until it exists. "
                                "One of this name is replaced",
                        {SaveCheckpoint, kLongTimeoutSeconds});
  verbs.AddOfCheckpoint("delete", "Removes it at once and says what is gone; asks nothing", {DeleteCheckpoint});
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Looks into a running dmuon service; changes nothing but checkpoints, and who owns state.", "dmuonctl");
  AddFlags(app, flags);
  Verb verb;
  const Verbs verbs(&app, &flags, &verb);
  verbs.Add("status", "The node, its version, its metrics address, and the members of the cluster", {Status});
  verbs.Add("jobs", "Every job: workers, step, time, bytes, what it does, and its last checkpoint", {Jobs});
  CLI::App* const plan = verbs.Add(
      "plan", "A job's plan: units with owner and cost, load of each slot and link, balance", {Plan});
  verbs.AddJob(plan)->required();
  plan->add_flag("--explain", flags.explain, "Bytes on each link bucket by bucket, too");
  verbs.Add("kernels", "What the node's kernels are, and how long each unit takes, as measured", {Kernels});
  AddCheckpointVerbs(app, flags, verb);
  const auto add_of_node = [&](const char* name, const char* help, Verb of_node) {
    verbs.Add(name, help, of_node)->add_option("NODE", flags.node_id, "Id of the node, as `dmuonctl status` shows it")->required();
  };
  add_of_node("drain", "Lets a node own nothing: its state moves to the other nodes of each job, between two steps; waits "
                       "until it has. --address is the coordinator's",
              {Drain, kLongTimeoutSeconds});
  add_of_node("undrain", "Lets a drained node own units again, and waits until it does", {Undrain, kLongTimeoutSeconds});
  verbs.Add("version", "Versions of this program and of the daemon", {Version});
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
