// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "absl/strings/str_cat.h"
#include "daemon/ctl/report.h"

namespace dmuon::ctl {

std::string VersionText(const std::string& own, const std::string& daemon) {
  return absl::StrCat("dmuonctl ", own, "\ndaemon   ", daemon, "\n");
}

std::string VersionJson(const std::string& own, const std::optional<std::string>& daemon) {
  return absl::StrCat("{\"dmuonctl\":", JsonString(own), ",\"daemon\":",
                      daemon.has_value() ? JsonString(*daemon) : "null", "}\n");
}

}  // namespace dmuon::ctl
