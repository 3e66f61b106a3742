// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/ctl/report.h"
#include "daemon/ctl/table.h"

namespace dmuon::ctl {
namespace {

// A table behind that of the jobs; nothing where no job has saved, saves, or failed to.
std::string CheckpointsOf(const v1::GetNodeStatusResponse& node) {
  Table table({{"job"}, {"checkpoint"}, {"step", Align::kRight}, {"age", Align::kRight}, {"writing"}, {"last failure"}});
  for (const v1::NodeJobStatus& job : node.jobs()) {
    const v1::CheckpointStatus& last = job.checkpoint();
    const bool exists = !last.name().empty();
    if (!exists && last.progress().empty() && last.error().empty()) continue;
    table.Add({job.job_id(), exists ? last.name() : "-", exists ? absl::StrCat(last.step()) : "-",
               exists ? SecondsText(last.age_seconds()) : "-", last.progress().empty() ? "-" : last.progress(),
               last.error().empty() ? "-" : last.error()});
  }
  return table.empty() ? "" : absl::StrCat("\n", table.Text());
}

// Likewise; nothing where no job is replicated.
std::string CopiesOf(const v1::GetNodeStatusResponse& node) {
  Table table({{"job"}, {"copied to"}, {"step", Align::kRight}, {"keeps copies of"}, {"a copy", Align::kRight},
               {"recoveries", Align::kRight}});
  for (const v1::NodeJobStatus& job : node.jobs()) {
    if (!job.has_replication()) continue;
    const v1::ReplicationStatus& copies = job.replication();
    table.Add({job.job_id(), copies.buddy(), absl::StrCat(copies.copied_step()), copies.ward(), BytesText(copies.copy_bytes()),
               absl::StrCat(copies.recoveries())});
  }
  return table.empty() ? "" : absl::StrCat("\n", table.Text());
}

std::string NodeJobsText(const v1::GetNodeStatusResponse& node) {
  if (node.jobs().empty()) return absl::StrCat("node ", node.node_id(), " holds no job\n");
  Table table({{"job"},
               {"workers", Align::kRight},
               {"generation", Align::kRight},
               {"step", Align::kRight},
               {"skipped", Align::kRight},
               {"step p50", Align::kRight},
               {"NS calls", Align::kRight},
               {"state", Align::kRight},
               {"arenas", Align::kRight},
               {"doing"}});
  for (const v1::NodeJobStatus& job : node.jobs()) {
    table.Add({job.job_id(), absl::StrCat(job.attached_ranks_size(), "/", job.world_size()),
               absl::StrCat(job.generation()), absl::StrCat(job.last_step()),
               absl::StrCat(job.skipped_steps()), SecondsText(job.step_seconds_p50()),
               absl::StrCat(job.newton_schulz_calls()), BytesText(job.state_bytes()),
               BytesText(job.arena_bytes()), job.state()});
  }
  return absl::StrCat("on node ", node.node_id(), "\n", table.Text(), CheckpointsOf(node), CopiesOf(node));
}

std::string ClusterJobsText(const v1::GetClusterStatusResponse& cluster) {
  if (cluster.jobs().empty()) return "the coordinator knows no job\n";
  Table table({{"job"},
               {"registered", Align::kRight},
               {"tensors", Align::kRight},
               {"generation", Align::kRight},
               {"digest"},
               {"state"}});
  for (const v1::JobStatus& job : cluster.jobs()) {
    table.Add({job.job_id(), absl::StrCat(job.registered_ranks(), "/", job.world_size()),
               absl::StrCat(job.tensors()), absl::StrCat(job.generation()),
               job.digest().substr(0, 12), job.state()});
  }
  return absl::StrCat("at the coordinator\n", table.Text());
}

template <typename Messages>
std::string JsonList(const Messages& messages) {
  return absl::StrCat(
      "[",
      absl::StrJoin(messages, ",",
                    [](std::string* out, const auto& message) { out->append(ToJson(message)); }),
      "]");
}

}  // namespace

std::string JobsText(const Node& node, const Cluster& cluster) {
  std::string out;
  if (node.has_value()) out += NodeJobsText(*node);
  if (node.has_value() && cluster.has_value()) out += "\n";
  if (cluster.has_value()) out += ClusterJobsText(*cluster);
  return out;
}

std::string JobsJson(const Node& node, const Cluster& cluster) {
  return absl::StrCat("{\"node\":", node.has_value() ? JsonList(node->jobs()) : "[]",
                      ",\"cluster\":", cluster.has_value() ? JsonList(cluster->jobs()) : "[]",
                      "}\n");
}

}  // namespace dmuon::ctl
