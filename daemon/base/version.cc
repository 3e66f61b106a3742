// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/base/version.h"

#include "absl/strings/str_cat.h"

namespace dmuon {

std::string_view Version() { return DMUON_VERSION; }

std::string_view Commit() {
  const std::string_view commit = DMUON_COMMIT;
  return commit.empty() ? "unknown" : commit;
}

std::string VersionText() {
  return absl::StrCat(DMUON_VERSION, " (", std::string(Commit()), ")");
}

}  // namespace dmuon
