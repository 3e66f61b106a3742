// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/saver.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "daemon/base/clock.h"
#include "daemon/base/failpoint.h"
#include "daemon/node/checkpoint_calls.h"
#include "wire/error.h"

namespace dmuon::node {
namespace {

constexpr int kNice = 19;
constexpr absl::Duration kAskAgain = absl::Milliseconds(50);
// A daemon that shuts down does not wait longer for other nodes' parts.
constexpr absl::Duration kLastWait = absl::Seconds(5);

checkpoint::Part FromProto(const v1::CheckpointPart& part) {
  return {part.node_id(), part.file(), part.bytes(), part.entries(), part.header_sha256()};
}

absl::Status Failed(absl::StatusCode code, const std::string& why) {
  return wire::Error(code, v1::ERROR_REASON_CHECKPOINT, why);
}

}  // namespace

v1::ReportPartRequest PartReport(const checkpoint::Manifest& manifest, const absl::StatusOr<checkpoint::Part>& part) {
  v1::ReportPartRequest report;
  report.set_job_id(manifest.job_id);
  report.set_generation(manifest.generation);
  report.set_name(manifest.name);
  report.set_step(manifest.step);
  if (!part.ok()) {
    report.set_failure(std::string(part.status().message()));
    return report;
  }
  *report.mutable_part() = ToMessage(*part);
  return report;
}

Saver::Saver(std::string node_id, checkpoint::Store* store, CoordinatorLink* link, absl::Duration peer_timeout)
    : node_id_(std::move(node_id)), store_(store), link_(link), peer_timeout_(peer_timeout) {}

Saver::~Saver() {
  ending_ = true;
  Finish();
}

void Saver::Finish() {
  if (thread_.joinable()) thread_.join();
}

void Saver::Start(Save save, Done done) {
  Finish();
  SetProgress(absl::StrCat("writing '", save.manifest.name, "'"));
  thread_ = std::thread([this, save = std::move(save), done = std::move(done)]() mutable {
    // Steps come first. Of this thread only; where it is not permitted, it competes with them.
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice);
    const absl::StatusOr<uint64_t> bytes = Run(save);
    SetProgress("");
    done(bytes);
  });
}

std::string Saver::Progress() const {
  wire::MutexLock lock(mu_);
  return progress_;
}

void Saver::SetProgress(std::string text) {
  wire::MutexLock lock(mu_);
  progress_ = std::move(text);
}

absl::StatusOr<uint64_t> Saver::Run(Save& save) {
  AtFailpoint(Failpoint::kSaveCopied);
  checkpoint::Manifest& manifest = save.manifest;
  const auto progress = [&](uint64_t bytes, uint64_t total) {
    const double share = total == 0 ? 1.0 : static_cast<double>(bytes) / static_cast<double>(total);
    SetProgress(absl::StrFormat("writing '%s' of step %d: %.0f %% of %d bytes", manifest.name, manifest.step,
                                100.0 * share, total));
    return true;
  };
  const absl::StatusOr<checkpoint::Part> part = [&] {
    const checkpoint::Image image = std::move(save.image);  // its memory goes when it is written
    return store_->WritePart(manifest, node_id_, image, progress);
  }();
  AtFailpoint(Failpoint::kSaveWritten);
  save.share = MemoryBudget::Share();
  if (save.alone) {
    DMUON_RETURN_IF_ERROR(part.status());
    manifest.parts = {*part};
  } else {
    absl::StatusOr<std::vector<checkpoint::Part>> parts = Exchange(manifest, part);
    // Only where no node can have committed: who hears nothing does not know whether the others have all parts.
    if (absl::IsAborted(parts.status()) && part.ok()) store_->Discard(manifest, *part);
    DMUON_RETURN_IF_ERROR(parts.status());
    manifest.parts = *std::move(parts);
  }
  DMUON_RETURN_IF_ERROR(store_->Commit(manifest));
  AtFailpoint(Failpoint::kSaveCommitted);
  if (manifest.automatic) store_->Prune(manifest.job_id, save.keep).IgnoreError();
  return part->bytes;
}

// Asks until all nodes have said what became of their parts. A coordinator that is away may come back.
absl::StatusOr<std::vector<checkpoint::Part>> Saver::Exchange(const checkpoint::Manifest& manifest,
                                                              const absl::StatusOr<checkpoint::Part>& mine) {
  const v1::ReportPartRequest report = PartReport(manifest, mine);
  const absl::Time deadline = MonotonicNow() + peer_timeout_;
  std::optional<absl::Time> last;  // once the daemon shuts down
  std::string missing = "the coordinator";
  while (true) {
    const absl::StatusOr<v1::ReportPartResponse> response = link_->ReportPart(report);
    if (response.ok()) {
      if (!mine.ok()) return mine.status();  // the others know
      if (!response->failure().empty()) return Failed(absl::StatusCode::kAborted, response->failure());
      if (response->parts_size() > 0) {
        std::vector<checkpoint::Part> parts;
        for (const v1::CheckpointPart& part : response->parts()) parts.push_back(FromProto(part));
        return parts;
      }
      missing = absl::StrCat("node ", absl::StrJoin(response->waiting_for(), ", "));
    } else if (!absl::IsUnavailable(response.status()) && !absl::IsNotFound(response.status())) {
      return response.status();
    }
    const absl::Time now = MonotonicNow();
    if (ending_ && !last.has_value()) last = now + kLastWait;
    if (now >= std::min(deadline, last.value_or(deadline))) {
      if (!mine.ok()) return mine.status();
      return Failed(absl::StatusCode::kDeadlineExceeded,
                    absl::StrCat("checkpoint '", manifest.name, "' of step ", manifest.step, " waited in vain for ",
                                 missing, "; workers of every node must call for it after the same step"));
    }
    SetProgress(absl::StrCat("'", manifest.name, "' of step ", manifest.step, " is written here and waits for ", missing));
    absl::SleepFor(kAskAgain);
  }
}

}  // namespace dmuon::node
