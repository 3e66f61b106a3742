// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Where the nodes of one plan say what became of their parts of a checkpoint, until all have. A pure core, as the
// coordinator. It has a board for each save, that is a name and a step:
//
//   (none) --a report--> waiting --the last node's part--> complete: all who ask get all parts
//                        waiting --a node failed---------> failed: all who ask are told
//
// A node asks until it is told the end. So whoever comes again after that saves again: a part other than that of a
// complete board, or anything on a failed one of which the node was told, begins the board anew.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "dmuon/v1/coordinator.pb.h"

namespace dmuon::coordinator {

class PartBoard {
 public:
  // Bounds of what a node may say, and of what is kept.
  static constexpr size_t kMaxBoards = 16;  // of a job; the oldest goes
  static constexpr size_t kMaxFileBytes = 255;
  static constexpr size_t kMaxFailureBytes = 1024;  // a longer one is cut

  struct Answer {
    v1::ReportPartResponse response;
    std::string news;  // "checkpoint x of step 4 is complete, 2 parts", once; empty when nothing was decided
  };
  // `nodes` are those of the plan, in its order. INVALID_ARGUMENT for a node that is none of them, and for a malformed
  // report; nothing changes then.
  absl::StatusOr<Answer> Report(const google::protobuf::RepeatedPtrField<std::string>& nodes,
                                const v1::ReportPartRequest& request);

 private:
  struct Board {
    std::string name;
    uint64_t step = 0;
    std::map<std::string, v1::CheckpointPart> parts;  // by node id
    std::string failure;                              // with its node; empty: none
    std::set<std::string> told;                       // nodes that know of the failure
  };

  Board& BoardOf(const std::string& name, uint64_t step);

  std::deque<Board> boards_;  // the oldest first
};

}  // namespace dmuon::coordinator
