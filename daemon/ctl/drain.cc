// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/ctl/report.h"

namespace dmuon::ctl {
namespace {

// Null: it is no member now.
const v1::NodeStatus* Find(const v1::GetClusterStatusResponse& cluster, const std::string& node_id) {
  const auto found = std::find_if(cluster.nodes().begin(), cluster.nodes().end(),
                                  [&](const v1::NodeStatus& node) { return node.node().node_id() == node_id; });
  return found == cluster.nodes().end() ? nullptr : &*found;
}

}  // namespace

absl::StatusOr<std::string> AwaitedByDrain(const v1::GetClusterStatusResponse& cluster, const std::string& node_id, bool undo) {
  std::vector<std::string> awaited;
  for (const v1::JobStatus& job : cluster.jobs()) {
    if (!job.handover_failure().empty()) {
      return absl::AbortedError(absl::StrCat("job '", job.job_id(), "' keeps generation ", job.generation(), ": ",
                                             job.handover_failure()));
    }
    if (job.successor_generation() == 0) continue;
    awaited.push_back(absl::StrCat("job '", job.job_id(), "' to hand ", job.moving_units(), " units over, for generation ",
                                   job.successor_generation()));
  }
  const v1::NodeStatus* const node = Find(cluster, node_id);
  if (awaited.empty() && !undo && node != nullptr && node->units() > 0) {
    awaited.push_back(absl::StrCat("a plan without the ", node->units(), " units of node '", node_id, "'"));
  }
  if (awaited.empty() && !undo && node != nullptr && node->jobs_without_workers() > 0) {
    awaited.push_back(absl::StrCat("plans without node '", node_id, "' of ", node->jobs_without_workers(), " jobs whose workers are elsewhere"));
  }
  return absl::StrJoin(awaited, "; ");
}

std::string DrainedText(const v1::GetClusterStatusResponse& cluster, const std::string& node_id, bool undo) {
  const v1::NodeStatus* const node = Find(cluster, node_id);
  if (!undo) {
    return absl::StrCat("node '", node_id, "' owns nothing: its daemon may be restarted, and no state is lost",
                        node == nullptr ? " (it is no member now)" : "", "\n");
  }
  return absl::StrCat("node '", node_id, "' may own units again", node == nullptr ? "" : absl::StrCat(", and owns ", node->units()),
                      "\n");
}

}  // namespace dmuon::ctl
