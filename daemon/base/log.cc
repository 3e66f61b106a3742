// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/base/log.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "daemon/base/metrics.h"
#include "spdlog/pattern_formatter.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"
#include "wire/mutex.h"

namespace dmuon {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"debug", "info", "warning", "error"};
constexpr std::array<spdlog::level::level_enum, 4> kSpdlogLevels = {
    spdlog::level::debug, spdlog::level::info, spdlog::level::warn, spdlog::level::err};

spdlog::logger& Logger() {
  // Never destroyed: threads may log until the process is gone.
  static spdlog::logger* const logger = [] {
    auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
    sink->set_formatter(std::make_unique<spdlog::pattern_formatter>(
        "%Y-%m-%dT%H:%M:%S.%eZ %l %v", spdlog::pattern_time_type::utc));
    auto* const made = new spdlog::logger("dmuon", std::move(sink));
    made->set_level(spdlog::level::info);
    made->flush_on(spdlog::level::trace);
    return made;
  }();
  return *logger;
}

// Held while a line is counted, so that CountLogLines(nullptr) means that nobody counts any more.
wire::Mutex counting_mu;
Metrics* counting ABSL_GUARDED_BY(counting_mu) = nullptr;

bool HasControlCharacter(std::string_view text) {
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return true;
  }
  return false;
}

}  // namespace

std::string_view LogLevelName(LogLevel level) { return kNames[static_cast<size_t>(level)]; }

absl::StatusOr<LogLevel> ParseLogLevel(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<LogLevel>(i);
  }
  return absl::InvalidArgumentError(absl::StrCat("log level \"", std::string(name),
                                                 "\" is not one of debug, info, warning, error"));
}

void SetLogLevel(LogLevel level) {
  Logger().set_level(kSpdlogLevels[static_cast<size_t>(level)]);
}

void CountLogLines(Metrics* metrics) {
  const wire::MutexLock lock(counting_mu);
  counting = metrics;
}

void Log(LogLevel level, std::string_view text) {
  const spdlog::level::level_enum spdlog_level = kSpdlogLevels[static_cast<size_t>(level)];
  if (!Logger().should_log(spdlog_level)) return;
  std::string escaped;
  if (HasControlCharacter(text)) {
    escaped = absl::Utf8SafeCEscape(absl::string_view(text.data(), text.size()));
    text = escaped;
  }
  Logger().log(spdlog_level, spdlog::string_view_t(text.data(), text.size()));
  const wire::MutexLock lock(counting_mu);
  if (counting != nullptr) {
    counting->Increment(MetricId::kLogMessages, {LogLevelName(level)});
  }
}

}  // namespace dmuon
