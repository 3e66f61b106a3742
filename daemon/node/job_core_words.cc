// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What a job waits for, in words.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "daemon/node/job_core.h"
#include "wire/error.h"

namespace dmuon::node {
namespace {

constexpr absl::string_view kBrought = "state:";  // checkpoints have no colon in their names

std::string RankList(const std::vector<uint32_t>& ranks) {
  constexpr size_t kShown = 8;
  const size_t shown = std::min(ranks.size(), kShown);
  std::string text = absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ",
                                  absl::StrJoin(ranks.begin(), ranks.begin() + shown, ", "));
  if (ranks.size() > shown) absl::StrAppend(&text, " and ", ranks.size() - shown, " more");
  return text;
}

}  // namespace

std::string NameOfBrought(const std::string& digest) { return absl::StrCat(kBrought, digest); }

std::string DigestOfBrought(const std::string& name) {
  absl::string_view digest = name;
  return absl::ConsumePrefix(&digest, kBrought) ? std::string(digest) : "";
}

std::string Restorable(const std::string& name) {
  const std::string digest = DigestOfBrought(name);
  return digest.empty() ? absl::StrCat("checkpoint '", name, "'") : absl::StrCat("what workers have brought (", digest, ")");
}

absl::Status JobCore::Missing(const Rank& waiting) const {
  std::string what = "the coordinator's plan";
  std::string who;
  if (waiting.stage == Stage::kRegistering) who = Others(Stage::kRegistering, false);
  if (waiting.stage == Stage::kBeginning) {
    what = "the start";
    who = Others(Stage::kBeginning, false);
  } else if (waiting.stepping) {
    what = waiting.restore.empty() ? absl::StrCat("step ", last_step_ + 1)
                                   : absl::StrCat("restoring ", Restorable(waiting.restore));
    who = Others(Stage::kReady, true);
  }
  return wire::Error(absl::StatusCode::kDeadlineExceeded, v1::ERROR_REASON_WORKER_MISSING,
               absl::StrCat("job '", options_.job_id, "': ", what, " waits for ",
                            who.empty() ? "the coordinator" : who,
                            "; nothing changed, call again"));
}

// The ranks that are not yet where they are waited for. One that waited in vain itself is not to
// blame, and is named only when there is no other.
std::string JobCore::Others(Stage at_least, bool stepping) const {
  std::vector<uint32_t> missing;
  std::vector<uint32_t> gave_up;
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    const Rank& r = ranks_[rank];
    if (!r.here || (r.stage >= at_least && (!stepping || r.stepping))) continue;
    (r.gave_up ? gave_up : missing).push_back(rank);
  }
  if (missing.empty()) missing = std::move(gave_up);
  return missing.empty() ? "" : RankList(missing);
}

std::string JobCore::Describe() const {
  if (!failure_.ok()) return absl::StrCat("stopped: ", failure_.message());
  if (follows_) {
    return initialized_ ? absl::StrCat("step ", last_step_ + 1, ", for workers of other nodes") : "starting, for workers of other nodes";
  }
  if (rank_of_.empty()) return absl::StrCat("no worker attached, state of step ", last_step_);
  if (generation_ == 0) {
    return absl::StrCat("registering, waiting for ", Others(Stage::kRegistering, false));
  }
  if (!initialized_) return absl::StrCat("starting, waiting for ", Others(Stage::kBeginning, false));
  const std::string absent = Others(Stage::kReady, false);
  if (!absent.empty()) return absl::StrCat("step ", last_step_ + 1, ", waiting for the return of ", absent);
  const std::string missing = Others(Stage::kReady, true);
  return absl::StrCat("step ", last_step_ + 1, ", waiting for ", missing.empty() ? "nobody" : missing);
}

}  // namespace dmuon::node
