// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What the nodes tell each other before a restore: which state, which of its sources each of them can read, and what is in
// those that not all can. Afterwards all know the same.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/node/restore_source.h"
#include "daemon/node/round.h"
#include "dmuon/v1/peer.pb.h"

namespace dmuon::node {

class RestoreMeeting {
 public:
  // Tells all nodes this node's share, and what is wrong here; all nodes' reports, or what is wrong anywhere.
  using Tell = std::function<absl::StatusOr<Reports>(const absl::Status& mine, const v1::RestoreShare& share)>;

  // What one report tells of arrays, about: far below what a report may have.
  static constexpr size_t kToldBytes = size_t{16} << 20;

  // `source` outlives it. `told_bytes`: the same on all nodes.
  RestoreMeeting(const RestoreSource* source, std::vector<std::string> nodes, uint32_t self,
                 size_t told_bytes = kToldBytes);

  // Says in `report` which state this node restores; an error that ends it for all.
  absl::Status Announce(v1::PeerReport& report);

  struct Sources {
    std::string id;
    uint64_t step = 0;
    std::vector<SavedSource> sources;             // with arrays those that anybody can read; what others have only tells
    std::vector<std::vector<uint32_t>> holders;  // who can read it, by source; ascending
  };
  // `reports`: of the meeting that Announce was for, checked. The same errors on all nodes: NOT_FOUND when nobody knows the
  // state, or nobody has a source that has arrays (naming file and origin); of RestoreSource; of `tell`.
  absl::StatusOr<Sources> Agree(const Reports& reports, const Tell& tell);

 private:
  absl::StatusOr<RestoreSource::Contents> AgreeOnContents(const Reports& reports, const Tell& tell) const;
  absl::Status CheckHeld(const Sources& met) const;
  absl::Status ShareArrays(const Tell& tell, Sources& met) const;

  const RestoreSource* const source_;
  const std::vector<std::string> nodes_;
  const uint32_t self_;
  const size_t told_bytes_;
  RestoreSource::Contents contents_;
};

}  // namespace dmuon::node
