// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What operators ask of a store, in the messages of dmuon.v1.CheckpointService. All wait for the disk. Thread-safe, as
// the store is.
#pragma once

#include "absl/status/statusor.h"
#include "daemon/checkpoint/store.h"
#include "dmuon/v1/checkpoint.pb.h"

namespace dmuon::node {

v1::CheckpointPart ToMessage(const checkpoint::Part& part);
v1::Checkpoint ToMessage(const checkpoint::Manifest& manifest);

// All but `directory`.
absl::StatusOr<v1::ListCheckpointsResponse> ListCheckpoints(const checkpoint::Store& store,
                                                            const v1::ListCheckpointsRequest& request);
absl::StatusOr<v1::GetCheckpointResponse> GetCheckpoint(const checkpoint::Store& store,
                                                        const v1::GetCheckpointRequest& request);
// CANCELLED when `progress` gives up.
absl::StatusOr<v1::VerifyCheckpointResponse> VerifyCheckpoint(const checkpoint::Store& store,
                                                              const v1::VerifyCheckpointRequest& request,
                                                              const checkpoint::Progress& progress);
absl::StatusOr<v1::DeleteCheckpointResponse> DeleteCheckpoint(checkpoint::Store& store,
                                                              const v1::DeleteCheckpointRequest& request);

}  // namespace dmuon::node
