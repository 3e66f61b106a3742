// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/state_exchange.h"

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "daemon/checkpoint/image.h"
#include "wire/error.h"

namespace dmuon::node {

absl::StatusOr<std::shared_ptr<const GivenState>> CopyState(checkpoint::Head head, StepPipeline& pipeline,
                                                            MemoryBudget& budget) {
  auto given = std::make_shared<GivenState>();
  DMUON_ASSIGN_OR_RETURN(given->share, budget.Take(pipeline.state_bytes(), absl::StrCat("a copy of the state of job '",
                                                                                        head.job_id, "' for its workers")));
  DMUON_ASSIGN_OR_RETURN(checkpoint::Image image, pipeline.CopyInto([&](std::vector<checkpoint::Entry> entries) {
                           return checkpoint::CreateSharedImage(head, std::move(entries));
                         }));
  DMUON_ASSIGN_OR_RETURN(given->part, checkpoint::SealPart(std::move(head), std::move(image)));
  return given;
}

absl::StatusOr<RestoreSource::Contents> BroughtState::Find() const {
  DMUON_RETURN_IF_ERROR(part_.status());
  const checkpoint::Head& head = (*part_)->head();
  return Contents{absl::StrCat(name_, " of step ", head.step), absl::StrCat(head.step, " ", head.entries.size())};
}

absl::StatusOr<RestoreSource::Opened> BroughtState::Open(const std::string& contents) const {
  Opened opened;
  SavedSource source;
  source.name = checkpoint::kReceived;
  source.origin = "a worker";
  source.here = part_.ok();
  if (part_.ok()) source.arrays = *part_;
  const std::pair<std::string, std::string> numbers = absl::StrSplit(contents, absl::MaxSplits(' ', 1));
  if (!absl::SimpleAtoi(numbers.first, &opened.step) || !absl::SimpleAtoi(numbers.second, &source.count)) {
    return wire::Error(absl::StatusCode::kDataLoss, v1::ERROR_REASON_CHECKPOINT,
                       absl::StrCat("another node says of ", name_, " no step and number of arrays"));
  }
  opened.sources.push_back(std::move(source));
  return opened;
}

}  // namespace dmuon::node
