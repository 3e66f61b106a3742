// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What a client may ask between two steps: checkpoints, and the state itself.

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/src/client.h"
#include "wire/error.h"
#include "wire/validate.h"

namespace dmuon::client {
namespace {

constexpr size_t kKnownSaves = 16;
constexpr std::chrono::milliseconds kShortestWait{100};  // for a checkpoint

}  // namespace

absl::Status Client::Save(const std::string& name, Timeout timeout) {
  DMUON_RETURN_IF_ERROR(wire::ValidateCheckpointName(name));
  wire::MutexLock lock(mu_);
  if (operation_ != Operation::kSave || checkpoint_ != name) {
    DMUON_RETURN_IF_ERROR(RequireBetweenSteps("dmuon_save"));
    PostSave(Operation::kSave, name, last_step_, attachment_.CallDeadline());
  }
  const absl::Status status = Await("dmuon_save", timeout);
  Heed(status);
  if (!status.ok()) return status;
  std::erase_if(saves_, [&](const auto& save) { return save.first == name; });
  saves_.emplace_back(name, last_step_);
  if (saves_.size() > kKnownSaves) saves_.pop_front();
  return status;
}

absl::Status Client::WaitSaved(const std::string& name, Timeout timeout) {
  wire::MutexLock lock(mu_);
  DMUON_RETURN_IF_ERROR(RequireBetweenSteps("dmuon_wait_saved"));
  const auto save = std::ranges::find(saves_, name, &std::pair<std::string, uint64_t>::first);
  if (save == saves_.end()) {
    return NotReady(absl::StrCat("checkpoint '", absl::CEscape(name), "' is none of the last ", kKnownSaves,
                                 " of which dmuon_save was DMUON_OK"));
  }
  const uint64_t step = save->second;
  // One round trip at least, and no longer than other calls.
  const Deadline until = std::min(std::max(DeadlineOf(timeout), Clock::now() + kShortestWait), attachment_.CallDeadline());
  PostSave(Operation::kWaitSaved, name, step, until);
  absl::Status status = Await("dmuon_wait_saved", std::nullopt);
  Heed(status);
  if (status.code() != absl::StatusCode::kDeadlineExceeded) return status;
  return absl::DeadlineExceededError(absl::StrCat("checkpoint ", name, " of step ", step, " of job ", endpoint_.job_id,
                                                  " does not exist yet, dmuon_wait_saved may be called again: ",
                                                  status.message()));
}

absl::StatusOr<uint64_t> Client::Restore(const std::string& name, Timeout timeout) {
  DMUON_RETURN_IF_ERROR(wire::ValidateCheckpointName(name));
  wire::MutexLock lock(mu_);
  if (operation_ != Operation::kRestore || checkpoint_ != name) {
    DMUON_RETURN_IF_ERROR(RequireBegun("dmuon_restore"));
    wanted_step_ = answered_step_ = 0;
    row_factors_.clear();
    checkpoint_ = name;
    restore_request_.set_name(name);
    Post(Operation::kRestore);
  }
  const absl::Status status = Await("dmuon_restore", timeout);
  Heed(status);
  if (!status.ok()) return status;
  last_step_ = restore_response_.last_step();
  return last_step_;
}

void Client::PostSave(Operation operation, const std::string& name, uint64_t step, Deadline until) {
  checkpoint_ = name;
  save_request_.set_name(name);
  save_request_.set_step(step);
  save_request_.set_wait(operation == Operation::kWaitSaved);
  save_last_step_ = last_step_;
  save_until_ = until;
  Post(operation);
}

absl::StatusOr<std::span<const std::byte>> Client::Export(Timeout timeout) {
  wire::MutexLock lock(mu_);
  if (operation_ != Operation::kExport) {
    DMUON_RETURN_IF_ERROR(RequireBetweenSteps("dmuon_export_state"));
    Unmap();
    export_step_ = last_step_;
    Post(Operation::kExport);
  }
  const absl::Status status = Await("dmuon_export_state", timeout);
  Heed(status);
  if (!status.ok()) return status;
  absl::StatusOr<StateView> view = StateView::Map(std::exchange(exported_, wire::ScopedFd()));
  if (!view.ok()) {
    attachment_.Release();
    return view.status();
  }
  state_ = *std::move(view);
  return state_.bytes();
}

absl::Status Client::ReleaseState() {
  wire::MutexLock lock(mu_);
  DMUON_RETURN_IF_ERROR(RequireIdle("dmuon_release_state"));
  Unmap();
  return absl::OkStatus();
}

void Client::Unmap() {
  if (!state_.mapped()) return;
  state_ = StateView();
  attachment_.Release();
}

absl::StatusOr<uint64_t> Client::Import(int state, const std::string& digest, Timeout timeout) {
  DMUON_RETURN_IF_ERROR(wire::ValidateDigest(digest));
  wire::MutexLock lock(mu_);
  if (operation_ != Operation::kImport || import_request_.digest() != digest) {
    DMUON_RETURN_IF_ERROR(RequireBegun("dmuon_import_state"));
    wire::ScopedFd own(state < 0 ? -1 : ::fcntl(state, F_DUPFD_CLOEXEC, 0));
    if (state >= 0 && !own.valid()) {
      return wire::InvalidField(absl::StrCat("descriptor ", state, " of a state: ", std::strerror(errno)));
    }
    wanted_step_ = answered_step_ = 0;
    row_factors_.clear();
    imported_ = std::move(own);
    import_request_.set_digest(digest);
    Post(Operation::kImport);
  }
  const absl::Status status = Await("dmuon_import_state", timeout);
  if (operation_ == Operation::kNone) imported_.Reset();
  Heed(status);
  if (!status.ok()) return status;
  last_step_ = import_response_.last_step();
  return last_step_;
}

}  // namespace dmuon::client
