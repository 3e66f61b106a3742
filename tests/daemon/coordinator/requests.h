// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Requests of nodes and workers, for tests.
#pragma once

#include <cstdint>
#include <string>

#include "dmuon/v1/coordinator.pb.h"
#include "wire/grpc_status.h"

namespace dmuon::coordinator {

inline v1::NodeIdentity Node(const std::string& id, const std::string& incarnation = "1") {
  v1::NodeIdentity node;
  node.set_node_id(id);
  node.set_incarnation(incarnation);
  return node;
}

inline v1::JoinRequest JoinOf(const std::string& id, uint32_t slots = 2,
                              const std::string& incarnation = "1") {
  v1::JoinRequest request;
  *request.mutable_node() = Node(id, incarnation);
  request.set_slots(slots);
  request.set_protocol_version(wire::kProtocolVersion);
  return request;
}

// See transcript.h for the names. Unknown ones give `mlp`.
v1::JobSpec ModelOf(const std::string& job_id, const std::string& model, uint32_t world_size);

// Rank `rank` of a job, attached to a node.
v1::RegisterWorkerRequest RankOf(const v1::NodeIdentity& node, const v1::JobSpec& job,
                                 uint32_t rank, const std::string& split = "rows",
                                 const std::string& fault = "");

// A report that the node has written its part of a checkpoint of generation 1 of job `demo`. Parts of another number
// have other bytes.
v1::ReportPartRequest ReportOf(const v1::NodeIdentity& node, const std::string& name, uint64_t step,
                               uint64_t number = 1);
// A report that it has failed.
v1::ReportPartRequest FailureOf(const v1::NodeIdentity& node, const std::string& name, uint64_t step,
                                const std::string& why);

}  // namespace dmuon::coordinator
