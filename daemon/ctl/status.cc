// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "absl/strings/str_cat.h"
#include "daemon/ctl/report.h"
#include "daemon/ctl/table.h"

namespace dmuon::ctl {
namespace {

std::string NodeText(const v1::GetNodeStatusResponse& node) {
  Table table({{"node"}, {node.node_id()}});
  table.Add({"version", node.version()});
  table.Add({"incarnation", node.incarnation()});
  table.Add({"uptime", SecondsText(node.uptime_seconds())});
  table.Add({"slots", absl::StrCat(node.slots(), " with ", node.threads_per_slot(), " threads each")});
  table.Add({"backend", node.backend()});
  table.Add({"coordinator", node.coordinator()});
  table.Add({"metrics", node.metrics_address().empty()
                            ? "off"
                            : absl::StrCat("http://", node.metrics_address(), "/metrics")});
  table.Add({"jobs", absl::StrCat(node.jobs_size())});
  return table.Text();
}

std::string ClusterText(const v1::GetClusterStatusResponse& cluster) {
  Table table({{"member"},
               {"slots", Align::kRight},
               {"lease", Align::kRight},
               {"units", Align::kRight},
               {"incarnation"},
               {""}});
  for (const v1::NodeStatus& node : cluster.nodes()) {
    table.Add({node.node().node_id(), absl::StrCat(node.slots()),
               SecondsText(node.lease_remaining_seconds()), absl::StrCat(node.units()), node.node().incarnation(),
               node.drained() ? "drained" : node.owns_all() ? "owns for all" : ""});
  }
  return absl::StrCat("cluster: ", cluster.nodes_size(), " nodes, ", cluster.jobs_size(),
                      " jobs, highest generation ", cluster.highest_generation(), "\n",
                      table.empty() ? "" : table.Text());
}

}  // namespace

std::string StatusText(const Node& node, const Cluster& cluster) {
  return absl::StrCat(node.has_value() ? NodeText(*node) : "no node here\n", "\n",
                      cluster.has_value() ? ClusterText(*cluster) : "no coordinator here\n");
}

std::string StatusJson(const Node& node, const Cluster& cluster) {
  return absl::StrCat("{\"node\":", node.has_value() ? ToJson(*node) : "null", ",\"cluster\":",
                      cluster.has_value() ? ToJson(*cluster) : "null", "}\n");
}

}  // namespace dmuon::ctl
