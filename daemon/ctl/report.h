// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What dmuonctl prints. Pure: messages in, text out. Every text ends with a line break.
#pragma once

#include <optional>
#include <string>

#include "dmuon/v1/checkpoint.pb.h"
#include "dmuon/v1/coordinator.pb.h"
#include "dmuon/v1/node.pb.h"

namespace dmuon::ctl {

using Node = std::optional<v1::GetNodeStatusResponse>;
using Cluster = std::optional<v1::GetClusterStatusResponse>;

// status.cc: what the process at the address is, its node, the members of its cluster.
std::string StatusText(const Node& node, const Cluster& cluster);
// {"node": GetNodeStatusResponse or null, "cluster": GetClusterStatusResponse or null}
std::string StatusJson(const Node& node, const Cluster& cluster);

// jobs.cc: one line a job, as the node sees it and as the coordinator does.
std::string JobsText(const Node& node, const Cluster& cluster);
// {"node": [NodeJobStatus], "cluster": [JobStatus]}
std::string JobsJson(const Node& node, const Cluster& cluster);

// plan.cc: units with owner and cost, slots with load, bytes on the links, and how good the plan is.
// `explain`: the links bucket by bucket.
std::string PlanText(const v1::GetPlanResponse& plan, bool explain = false);
// GetPlanResponse
std::string PlanJson(const v1::GetPlanResponse& plan);

// kernels.cc: what units cost on this node, as measured; "*" marks the fastest of its shape and precision that may
// be chosen.
std::string KernelsText(const v1::GetKernelsResponse& kernels);
// GetKernelsResponse
std::string KernelsJson(const v1::GetKernelsResponse& kernels);

// A method in words, "gram bf16"; "-" for none.
std::string MethodText(const v1::Method& method);

// checkpoint.cc: one line a checkpoint, with the files of it that are not on this node.
std::string CheckpointsText(const v1::ListCheckpointsResponse& response);
// One of them: its parts, then the arrays in those that are on this node.
std::string CheckpointText(const v1::GetCheckpointResponse& response);
// What became of one; errors never come here.
std::string VerifiedText(const std::string& job_id, const std::string& name,
                         const v1::VerifyCheckpointResponse& response);
std::string SavedText(const std::string& job_id, const std::string& name, const v1::SaveJobResponse& response);
// `removed`: what it was; nothing when its manifest could not be read.
std::string DeletedText(const std::string& job_id, const std::string& name,
                        const std::optional<v1::ListedCheckpoint>& removed);

// drain.cc: how far the handing over is that a drained node (`undo`: one that may own units again) calls for. Done: "";
// else what is awaited, in words. ABORTED naming the job that could not, and why.
absl::StatusOr<std::string> AwaitedByDrain(const v1::GetClusterStatusResponse& cluster, const std::string& node_id, bool undo);
// What became of it.
std::string DrainedText(const v1::GetClusterStatusResponse& cluster, const std::string& node_id, bool undo);

// version.cc: `daemon` is the version of the process at the address, or why there is none.
std::string VersionText(const std::string& own, const std::string& daemon);
// {"dmuonctl": "...", "daemon": "..."}; an unreachable daemon is null.
std::string VersionJson(const std::string& own, const std::optional<std::string>& daemon);

// json.cc: a message in protobuf's JSON form, with the field names of the proto and with zeros; no
// line break at its end.
std::string ToJson(const google::protobuf::Message& message);
// A string in quotes, escaped.
std::string JsonString(const std::string& text);

}  // namespace dmuon::ctl
