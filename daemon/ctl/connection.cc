// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/ctl/connection.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/base/rpc_server.h"
#include "dmuon/v1/coordinator.grpc.pb.h"
#include "dmuon/v1/node.grpc.pb.h"
#include "wire/grpc_status.h"

namespace dmuon::ctl {
namespace {

// The call's status, with the address in it when nobody is there.
absl::Status Explain(const grpc::Status& status, const std::string& address) {
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    return absl::UnavailableError(
        absl::StrCat("nobody answers at ", address, ": ", status.error_message()));
  }
  return wire::FromGrpc(status);
}

template <typename Response>
absl::StatusOr<std::optional<Response>> OrNothing(const grpc::Status& status, Response response,
                                                  const std::string& address) {
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) return std::nullopt;
  if (!status.ok()) return Explain(status, address);
  return std::optional<Response>(std::move(response));
}

}  // namespace

struct Connection::Stubs {
  explicit Stubs(const std::shared_ptr<grpc::Channel>& channel)
      : node(v1::NodeService::NewStub(channel)),
        coordinator(v1::CoordinatorService::NewStub(channel)) {}
  const std::unique_ptr<v1::NodeService::Stub> node;
  const std::unique_ptr<v1::CoordinatorService::Stub> coordinator;
};

Connection::Connection(std::string address, absl::Duration timeout)
    : address_(std::move(address)),
      timeout_(timeout),
      stubs_(std::make_unique<Stubs>(MakeChannel(address_))) {}

Connection::~Connection() = default;

absl::StatusOr<std::optional<v1::GetNodeStatusResponse>> Connection::NodeStatus() {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout_));
  v1::GetNodeStatusResponse response;
  const grpc::Status status = stubs_->node->GetNodeStatus(&context, {}, &response);
  return OrNothing(status, std::move(response), address_);
}

absl::StatusOr<std::optional<v1::GetClusterStatusResponse>> Connection::ClusterStatus() {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout_));
  v1::GetClusterStatusResponse response;
  const grpc::Status status = stubs_->coordinator->GetClusterStatus(&context, {}, &response);
  return OrNothing(status, std::move(response), address_);
}

absl::StatusOr<v1::GetKernelsResponse> Connection::Kernels() {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout_));
  v1::GetKernelsResponse response;
  const grpc::Status status = stubs_->node->GetKernels(&context, {}, &response);
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    return absl::FailedPreconditionError(absl::StrCat("no node at ", address_, "; give a daemon's address with --address"));
  }
  if (!status.ok()) return Explain(status, address_);
  return response;
}

absl::StatusOr<v1::GetPlanResponse> Connection::Plan(const std::string& job_id) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout_));
  v1::GetPlanRequest request;
  request.set_job_id(job_id);
  v1::GetPlanResponse response;
  const grpc::Status status = stubs_->coordinator->GetPlan(&context, request, &response);
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    return absl::FailedPreconditionError(
        absl::StrCat("no coordinator at ", address_, "; give its address with --address"));
  }
  if (!status.ok()) return Explain(status, address_);
  return response;
}

}  // namespace dmuon::ctl
