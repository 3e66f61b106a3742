// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/checkpoint/store.h"

#include <algorithm>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/base/log.h"
#include "daemon/checkpoint/directory.h"
#include "daemon/checkpoint/json.h"
#include "daemon/checkpoint/names.h"
#include "daemon/checkpoint/part_file.h"
#include "daemon/checkpoint/store_state.h"
#include "wire/error.h"
#include "wire/validate.h"

namespace dmuon::checkpoint {
namespace {

// Of all manifests that can be read; false as `second` when there is one that cannot.
std::pair<std::set<std::string>, bool> NamedFiles(const JobFolder& job, const std::vector<std::string>& files,
                                                  const std::string& but = "") {
  std::pair<std::set<std::string>, bool> named{{}, true};
  for (const std::string& file : files) {
    const std::optional<std::string> name = NameOf(file);
    if (!name || *name == but) continue;
    const absl::StatusOr<Manifest> manifest = job.Read(*name);
    if (absl::IsNotFound(manifest.status())) continue;  // gone since
    if (!manifest.ok()) {
      named.second = false;
      continue;
    }
    for (const Part& part : manifest->parts) named.first.insert(part.file);
  }
  return named;
}

// Removes those of `files` that no manifest but that of `but` names. What cannot be removed is left to Tidy.
void RemoveUnnamed(const JobFolder& job, const std::vector<std::string>& files, const std::string& but) {
  if (files.empty()) return;
  const absl::StatusOr<std::vector<std::string>> all = job.directory.List();
  if (!all.ok()) return LogWarning(all.status().message());
  const std::set<std::string> named = NamedFiles(job, *all, but).first;
  for (const std::string& file : files) {
    if (named.contains(file)) continue;
    if (const absl::Status removed = job.directory.Remove(file); !removed.ok()) LogWarning(removed.message());
  }
}

std::vector<std::string> FilesOf(const Manifest& manifest) {
  std::vector<std::string> files;
  for (const Part& part : manifest.parts) files.push_back(part.file);
  return files;
}

// A checkpoint that is here.
struct Dated {
  int64_t time = 0;  // of its manifest, nanoseconds since 1970
  uint64_t step = 0;
  std::string name;
  bool automatic = false;
};

// Oldest first; without those that are gone by now.
std::vector<Dated> DatesOf(const JobFolder& job, const std::vector<Manifest>& manifests) {
  std::vector<Dated> dates;
  for (const Manifest& manifest : manifests) {
    const absl::StatusOr<std::string> file = ManifestFile(manifest.name);
    const absl::StatusOr<int64_t> time = file.ok() ? job.directory.ChangedAt(*file) : file.status();
    if (time.ok()) dates.push_back({*time, manifest.step, manifest.name, manifest.automatic});
  }
  std::sort(dates.begin(), dates.end(),
            [](const Dated& a, const Dated& b) { return std::tie(a.time, a.step, a.name) < std::tie(b.time, b.step, b.name); });
  return dates;
}

// Of a part that no manifest names: whether retention would have taken it, if it belongs to a checkpoint of other nodes.
bool IsOutOfDate(const JobFolder& job, const std::string& file, const Owner& part, const std::vector<Dated>& dates,
                 uint32_t keep) {
  const absl::StatusOr<int64_t> time = job.directory.ChangedAt(file);
  if (!time.ok()) return false;
  const auto later = [&](auto&& is) {
    return std::count_if(dates.begin(), dates.end(), [&](const Dated& dated) { return dated.time > *time && is(dated); });
  };
  if (later([&](const Dated& dated) { return dated.name == part.name; }) > 0) return true;
  return part.name == AutomaticName(part.step) && keep > 0 &&
         later([](const Dated& dated) { return dated.automatic; }) >= static_cast<int64_t>(keep);
}

absl::Status NotFound(absl::string_view message) {
  return wire::Error(absl::StatusCode::kNotFound, v1::ERROR_REASON_CHECKPOINT, message);
}

// The last few, for people.
std::string SomeOf(const std::vector<std::string>& names) {
  constexpr size_t kSome = 10;
  if (names.empty()) return "none";
  const size_t first = names.size() - std::min(kSome, names.size());
  return absl::StrCat(first > 0 ? absl::StrCat(first, " others, ") : "",
                      absl::StrJoin(names.begin() + static_cast<std::ptrdiff_t>(first), names.end(), ", "));
}

absl::Status Absent(const JobFolder& job, const std::string& job_id, const std::string& name) {
  std::vector<std::string> names;
  for (const std::string& file : job.directory.List().value_or(std::vector<std::string>())) {
    if (const std::optional<std::string> other = NameOf(file)) names.push_back(*other);
  }
  return NotFound(absl::StrCat("job ", job_id, " has no checkpoint ", name, " here; there are: ", SomeOf(names)));
}

// Those that this process wrote are still there.
absl::Status CheckParts(const BusyFiles& busy, const JobFolder& job, const Manifest& manifest) {
  for (const Part& part : manifest.parts) {
    if (!busy.Has(job.folder, part.file)) continue;
    const absl::Status there = job.directory.OpenFile(part.file).status();
    if (there.ok()) continue;
    if (!absl::IsNotFound(there)) return there;
    return wire::Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_CHECKPOINT,
                       absl::StrCat("checkpoint ", manifest.name, " of step ", manifest.step, " lost its part ", part.file,
                                    ": a later one of the name is there, or it was discarded"));
  }
  return absl::OkStatus();
}

}  // namespace

