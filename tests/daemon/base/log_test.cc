// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/base/metrics.h"
#include "daemon/base/version.h"

namespace dmuon {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

class LogTest : public ::testing::Test {
 protected:
  ~LogTest() override {
    CountLogLines(nullptr);
    SetLogLevel(LogLevel::kInfo);
  }
  // What `print` writes to stderr.
  template <typename Print>
  std::string Printed(Print print) {
    ::testing::internal::CaptureStderr();
    print();
    return ::testing::internal::GetCapturedStderr();
  }
};

TEST_F(LogTest, ALineHasTimeLevelAndText) {
  EXPECT_THAT(Printed([] { LogInfo("generation ", 7, ": ", 3, " nodes"); }),
              MatchesRegex("[0-9]+-[0-9]+-[0-9]+T[0-9]+:[0-9]+:[0-9]+\\.[0-9]+Z info "
                           "generation 7: 3 nodes\n"));
}

TEST_F(LogTest, LinesBelowTheLevelAreDropped) {
  SetLogLevel(LogLevel::kWarning);
  const std::string out = Printed([] {
    LogDebug("one");
    LogInfo("two");
    LogWarning("three");
    LogError("four");
  });
  EXPECT_THAT(out, Not(HasSubstr("two")));
  EXPECT_THAT(out, HasSubstr("warning three"));
  EXPECT_THAT(out, HasSubstr("error four"));
}

TEST_F(LogTest, AForgedLineStaysOnItsOwn) {
  const std::string out = Printed([] { LogInfo("job a\n2026 error all is lost"); });
  EXPECT_THAT(out, HasSubstr("job a\\n2026 error all is lost\n"));
}

TEST_F(LogTest, PrintedLinesAreCountedByLevel) {
  Metrics metrics;
  CountLogLines(&metrics);
  Printed([] {
    LogWarning("a");
    LogWarning("b");
    LogDebug("not printed");
  });
  CountLogLines(nullptr);
  Printed([] { LogWarning("not counted"); });
  EXPECT_THAT(metrics.Text(), HasSubstr("dmuon_log_messages_total{level=\"warning\"} 2\n"));
  EXPECT_THAT(metrics.Text(), Not(HasSubstr("level=\"debug\"")));
}

TEST_F(LogTest, LevelsHaveNamesAndBack) {
  for (const LogLevel level :
       {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError}) {
    const auto parsed = ParseLogLevel(LogLevelName(level));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, level);
  }
  EXPECT_THAT(std::string(ParseLogLevel("loud").status().message()),
              HasSubstr("\"loud\" is not one of debug, info, warning, error"));
}

TEST(VersionTest, NamesVersionAndCommit) {
  EXPECT_THAT(std::string(Version()), MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
  EXPECT_THAT(std::string(Commit()), MatchesRegex("unknown|[0-9a-f]+"));
  EXPECT_THAT(VersionText(), HasSubstr(" ("));
}

}  // namespace
}  // namespace dmuon
