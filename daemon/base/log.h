// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The log: one line an event, on stderr.
//
//   2026-11-29T15:08:01.123Z info job demo: generation 3, 2 workers (rank 1 is back)
//
// UTC, the level, then text. Line breaks and other control characters in the text are printed as
// escapes, so that no peer can forge a line. The level and the sink are the process's; everything
// here is thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace dmuon {

class Metrics;

enum class LogLevel : uint8_t {
  kDebug,    // one line a step or message; for developers
  kInfo,     // decisions and their reasons
  kWarning,  // something the service copes with: a worker died, a step was skipped
  kError,    // something it does not cope with
};

// "debug", "info", "warning", "error"; also the values of the `level` label.
std::string_view LogLevelName(LogLevel level);
// INVALID_ARGUMENT naming the choices.
absl::StatusOr<LogLevel> ParseLogLevel(std::string_view name);

// Lines below `level` are dropped. Default: kInfo.
void SetLogLevel(LogLevel level);
// Counts every line that is printed into kLogMessages of `metrics`, until the next call. nullptr
// stops it; do so before `metrics` dies.
void CountLogLines(Metrics* metrics);

// Prints one line.
void Log(LogLevel level, std::string_view text);

// The same, with the pieces joined as by absl::StrCat.
template <typename... Pieces>
void LogDebug(const Pieces&... pieces) {
  Log(LogLevel::kDebug, absl::StrCat(pieces...));
}
template <typename... Pieces>
void LogInfo(const Pieces&... pieces) {
  Log(LogLevel::kInfo, absl::StrCat(pieces...));
}
template <typename... Pieces>
void LogWarning(const Pieces&... pieces) {
  Log(LogLevel::kWarning, absl::StrCat(pieces...));
}
template <typename... Pieces>
void LogError(const Pieces&... pieces) {
  Log(LogLevel::kError, absl::StrCat(pieces...));
}

}  // namespace dmuon
