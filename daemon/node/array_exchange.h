// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Moves arrays between the nodes of a job, in rounds that are small enough to be staged. What has the arrays, and what
// becomes of them, is the caller's: files of a checkpoint today.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "daemon/node/array_transfers.h"
#include "daemon/transport/transport.h"

namespace dmuon::node {

// What a node sends, and what it receives, in a round at most.
inline constexpr uint64_t kExchangeRoundBytes = uint64_t{64} << 20;

// What this node's end of an exchange can do. All on the thread of Run.
struct ExchangeEnd {
  // All values of an array that this node has, proved.
  std::function<absl::Status(const ArrayRef& array, std::span<float> to)> read;
  // All values of an array that this node needs.
  std::function<void(const ArrayRef& array, std::span<const float> values)> take;
  // A meeting of all nodes: tells them what is wrong here, and answers what is wrong anywhere, on all nodes the same.
  std::function<absl::Status(const absl::Status& mine)> agree;
  // Messages to and from other nodes, at most one a node and direction.
  std::function<absl::Status(std::vector<transport::Outgoing> out, std::vector<transport::Incoming> in)> move;
};

class ArrayExchange {
 public:
  // `transfers` outlives it, and is the same on all `nodes` nodes, as `round_bytes` is.
  ArrayExchange(std::span<const ArrayTransfer> transfers, size_t nodes, uint32_t self, ExchangeEnd end,
                uint64_t round_bytes = kExchangeRoundBytes);

  // What such an exchange needs for its buffers: both directions of a round, and in each the longest array that does not
  // fit one.
  static uint64_t BytesFor(std::span<const ArrayTransfer> transfers, uint32_t self,
                           uint64_t round_bytes = kExchangeRoundBytes);

  // On all nodes together; once. Nothing is sent of a round before all nodes have read what they send in it. OK: all nodes
  // have taken all. The first error of `agree` or `move`; what was taken by then means nothing.
  absl::Status Run();
  // Bytes of arrays that have come from other nodes.
  [[nodiscard]] uint64_t received_bytes() const { return received_bytes_; }

 private:
  // One direction.
  struct Side {
    std::vector<float> buffer;               // of all messages of a round
    std::vector<std::span<float>> messages;  // by node
    std::vector<float> split;                // the array that goes in several rounds, whole
  };

  void Stage(const TransferRound& round);
  absl::Status Pack(const TransferRound& round);
  absl::Status PackPiece(const ArrayPiece& piece, std::span<float> to);
  absl::Status Move();
  void Unpack(const TransferRound& round);
  void UnpackPiece(const ArrayPiece& piece, std::span<const float> values);

  const std::span<const ArrayTransfer> transfers_;
  const size_t nodes_;
  const uint32_t self_;
  const ExchangeEnd end_;
  const uint64_t most_;  // elements
  Side out_;
  Side in_;
  uint64_t received_bytes_ = 0;
};

}  // namespace dmuon::node
