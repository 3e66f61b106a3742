// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The messages of a job between this node and its peers: what lies where in them. Derived from the
// plan's routes alone, so both ends have the same picture.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dmuon/v1/plan.pb.h"
#include "dmuon/v1/tensor.pb.h"
#include "wire/box.h"

namespace dmuon::node {

// A piece of a unit inside a message, row-major.
struct Piece {
  uint32_t unit = 0;    // index into the plan's units
  uint32_t tensor = 0;  // index into the job's tensors
  wire::Box box;
  v1::DType dtype = v1::DTYPE_FLOAT32;  // of its elements
  size_t offset = 0;                    // in the message's bytes
  uint32_t copies = 1;                  // workers whose gradients are summed in it
};

struct Message {
  uint32_t peer = 0;  // index into the plan's nodes
  uint32_t bucket = 0;
  std::vector<Piece> pieces;
  std::vector<std::byte> bytes;  // allocated once, reused every step

  [[nodiscard]] const std::byte* at(const Piece& piece) const {
    return bytes.data() + piece.offset;
  }
  std::byte* at(const Piece& piece) { return bytes.data() + piece.offset; }
};

enum class Cargo : uint8_t { kGradient, kParameter, kState };

// "gradient", "parameter", "state".
const char* CargoName(Cargo cargo);

// Both directions of one kind of transfer, sorted by bucket, then by peer; one message a pair.
struct Mail {
  Cargo cargo = Cargo::kGradient;
  std::vector<Message> out;
  std::vector<Message> in;
};

// The transfers of `list` that concern node `self`. Elements are of the job's gradient type in a
// gradient of one copy, fp32 in a sum, of the job's parameter type otherwise.
using Transfers = google::protobuf::RepeatedPtrField<v1::Transfer>;
Mail MailOf(const v1::JobSpec& job, const v1::Plan& plan, const Transfers& list, Cargo cargo,
            uint32_t self);

// How many buckets the plan's units have.
uint32_t BucketsOf(const v1::Plan& plan);

// Bytes of all messages of such a list, both directions.
uint64_t MailBytes(const v1::JobSpec& job, const v1::Plan& plan, const Transfers& list,
                   Cargo cargo);

}  // namespace dmuon::node
