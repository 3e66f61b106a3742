// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/ctl/report.h"
#include "daemon/ctl/table.h"

namespace dmuon::ctl {
namespace {

uint64_t BytesOf(const v1::Checkpoint& checkpoint) {
  uint64_t bytes = 0;
  for (const v1::CheckpointPart& part : checkpoint.parts()) bytes += part.bytes();
  return bytes;
}

const char* MadeText(const v1::Checkpoint& checkpoint) { return checkpoint.automatic() ? "by schedule" : "by name"; }

bool IsHere(const v1::ListedCheckpoint& listed, const std::string& file) {
  const auto& absent = listed.absent_files();
  return std::find(absent.begin(), absent.end(), file) == absent.end();
}

std::string TitleText(const std::string& job_id, const std::string& name) {
  return absl::StrCat("checkpoint ", name, " of job ", job_id);
}

std::string PartsText(const v1::ListedCheckpoint& listed) {
  Table table({{"part"}, {"node"}, {"arrays", Align::kRight}, {"size", Align::kRight}, {""}});
  for (const v1::CheckpointPart& part : listed.checkpoint().parts()) {
    table.Add({part.file(), part.node_id(), absl::StrCat(part.entries()), BytesText(part.bytes()),
               IsHere(listed, part.file()) ? "here" : "missing"});
  }
  return table.Text();
}

std::string EntriesText(const v1::GetCheckpointResponse& response) {
  std::map<std::string, std::string> node_of;  // by file
  for (const v1::CheckpointPart& part : response.listed().checkpoint().parts()) node_of[part.file()] = part.node_id();
  Table table({{"array"}, {"shape", Align::kRight}, {"optimizer"}, {"updates", Align::kRight}, {"node"}});
  for (const v1::CheckpointEntry& entry : response.entries()) {
    table.Add({entry.key(), absl::StrJoin(entry.shape(), "x"), entry.optimizer(), absl::StrCat(entry.updates()),
               node_of[entry.file()]});
  }
  return table.empty() ? "no array is here\n" : table.Text();
}

}  // namespace

std::string CheckpointsText(const v1::ListCheckpointsResponse& response) {
  if (response.checkpoints().empty()) return absl::StrCat("no checkpoint in ", response.directory(), "\n");
  Table table({{"job"},
               {"name"},
               {"step", Align::kRight},
               {"made"},
               {"parts", Align::kRight},
               {"size", Align::kRight},
               {"missing"}});
  for (const v1::ListedCheckpoint& listed : response.checkpoints()) {
    const v1::Checkpoint& checkpoint = listed.checkpoint();
    table.Add({checkpoint.job_id(), checkpoint.name(), absl::StrCat(checkpoint.step()), MadeText(checkpoint),
               absl::StrCat(checkpoint.parts_size() - listed.absent_files_size(), "/", checkpoint.parts_size()),
               BytesText(BytesOf(checkpoint)),
               listed.absent_files().empty() ? "-" : absl::StrJoin(listed.absent_files(), ", ")});
  }
  return absl::StrCat("in ", response.directory(), "\n", table.Text());
}

std::string CheckpointText(const v1::GetCheckpointResponse& response) {
  const v1::Checkpoint& checkpoint = response.listed().checkpoint();
  Table table({{"checkpoint"}, {checkpoint.name()}});
  table.Add({"job", checkpoint.job_id()});
  table.Add({"step", absl::StrCat(checkpoint.step())});
  table.Add({"generation", absl::StrCat(checkpoint.generation())});
  table.Add({"made", absl::StrCat(MadeText(checkpoint), ", with dmuon ", checkpoint.version())});
  table.Add({"size", absl::StrCat(BytesText(BytesOf(checkpoint)), " in ", checkpoint.parts_size(), " parts")});
  return absl::StrCat(table.Text(), "\n", PartsText(response.listed()), "\n", EntriesText(response));
}

std::string VerifiedText(const std::string& job_id, const std::string& name,
                         const v1::VerifyCheckpointResponse& response) {
  return absl::StrCat(TitleText(job_id, name), ": ", BytesText(response.bytes()),
                      " were read, and all is as it was saved\n");
}

std::string SavedText(const std::string& job_id, const std::string& name, const v1::SaveJobResponse& response) {
  return absl::StrCat(TitleText(job_id, name), " exists, of step ", response.step(), "\n");
}

std::string DeletedText(const std::string& job_id, const std::string& name,
                        const std::optional<v1::ListedCheckpoint>& removed) {
  const std::string title = absl::StrCat("removed ", TitleText(job_id, name));
  if (!removed.has_value()) return absl::StrCat(title, ", whose manifest could not be read\n");
  std::string out = absl::StrCat(title, ", step ", removed->checkpoint().step(), "\n");
  for (const v1::CheckpointPart& part : removed->checkpoint().parts()) {
    const bool here = IsHere(*removed, part.file());
    absl::StrAppend(&out, here ? "  removed  " : "  missing  ", part.file(), ", ", BytesText(part.bytes()),
                    here ? "" : absl::StrCat(" on node ", part.node_id(), ", which has to remove it itself"), "\n");
  }
  return out;
}

}  // namespace dmuon::ctl
