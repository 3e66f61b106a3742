// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Checks of everything that another process sends, before any of it is used. All errors are
// INVALID_ARGUMENT (or RESOURCE_EXHAUSTED for a limit) and name the thing, the number and the bound.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dmuon/v1/tensor.pb.h"
#include "wire/box.h"

namespace dmuon::wire {

inline constexpr size_t kMaxNameBytes = 256;
inline constexpr uint32_t kMaxWorldSize = 65'536;
inline constexpr int kMaxTensors = 262'144;
inline constexpr int kMaxGroups = 4'096;
inline constexpr int kMaxRowBlocks = 4'096;             // of a tensor
inline constexpr int64_t kMaxMatrices = int64_t{1} << 20;  // of a job
inline constexpr double kMaxCheckpointSeconds = 2147483648.0;  // between two
inline constexpr uint32_t kMaxCheckpoints = 1'000;             // that a schedule keeps

// Ids of jobs and nodes: 1..128 characters of [A-Za-z0-9._:/@-].
absl::Status ValidateId(absl::string_view id, absl::string_view what);

// Names of checkpoints: 1..128 of [a-z0-9._-], the first a letter or digit.
absl::Status ValidateCheckpointName(absl::string_view name);
// A SHA-256 in hexadecimal: 64 of [0-9a-f].
absl::Status ValidateDigest(absl::string_view digest);

absl::Status ValidateSchedule(const v1::CheckpointSchedule& schedule);

// Names, shapes, dtypes, groups, options, views. A tensor of a matrix optimizer has 2 dimensions, or more and a
// view that says which matrices they are; element-wise optimizers take no view.
absl::Status ValidateJobSpec(const v1::JobSpec& job);

// Of a tensor of a valid job.
absl::Status ValidateRowFactors(const v1::JobSpec& job, const v1::RowFactors& rows);

// Learning rates and the like, one a group of a valid job.
absl::Status ValidateHypers(const v1::JobSpec& job, std::span<const v1::Hyper* const> hypers);

// A worker's boxes, parsed; one entry a tensor in the tensors' order.
struct ShardBoxes {
  Box grad;
  Box param;
  bool reduced = true;
};
absl::StatusOr<std::vector<ShardBoxes>> ParseShards(
    const v1::JobSpec& job, std::span<const v1::Shard* const> shards, uint32_t rank);

// Bytes of one element.
size_t SizeOf(v1::DType dtype);

// The dimension of rows: those before it count matrices, those after it are columns. Of a tensor of a valid job.
int RowDimension(const v1::Tensor& tensor);

// Whether one matrix has rows between those of another, so that all of them are one unit. Of a valid tensor.
bool IsInterleaved(const v1::Tensor& tensor);

}  // namespace dmuon::wire