Store::Store(std::unique_ptr<State> state) : state_(std::move(state)) {}
Store::~Store() = default;

absl::StatusOr<std::unique_ptr<Store>> Store::Open(const std::string& root, std::shared_ptr<Files> files) {
  absl::StatusOr<Directory> directory = Directory::OpenRoot(*files, root);
  if (!directory.ok()) return directory.status();
  return std::unique_ptr<Store>(new Store(std::make_unique<State>(std::move(files), *std::move(directory))));
}

absl::Status Store::Commit(const Manifest& manifest) {
  DMUON_RETURN_IF_ERROR(ValidateManifest(manifest));
  DMUON_ASSIGN_OR_RETURN(const JobFolder job, state_->OpenOrMake(manifest.job_id));
  const wire::MutexLock lock(state_->change_mu);
  DMUON_RETURN_IF_ERROR(CheckParts(state_->busy, job, manifest));
  const absl::StatusOr<Manifest> former = job.Read(manifest.name);
  DMUON_ASSIGN_OR_RETURN(const std::string file, ManifestFile(manifest.name));
  const std::string json = ToJson(manifest);
  {
    const Busy draft_name(state_->busy, job.folder, DraftFile(state_->NodeOf(job.folder, manifest)));
    DMUON_ASSIGN_OR_RETURN(Draft draft, Draft::Create(job.directory, draft_name.file()));
    DMUON_RETURN_IF_ERROR(draft.Write(std::as_bytes(std::span(json)), 0));
    DMUON_RETURN_IF_ERROR(draft.Publish(file));
  }
  std::vector<std::string> old = former.ok() ? FilesOf(*former) : std::vector<std::string>();
  for (const Part& part : manifest.parts) {
    state_->busy.Erase(job.folder, part.file);
    old.erase(std::remove(old.begin(), old.end(), part.file), old.end());
  }
  RemoveUnnamed(job, old, /*but=*/"");
  return absl::OkStatus();
}

void Store::Discard(const Manifest& of, const Part& part) {
  const absl::StatusOr<JobFolder> job = state_->Open(of.job_id);
  if (!job.ok()) return;
  const wire::MutexLock lock(state_->change_mu);
  state_->busy.Erase(job->folder, part.file);
  const absl::StatusOr<Manifest> manifest = job->Read(of.name);
  if (!manifest.ok() && !absl::IsNotFound(manifest.status())) return;
  RemoveUnnamed(*job, {part.file}, /*but=*/"");
}

absl::StatusOr<Manifest> Store::Find(const std::string& job_id, const std::string& name) const {
  DMUON_RETURN_IF_ERROR(ValidateName(name));
  absl::StatusOr<JobFolder> job = state_->Open(job_id);
  if (absl::IsNotFound(job.status())) {
    return NotFound(absl::StrCat("job ", job_id, " has no checkpoint ", name, " here; there are: none"));
  }
  if (!job.ok()) return job.status();
  absl::StatusOr<Manifest> manifest = job->Read(name);
  if (absl::IsNotFound(manifest.status())) return Absent(*job, job_id, name);
  return manifest;
}

absl::StatusOr<std::vector<Manifest>> Store::List(const std::string& job_id) const {
  absl::StatusOr<JobFolder> job = state_->Open(job_id);
  if (absl::IsNotFound(job.status())) return std::vector<Manifest>();
  if (!job.ok()) return job.status();
  DMUON_ASSIGN_OR_RETURN(const std::vector<std::string> files, job->directory.List());
  std::vector<Manifest> manifests;
  for (const std::string& file : files) {
    const std::optional<std::string> name = NameOf(file);
    if (!name) continue;
    absl::StatusOr<Manifest> manifest = job->Read(*name);
    if (manifest.ok()) {
      manifests.push_back(*std::move(manifest));
    } else if (!absl::IsNotFound(manifest.status())) {
      LogWarning("job ", job_id, ": ", manifest.status().message());
    }
  }
  std::sort(manifests.begin(), manifests.end(), [](const Manifest& a, const Manifest& b) {
    return std::tie(a.step, a.name) < std::tie(b.step, b.name);
  });
  return manifests;
}

