// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/checkpoint_calls.h"

#include <string>
#include <utility>
#include <vector>

#include "daemon/base/log.h"
#include "wire/error.h"

namespace dmuon::node {
namespace {

v1::CheckpointEntry EntryMessage(const checkpoint::Entry& entry, const std::string& file) {
  v1::CheckpointEntry message;
  message.set_key(entry.Key());
  message.set_file(file);
  message.set_tensor(entry.tensor);
  message.set_quantity(entry.quantity);
  *message.mutable_shape() = {entry.shape.begin(), entry.shape.end()};
  message.set_optimizer(entry.optimizer);
  message.set_updates(entry.updates);
  return message;
}

absl::Status AddOfJob(const checkpoint::Store& store, const std::string& job_id,
                      v1::ListCheckpointsResponse& response) {
  DMUON_ASSIGN_OR_RETURN(const std::vector<checkpoint::Manifest> manifests, store.List(job_id));
  for (const checkpoint::Manifest& manifest : manifests) {
    v1::ListedCheckpoint& listed = *response.add_checkpoints();
    *listed.mutable_checkpoint() = ToMessage(manifest);
    for (std::string& file : store.AbsentFiles(manifest)) listed.add_absent_files(std::move(file));
  }
  return absl::OkStatus();
}

}  // namespace

v1::CheckpointPart ToMessage(const checkpoint::Part& part) {
  v1::CheckpointPart message;
  message.set_node_id(part.node);
  message.set_file(part.file);
  message.set_bytes(part.bytes);
  message.set_entries(part.entries);
  message.set_header_sha256(part.header_sha256);
  return message;
}

v1::Checkpoint ToMessage(const checkpoint::Manifest& manifest) {
  v1::Checkpoint message;
  message.set_job_id(manifest.job_id);
  message.set_name(manifest.name);
  message.set_step(manifest.step);
  message.set_generation(manifest.generation);
  message.set_automatic(manifest.automatic);
  message.set_version(manifest.version);
  for (const checkpoint::Part& part : manifest.parts) *message.add_parts() = ToMessage(part);
  return message;
}

absl::StatusOr<v1::ListCheckpointsResponse> ListCheckpoints(const checkpoint::Store& store,
                                                            const v1::ListCheckpointsRequest& request) {
  v1::ListCheckpointsResponse response;
  if (!request.job_id().empty()) {
    DMUON_RETURN_IF_ERROR(AddOfJob(store, request.job_id(), response));
    return response;
  }
  DMUON_ASSIGN_OR_RETURN(const std::vector<std::string> jobs, store.Jobs());
  for (const std::string& job_id : jobs) DMUON_RETURN_IF_ERROR(AddOfJob(store, job_id, response));
  return response;
}

absl::StatusOr<v1::GetCheckpointResponse> GetCheckpoint(const checkpoint::Store& store,
                                                        const v1::GetCheckpointRequest& request) {
  DMUON_ASSIGN_OR_RETURN(const checkpoint::Manifest manifest, store.Find(request.job_id(), request.name()));
  v1::GetCheckpointResponse response;
  *response.mutable_listed()->mutable_checkpoint() = ToMessage(manifest);
  for (const checkpoint::Part& part : manifest.parts) {
    const auto reader = store.OpenPart(manifest, part);
    if (absl::IsNotFound(reader.status())) {
      response.mutable_listed()->add_absent_files(part.file);
      continue;
    }
    if (!reader.ok()) return reader.status();
    for (const checkpoint::Entry& entry : (*reader)->entries()) *response.add_entries() = EntryMessage(entry, part.file);
  }
  return response;
}

absl::StatusOr<v1::VerifyCheckpointResponse> VerifyCheckpoint(const checkpoint::Store& store,
                                                              const v1::VerifyCheckpointRequest& request,
                                                              const checkpoint::Progress& progress) {
  DMUON_ASSIGN_OR_RETURN(const checkpoint::Manifest manifest, store.Find(request.job_id(), request.name()));
  const absl::Status verified = store.Verify(manifest, progress);
  // The checkpoint is there, so what is missing of it is lost.
  if (absl::IsNotFound(verified)) {
    return wire::Error(absl::StatusCode::kDataLoss, v1::ERROR_REASON_CHECKPOINT, verified.message());
  }
  DMUON_RETURN_IF_ERROR(verified);
  v1::VerifyCheckpointResponse response;
  for (const checkpoint::Part& part : manifest.parts) response.set_bytes(response.bytes() + part.bytes);
  return response;
}

absl::StatusOr<v1::DeleteCheckpointResponse> DeleteCheckpoint(checkpoint::Store& store,
                                                              const v1::DeleteCheckpointRequest& request) {
  DMUON_RETURN_IF_ERROR(store.Delete(request.job_id(), request.name()));
  LogInfo("job ", request.job_id(), ": checkpoint ", request.name(), " is deleted, as an operator asked");
  return v1::DeleteCheckpointResponse();
}

}  // namespace dmuon::node
