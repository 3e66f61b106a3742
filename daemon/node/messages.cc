// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/messages.h"

#include <map>
#include <utility>

#include "wire/validate.h"

namespace dmuon::node {
namespace {

constexpr size_t kPieceAlignment = 4;

Piece PieceOf(const v1::JobSpec& job, const v1::Plan& plan, const v1::Transfer& transfer,
              Cargo cargo) {
  Piece piece;
  piece.unit = transfer.unit();
  piece.tensor = plan.units(static_cast<int>(piece.unit)).tensor();
  piece.box = wire::FromProto(transfer.box());
  piece.copies = transfer.copies();
  const v1::Tensor& tensor = job.tensors(static_cast<int>(piece.tensor));
  if (cargo == Cargo::kParameter) {
    piece.dtype = tensor.param_dtype();
  } else {
    piece.dtype = piece.copies == 1 ? tensor.grad_dtype() : v1::DTYPE_FLOAT32;
  }
  return piece;
}

size_t PaddedBytes(const Piece& piece) {
  const size_t bytes = static_cast<size_t>(piece.box.elements()) * wire::SizeOf(piece.dtype);
  return (bytes + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment;
}

}  // namespace

const char* CargoName(Cargo cargo) {
  switch (cargo) {
    case Cargo::kGradient:
      return "gradient";
    case Cargo::kParameter:
      return "parameter";
    case Cargo::kState:
      return "state";
  }
  return "unknown";
}

Mail MailOf(const v1::JobSpec& job, const v1::Plan& plan, const Transfers& list, Cargo cargo,
            uint32_t self) {
  struct Draft {
    Message message;
    size_t bytes = 0;
  };
  std::map<std::pair<uint32_t, uint32_t>, Draft> out;  // by bucket and peer
  std::map<std::pair<uint32_t, uint32_t>, Draft> in;
  for (const v1::Transfer& transfer : list) {
    const uint32_t bucket = plan.units(static_cast<int>(transfer.unit())).bucket();
    const bool sending = transfer.from() == self;
    const uint32_t peer = sending ? transfer.to() : transfer.from();
    Draft& draft = (sending ? out : in)[{bucket, peer}];
    draft.message.peer = peer;
    draft.message.bucket = bucket;
    Piece piece = PieceOf(job, plan, transfer, cargo);
    piece.offset = draft.bytes;
    draft.bytes += PaddedBytes(piece);
    draft.message.pieces.push_back(std::move(piece));
  }
  const auto finish = [](auto& drafts) {
    std::vector<Message> messages;
    for (auto& [key, draft] : drafts) {
      draft.message.bytes.resize(draft.bytes);
      messages.push_back(std::move(draft.message));
    }
    return messages;
  };
  return {cargo, finish(out), finish(in)};
}

uint32_t BucketsOf(const v1::Plan& plan) {
  return plan.units().empty() ? 0 : plan.units(plan.units_size() - 1).bucket() + 1;
}

uint64_t MailBytes(const v1::JobSpec& job, const v1::Plan& plan, const Transfers& list,
                   Cargo cargo) {
  uint64_t bytes = 0;
  for (const v1::Transfer& transfer : list) {
    bytes += PaddedBytes(PieceOf(job, plan, transfer, cargo));
  }
  return bytes;
}

}  // namespace dmuon::node
