// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The C ABI's structs and codes <-> dmuon.v1. Checks what the C side alone can get wrong: sizes of
// structs, null pointers, enumerators, dimensions. Everything else is checked where its meaning is.
// All errors are INVALID_ARGUMENT/INVALID_FIELD and name the field.
#pragma once

#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/include/dmuon/dmuon.h"
#include "client/src/client.h"
#include "dmuon/v1/node.pb.h"

namespace dmuon::client {

// `struct_size` as the caller compiled it must be what this library knows: a larger struct has
// fields whose meaning would be lost silently.
absl::Status CheckStructSize(size_t given, size_t known, absl::string_view name);

struct OpenArguments {
  Endpoint endpoint;
  v1::JobSpec job;
};
// A missing address becomes DMUON_ADDRESS or the default unix socket.
absl::StatusOr<OpenArguments> FromC(const dmuon_config& config);
absl::StatusOr<v1::Group> FromC(const dmuon_group& group);
struct TensorArguments {
  v1::Tensor tensor;
  v1::Shard shard;
};
absl::StatusOr<TensorArguments> FromC(const dmuon_tensor& tensor);
std::vector<v1::Hyper> FromC(std::span<const dmuon_hyper> hypers);

// By reason, else by code.
dmuon_status_t CodeOf(const absl::Status& status);
// "DMUON_OK"; "DMUON_UNKNOWN_STATUS" for a number without a name.
const char* NameOf(int32_t status);

}  // namespace dmuon::client
