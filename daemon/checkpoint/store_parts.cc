// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The store's state, and what it does with parts.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/log.h"
#include "daemon/checkpoint/json.h"
#include "daemon/checkpoint/names.h"
#include "daemon/checkpoint/part_file.h"
#include "daemon/checkpoint/store.h"
#include "daemon/checkpoint/store_state.h"
#include "wire/error.h"
#include "wire/validate.h"

namespace dmuon::checkpoint {
namespace {

absl::Status CheckRoom(const Directory& directory, uint64_t bytes) {
  DMUON_ASSIGN_OR_RETURN(const uint64_t room, directory.FreeBytes());
  if (bytes <= room) return absl::OkStatus();
  return wire::Error(absl::StatusCode::kResourceExhausted, v1::ERROR_REASON_CHECKPOINT,
                     absl::StrCat("a part of ", bytes, " bytes does not fit ", directory.PathOf(""), ", which has room for ",
                                  room));
}

// A name that no manifest has for other values: a checkpoint may be saved again at the step where it is.
absl::StatusOr<std::string> FreePartFile(const JobFolder& job, const Manifest& of, const std::string& node) {
  const absl::StatusOr<Manifest> former = job.Read(of.name);
  for (int again = 0;; ++again) {
    std::string file = PartFile(of, node, again);
    if (absl::IsNotFound(former.status())) return file;
    if (former.ok()) {
      const bool named = std::any_of(former->parts.begin(), former->parts.end(),
                                     [&](const Part& part) { return part.file == file; });
      if (!named) return file;
      continue;
    }
    // What a manifest names that cannot be read, nobody knows: any file may be.
    const absl::Status there = job.directory.OpenFile(file).status();
    if (absl::IsNotFound(there)) return file;
    DMUON_RETURN_IF_ERROR(there);
  }
}

absl::Status ValidatePart(const Manifest& of, const std::string& node) {
  DMUON_RETURN_IF_ERROR(wire::ValidateId(of.job_id, "job_id"));
  DMUON_RETURN_IF_ERROR(wire::ValidateId(node, "node"));
  DMUON_RETURN_IF_ERROR(ValidateName(of.name));
  return ValidateVersion(of.version);
}

}  // namespace

absl::StatusOr<Manifest> JobFolder::Read(const std::string& name) const {
  DMUON_ASSIGN_OR_RETURN(const std::string file, ManifestFile(name));
  DMUON_ASSIGN_OR_RETURN(const std::string json, directory.Read(file, kMaxManifestBytes));
  absl::StatusOr<Manifest> manifest = ParseManifest(json);
  if (!manifest.ok()) return Prefixed(directory.PathOf(file), manifest.status());
  if (manifest->job_id == job_id && manifest->name == name) return manifest;
  return Damaged(absl::StrCat(directory.PathOf(file), ": is checkpoint ", manifest->name, " of job ", manifest->job_id,
                              ", must be ", name, " of ", job_id));
}

void BusyFiles::Insert(const std::string& folder, const std::string& file) {
  const wire::MutexLock lock(mu_);
  files_.emplace(folder, file);
}

void BusyFiles::Erase(const std::string& folder, const std::string& file) {
  const wire::MutexLock lock(mu_);
  files_.erase({folder, file});
}

bool BusyFiles::Has(const std::string& folder, const std::string& file) const {
  const wire::MutexLock lock(mu_);
  return files_.contains({folder, file});
}

absl::StatusOr<JobFolder> Store::State::Open(const std::string& job_id) const {
  DMUON_ASSIGN_OR_RETURN(const std::string folder, FolderOf(job_id));
  DMUON_ASSIGN_OR_RETURN(Directory directory, root.Open(folder));
  return JobFolder{job_id, folder, std::move(directory)};
}

absl::StatusOr<JobFolder> Store::State::OpenOrMake(const std::string& job_id) const {
  DMUON_ASSIGN_OR_RETURN(const std::string folder, FolderOf(job_id));
  DMUON_ASSIGN_OR_RETURN(Directory directory, root.OpenOrMake(folder));
  return JobFolder{job_id, folder, std::move(directory)};
}

void Store::State::Remember(const std::string& folder, const std::string& node) {
  const wire::MutexLock lock(mu);
  nodes[folder] = node;
}

std::string Store::State::NodeOf(const std::string& folder, const Manifest& manifest) const {
  const wire::MutexLock lock(mu);
  const auto node = nodes.find(folder);
  if (node != nodes.end()) return node->second;
  return manifest.parts.empty() ? "nobody" : manifest.parts.front().node;
}

absl::StatusOr<Part> Store::WritePart(const Manifest& of, const std::string& node, const Image& image,
                                      const Progress& progress) {
  DMUON_RETURN_IF_ERROR(ValidatePart(of, node));
  DMUON_ASSIGN_OR_RETURN(const JobFolder job, state_->OpenOrMake(of.job_id));
  state_->Remember(job.folder, node);
  Head head{of.job_id, of.name, of.step, of.generation, node, of.version, {}, {}};
  DMUON_ASSIGN_OR_RETURN(const uint64_t bytes, PartFileBytes(head, image));
  DMUON_RETURN_IF_ERROR(CheckRoom(job.directory, bytes));
  const Busy draft_name(state_->busy, job.folder, DraftFile(node));
  DMUON_ASSIGN_OR_RETURN(Draft draft, Draft::Create(job.directory, draft_name.file()));
  DMUON_ASSIGN_OR_RETURN(Part part, WritePartFile(std::move(head), image, progress, draft));
  DMUON_ASSIGN_OR_RETURN(const std::string file, FreePartFile(job, of, node));
  Busy name(state_->busy, job.folder, file);
  part.file = name.file();
  if (const absl::Status published = draft.Publish(part.file); !published.ok()) {
    if (draft.renamed()) {
      const absl::Status removed = job.directory.Remove(part.file);
      if (!removed.ok()) LogWarning(removed.message());
    }
    return published;
  }
  name.Keep();
  return part;
}

absl::StatusOr<std::unique_ptr<ArraySource>> Store::OpenPart(const Manifest& manifest, const Part& part) const {
  absl::StatusOr<JobFolder> job = state_->Open(manifest.job_id);
  if (absl::IsNotFound(job.status())) {
    return Prefixed(absl::StrCat("the part ", part.file, " of node ", part.node), job.status());
  }
  if (!job.ok()) return job.status();
  if (!IsPlainName(part.file)) return Damaged(absl::StrCat("the part of node ", part.node, " has no plain file name"));
  return DiskPart::Open(job->directory, manifest, part);
}

std::vector<std::string> Store::AbsentFiles(const Manifest& manifest) const {
  const absl::StatusOr<JobFolder> job = state_->Open(manifest.job_id);
  std::vector<std::string> absent;
  for (const Part& part : manifest.parts) {
    if (!job.ok() || absl::IsNotFound(job->directory.OpenFile(part.file).status())) absent.push_back(part.file);
  }
  return absent;
}

absl::Status Store::Verify(const Manifest& manifest, const Progress& progress) const {
  uint64_t total = 0;
  for (const Part& part : manifest.parts) total += part.bytes;
  uint64_t done = 0;
  const auto chunk = [&](uint64_t bytes) {
    done += bytes;
    return !progress || progress(std::min(done, total), total);
  };
  DMUON_ASSIGN_OR_RETURN(const JobFolder job, state_->Open(manifest.job_id));
  absl::Status absent;
  for (const Part& part : manifest.parts) {
    if (!IsPlainName(part.file)) return Damaged(absl::StrCat("the part of node ", part.node, " has no plain file name"));
    const absl::StatusOr<std::unique_ptr<DiskPart>> open = DiskPart::Open(job.directory, manifest, part);
    if (absl::IsNotFound(open.status())) {
      absent.Update(open.status());  // other nodes' parts need not be here, this node's may come behind them
      continue;
    }
    DMUON_RETURN_IF_ERROR(open.status());
    const uint64_t before = done;
    for (size_t i = 0; i < (*open)->entries().size(); ++i) DMUON_RETURN_IF_ERROR((*open)->Check(i, chunk));
    // Its head, too.
    chunk(part.bytes - (done - before));
  }
  return absent;
}

}  // namespace dmuon::checkpoint
