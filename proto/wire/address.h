// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Where a daemon listens and its clients look for it, when nobody says otherwise. One rule for both
// ends:
//
//   $DMUON_ADDRESS
//   else unix:$XDG_RUNTIME_DIR/dmuon/dmuond.sock
//   else unix:/run/dmuon/dmuond.sock            for root
//   else unix:/tmp/dmuon-<uid>/dmuond.sock      for everybody else
//
// An empty variable counts as unset. An address is "unix:/path" or "host:port".
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace dmuon::wire {

inline constexpr std::string_view kUnixPrefix = "unix:";

// The rule above. Reads the environment: not while another thread changes it.
std::string DefaultAddress();

// "/path" of "unix:/path" (also of "unix:///path"); nothing for any other address.
std::optional<std::string> UnixPath(std::string_view address);

// Before a server binds: makes the socket's directory (mode 0700, one level) when it is missing, and
// refuses one that belongs to somebody else than this user or root, because whoever owns the
// directory decides who answers at the path. INVALID_ARGUMENT for a path of more than 101 bytes,
// which a socket address cannot hold with the suffix of the arena channel;
// PERMISSION_DENIED and others as the system says, naming the directory.
absl::Status PrepareSocketDirectory(const std::string& path);

}  // namespace dmuon::wire
