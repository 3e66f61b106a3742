// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Nodes in one process: the slow and obvious transport, against which the others are judged. No
// thread of its own; whichever end starts a message second copies it.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/transport/transport.h"
#include "wire/mutex.h"

namespace dmuon::transport {

class Room;

// Where the transports of one process meet. Any thread; may be destroyed before its transports.
class Switchboard {
 public:
  // A transport that meets those of the same prefix. Does not wait for them: a node that never
  // connects is found by Exchange::Wait. INVALID_ARGUMENT for a bad mesh, or other nodes than the
  // first of this prefix named; ALREADY_EXISTS when this node was there.
  absl::StatusOr<std::unique_ptr<Transport>> Connect(const Mesh& mesh, Options options = {});

  // Faults for tests, of the connections that are open now.
  // As if the node's process were killed: its peers' waits, and its own, fail with UNAVAILABLE.
  void Drop(const std::string& node);
  // What `from` sends to `to`, but for the next `passing` messages, is lost; waits for it end by their
  // deadline.
  void Cut(const std::string& from, const std::string& to, uint64_t passing = 0);

 private:
  wire::Mutex mu_;                                                         // taken before a room's
  std::map<std::string, std::weak_ptr<Room>> rooms_ ABSL_GUARDED_BY(mu_);  // by prefix
};

}  // namespace dmuon::transport
