// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What is running. Both strings are fixed when the build is configured.
#pragma once

#include <string>
#include <string_view>

namespace dmuon {

// "0.1.0", the project's version.
std::string_view Version();
// First digits of the commit; "unknown" for a build outside a repository or before its first commit.
std::string_view Commit();
// "0.1.0 (0123456789ab)", for people.
std::string VersionText();

}  // namespace dmuon
