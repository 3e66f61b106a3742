// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/ctl/connection.h"

#include <grpcpp/grpcpp.h>

#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "daemon/base/rpc_server.h"
#include "dmuon/v1/checkpoint.grpc.pb.h"
#include "dmuon/v1/coordinator.grpc.pb.h"
#include "dmuon/v1/node.grpc.pb.h"
#include "wire/error.h"
#include "wire/grpc_status.h"

namespace dmuon::ctl {
namespace {

template <typename Request>
Request Of(const std::string& job_id, const std::string& name) {
  Request request;
  request.set_job_id(job_id);
  request.set_name(name);
  return request;
}

}  // namespace

struct Connection::Stubs {
  Stubs(std::string at, absl::Duration limit) : address(std::move(at)), timeout(limit) {}

  // Nothing when the server lacks the service.
  template <typename Stub, typename Request, typename Response>
  absl::StatusOr<std::optional<Response>> Try(
      Stub& stub, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
      const Request& request) const {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    Response response;
    const grpc::Status status = (stub.*method)(&context, request, &response);
    if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) return std::nullopt;
    if (status.ok()) return std::optional<Response>(std::move(response));
    absl::Status error = wire::FromGrpc(status);
    // gRPC's own errors have no reason.
    if (absl::IsUnavailable(error) && wire::ReasonOf(error) == v1::ERROR_REASON_UNSPECIFIED) {
      return absl::UnavailableError(absl::StrCat("nobody answers at ", address, ": ", status.error_message()));
    }
    return error;
  }

  // `who` names the server that has the service.
  template <typename Stub, typename Request, typename Response>
  absl::StatusOr<Response> Call(Stub& stub,
                                grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                                const Request& request, absl::string_view who) const {
    DMUON_ASSIGN_OR_RETURN(std::optional<Response> response, Try(stub, method, request));
    if (response.has_value()) return *std::move(response);
    return absl::FailedPreconditionError(
        absl::StrCat("no ", who, " at ", address, "; give its address with --address"));
  }

  template <typename Request, typename Response>
  absl::StatusOr<Response> Ask(grpc::Status (v1::CheckpointService::Stub::*method)(grpc::ClientContext*,
                                                                                   const Request&, Response*),
                               const Request& request) const {
    return Call(*checkpoint, method, request, "node that serves checkpoints");
  }

  const std::string address;
  const absl::Duration timeout;
  const std::shared_ptr<grpc::Channel> channel = MakeChannel(address);
  const std::unique_ptr<v1::NodeService::Stub> node = v1::NodeService::NewStub(channel);
  const std::unique_ptr<v1::CoordinatorService::Stub> coordinator = v1::CoordinatorService::NewStub(channel);
  const std::unique_ptr<v1::CheckpointService::Stub> checkpoint = v1::CheckpointService::NewStub(channel);
};

Connection::Connection(std::string address, absl::Duration timeout)
    : stubs_(std::make_unique<Stubs>(std::move(address), timeout)) {}

Connection::~Connection() = default;

absl::StatusOr<std::optional<v1::GetNodeStatusResponse>> Connection::NodeStatus() {
  return stubs_->Try(*stubs_->node, &v1::NodeService::Stub::GetNodeStatus, v1::GetNodeStatusRequest());
}

absl::StatusOr<std::optional<v1::GetClusterStatusResponse>> Connection::ClusterStatus() {
  return stubs_->Try(*stubs_->coordinator, &v1::CoordinatorService::Stub::GetClusterStatus,
                     v1::GetClusterStatusRequest());
}

absl::StatusOr<v1::GetKernelsResponse> Connection::Kernels() {
  return stubs_->Call(*stubs_->node, &v1::NodeService::Stub::GetKernels, v1::GetKernelsRequest(), "node");
}

absl::StatusOr<v1::GetPlanResponse> Connection::Plan(const std::string& job_id) {
  v1::GetPlanRequest request;
  request.set_job_id(job_id);
  return stubs_->Call(*stubs_->coordinator, &v1::CoordinatorService::Stub::GetPlan, request, "coordinator");
}

absl::StatusOr<v1::DrainNodeResponse> Connection::DrainNode(const std::string& node_id, bool undo) {
  v1::DrainNodeRequest request;
  request.set_node_id(node_id);
  request.set_undo(undo);
  return stubs_->Call(*stubs_->coordinator, &v1::CoordinatorService::Stub::DrainNode, request, "coordinator");
}

absl::StatusOr<v1::ListCheckpointsResponse> Connection::Checkpoints(const std::string& job_id) {
  v1::ListCheckpointsRequest request;
  request.set_job_id(job_id);
  return stubs_->Ask(&v1::CheckpointService::Stub::ListCheckpoints, request);
}

absl::StatusOr<v1::GetCheckpointResponse> Connection::Checkpoint(const std::string& job_id, const std::string& name) {
  return stubs_->Ask(&v1::CheckpointService::Stub::GetCheckpoint, Of<v1::GetCheckpointRequest>(job_id, name));
}

absl::StatusOr<v1::VerifyCheckpointResponse> Connection::VerifyCheckpoint(const std::string& job_id,
                                                                          const std::string& name) {
  return stubs_->Ask(&v1::CheckpointService::Stub::VerifyCheckpoint, Of<v1::VerifyCheckpointRequest>(job_id, name));
}

absl::StatusOr<v1::SaveJobResponse> Connection::SaveJob(const std::string& job_id, const std::string& name) {
  return stubs_->Ask(&v1::CheckpointService::Stub::SaveJob, Of<v1::SaveJobRequest>(job_id, name));
}

absl::StatusOr<v1::DeleteCheckpointResponse> Connection::DeleteCheckpoint(const std::string& job_id,
                                                                          const std::string& name) {
  return stubs_->Ask(&v1::CheckpointService::Stub::DeleteCheckpoint, Of<v1::DeleteCheckpointRequest>(job_id, name));
}

}  // namespace dmuon::ctl
