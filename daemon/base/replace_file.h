// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>

#include "absl/status/status.h"

namespace dmuon {

// Puts `content` into `directory`/`name`, readable by this user only. On disk when this returns; whoever reads
// meanwhile, or after a crash, sees the former file or this one, whole. UNAVAILABLE naming path and cause.
absl::Status ReplaceFile(const std::string& directory, const std::string& name, const std::string& content);

}  // namespace dmuon