absl::StatusOr<std::vector<std::string>> Store::Jobs() const {
  DMUON_ASSIGN_OR_RETURN(const std::vector<std::string> folders, state_->root.List());
  std::vector<std::string> jobs;
  for (const std::string& folder : folders) {
    const std::optional<std::string> job_id = JobOf(folder);
    if (!job_id) continue;
    const absl::StatusOr<Directory> directory = state_->root.Open(folder);
    if (!directory.ok()) continue;  // of somebody else
    const std::vector<std::string> files = directory->List().value_or(std::vector<std::string>());
    if (std::any_of(files.begin(), files.end(), [](const std::string& file) { return NameOf(file).has_value(); })) {
      jobs.push_back(*job_id);
    }
  }
  std::sort(jobs.begin(), jobs.end());
  return jobs;
}

absl::Status Store::Delete(const std::string& job_id, const std::string& name) {
  DMUON_ASSIGN_OR_RETURN(const std::string file, ManifestFile(name));
  absl::StatusOr<JobFolder> job = state_->Open(job_id);
  if (absl::IsNotFound(job.status())) {
    return NotFound(absl::StrCat("job ", job_id, " has no checkpoint ", name, " here; there are: none"));
  }
  if (!job.ok()) return job.status();
  const wire::MutexLock lock(state_->change_mu);
  const absl::StatusOr<Manifest> manifest = job->Read(name);
  if (absl::IsNotFound(manifest.status())) return Absent(*job, job_id, name);
  std::vector<std::string> files;
  if (manifest.ok()) {
    files = FilesOf(*manifest);
  } else if (absl::IsDataLoss(manifest.status())) {
    // Which they are, their names say, too.
    DMUON_ASSIGN_OR_RETURN(const std::vector<std::string> all, job->directory.List());
    for (const std::string& part : all) {
      const std::optional<Owner> owner = OwnerOf(part);
      if (owner && owner->name == name && !state_->busy.Has(job->folder, part)) files.push_back(part);
    }
  } else {
    return manifest.status();
  }
  DMUON_RETURN_IF_ERROR(job->directory.Remove(file));
  DMUON_RETURN_IF_ERROR(job->directory.Sync());
  RemoveUnnamed(*job, files, name);
  return absl::OkStatus();
}

absl::Status Store::Prune(const std::string& job_id, uint32_t keep) {
  DMUON_ASSIGN_OR_RETURN(const std::vector<Manifest> manifests, List(job_id));
  if (keep == 0 || manifests.empty()) return absl::OkStatus();
  DMUON_ASSIGN_OR_RETURN(const JobFolder job, state_->Open(job_id));
  std::vector<Dated> automatic = DatesOf(job, manifests);  // oldest first
  std::erase_if(automatic, [](const Dated& dated) { return !dated.automatic; });
  const size_t surplus = automatic.size() - std::min<size_t>(keep, automatic.size());
  for (size_t i = 0; i < surplus; ++i) {
    const absl::Status deleted = Delete(job_id, automatic[i].name);
    if (!deleted.ok() && !absl::IsNotFound(deleted)) return deleted;  // another node may be faster
  }
  return absl::OkStatus();
}

absl::Status Store::Tidy(const std::string& job_id, const std::string& node, uint32_t keep) {
  DMUON_RETURN_IF_ERROR(wire::ValidateId(node, "node"));
  absl::StatusOr<JobFolder> job = state_->Open(job_id);
  if (absl::IsNotFound(job.status())) return absl::OkStatus();
  if (!job.ok()) return job.status();
  const wire::MutexLock lock(state_->change_mu);
  state_->Remember(job->folder, node);
  DMUON_ASSIGN_OR_RETURN(const std::vector<std::string> files, job->directory.List());
  const auto [named, all_read] = NamedFiles(*job, files);
  if (!all_read) LogWarning("job ", job_id, ": a manifest cannot be read, so parts that no manifest names are left alone");
  DMUON_ASSIGN_OR_RETURN(const std::vector<Manifest> manifests, List(job_id));
  const std::vector<Dated> dates = DatesOf(*job, manifests);
  for (const std::string& file : files) {
    const std::optional<Owner> owner = OwnerOf(file);
    if (!owner || owner->node != NodeText(node) || state_->busy.Has(job->folder, file)) continue;
    const bool is_draft = owner->name.empty();
    if (!is_draft && (!all_read || named.contains(file))) continue;
    if (!is_draft && !IsOutOfDate(*job, file, *owner, dates, keep)) {
      LogInfo("job ", job_id, ": keeping ", file, ", which no manifest names here, but another node's may");
      continue;
    }
    LogInfo("job ", job_id, ": removing ", file, ", which an earlier process left");
    DMUON_RETURN_IF_ERROR(job->directory.Remove(file));
  }
  return absl::OkStatus();
}

}  // namespace dmuon::checkpoint
