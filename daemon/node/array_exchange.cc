// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/array_exchange.h"

#include <algorithm>
#include <numeric>

namespace dmuon::node {
namespace {

bool IsWhole(const ArrayPiece& piece, const ArrayTransfer& transfer) { return piece.count == transfer.needed.elements; }

bool IsLast(const ArrayPiece& piece, const ArrayTransfer& transfer) {
  return piece.first + piece.count == transfer.needed.elements;
}

// Of one direction.
struct Extent {
  uint64_t all = 0;
  uint64_t longest = 0;
  void Add(uint64_t elements) {
    all += elements;
    longest = std::max(longest, elements);
  }
  [[nodiscard]] uint64_t buffers(uint64_t most) const { return std::min(all, most) + (longest > most ? longest : 0); }
};

uint64_t ElementsOf(uint64_t round_bytes) { return std::max<uint64_t>(1, round_bytes / sizeof(float)); }

}  // namespace

ArrayExchange::ArrayExchange(std::span<const ArrayTransfer> transfers, size_t nodes, uint32_t self, ExchangeEnd end,
                             uint64_t round_bytes)
    : transfers_(transfers), nodes_(nodes), self_(self), end_(std::move(end)), most_(ElementsOf(round_bytes)) {}

uint64_t ArrayExchange::BytesFor(std::span<const ArrayTransfer> transfers, uint32_t self, uint64_t round_bytes) {
  Extent out;
  Extent in;
  for (const ArrayTransfer& transfer : transfers) {
    if (transfer.from == transfer.to) continue;
    if (transfer.from == self) out.Add(transfer.needed.elements);
    if (transfer.to == self) in.Add(transfer.needed.elements);
  }
  const uint64_t most = ElementsOf(round_bytes);
  return (out.buffers(most) + in.buffers(most)) * sizeof(float);
}

absl::Status ArrayExchange::Run() {
  const std::vector<TransferRound> rounds = RoundsOf(transfers_, nodes_, most_);
  for (const TransferRound& round : rounds) {
    Stage(round);
    if (absl::Status status = end_.agree(Pack(round)); !status.ok()) return status;
    if (absl::Status status = Move(); !status.ok()) return status;
    Unpack(round);
  }
  return rounds.empty() ? absl::OkStatus() : end_.agree(absl::OkStatus());
}

// The messages of the round, in one buffer a direction, which never becomes longer than a round.
void ArrayExchange::Stage(const TransferRound& round) {
  std::vector<size_t> out(nodes_);
  std::vector<size_t> in(nodes_);
  for (const ArrayPiece& piece : round) {
    const ArrayTransfer& transfer = transfers_[piece.transfer];
    if (transfer.from == self_) out[transfer.to] += piece.count;
    if (transfer.to == self_) in[transfer.from] += piece.count;
  }
  const auto lay_out = [](Side& side, const std::vector<size_t>& counts) {
    const size_t all = std::accumulate(counts.begin(), counts.end(), size_t{0});
    if (side.buffer.size() < all) side.buffer.resize(all);
    side.messages.clear();
    std::span<float> rest(side.buffer);
    for (const size_t count : counts) {
      side.messages.push_back(rest.first(count));
      rest = rest.subspan(count);
    }
  };
  lay_out(out_, out);
  lay_out(in_, in);
}

absl::Status ArrayExchange::Pack(const TransferRound& round) {
  std::vector<std::span<float>> rest = out_.messages;
  for (const ArrayPiece& piece : round) {
    const ArrayTransfer& transfer = transfers_[piece.transfer];
    if (transfer.from != self_) continue;
    std::span<float>& to = rest[transfer.to];
    if (absl::Status status = PackPiece(piece, to.first(piece.count)); !status.ok()) return status;
    to = to.subspan(piece.count);
  }
  return absl::OkStatus();
}

absl::Status ArrayExchange::PackPiece(const ArrayPiece& piece, std::span<float> to) {
  const ArrayTransfer& transfer = transfers_[piece.transfer];
  if (IsWhole(piece, transfer)) return end_.read(transfer.needed.array, to);
  if (piece.first == 0) {
    out_.split.resize(transfer.needed.elements);
    if (absl::Status status = end_.read(transfer.needed.array, out_.split); !status.ok()) return status;
  }
  std::copy_n(out_.split.begin() + static_cast<std::ptrdiff_t>(piece.first), piece.count, to.begin());
  if (IsLast(piece, transfer)) out_.split = {};
  return absl::OkStatus();
}

absl::Status ArrayExchange::Move() {
  std::vector<transport::Outgoing> out;
  std::vector<transport::Incoming> in;
  for (uint32_t node = 0; node < nodes_; ++node) {
    if (!out_.messages[node].empty()) out.push_back({node, std::as_bytes(out_.messages[node])});
    if (in_.messages[node].empty()) continue;
    in.push_back({node, std::as_writable_bytes(in_.messages[node])});
    received_bytes_ += in.back().bytes.size();
  }
  return end_.move(std::move(out), std::move(in));
}

void ArrayExchange::Unpack(const TransferRound& round) {
  std::vector<std::span<float>> rest = in_.messages;
  for (const ArrayPiece& piece : round) {
    const ArrayTransfer& transfer = transfers_[piece.transfer];
    if (transfer.to != self_) continue;
    std::span<float>& values = rest[transfer.from];
    UnpackPiece(piece, values.first(piece.count));
    values = values.subspan(piece.count);
  }
}

void ArrayExchange::UnpackPiece(const ArrayPiece& piece, std::span<const float> values) {
  const ArrayTransfer& transfer = transfers_[piece.transfer];
  if (IsWhole(piece, transfer)) return end_.take(transfer.needed.array, values);
  if (piece.first == 0) in_.split.resize(transfer.needed.elements);
  std::copy(values.begin(), values.end(), in_.split.begin() + static_cast<std::ptrdiff_t>(piece.first));
  if (!IsLast(piece, transfer)) return;
  end_.take(transfer.needed.array, in_.split);
  in_.split = {};
}

}  // namespace dmuon::node
