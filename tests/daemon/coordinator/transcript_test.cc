// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Every transcript of tests/scenarios/coordinator must replay to itself. DMUON_REWRITE=1 writes
// what came out over the files; commit only what you understand.
#include "tests/daemon/coordinator/transcript.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/match.h"

namespace dmuon::coordinator {
namespace {

std::vector<std::string> Scenarios() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(DMUON_SCENARIOS)) {
    if (entry.path().extension() == ".txt") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

class TranscriptTest : public testing::TestWithParam<std::string> {};

TEST_P(TranscriptTest, ReplaysToItself) {
  const std::filesystem::path path =
      std::filesystem::path(DMUON_SCENARIOS) / (GetParam() + ".txt");
  std::ifstream in(path);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  ASSERT_TRUE(absl::StrContains(text, "-> ") || std::getenv("DMUON_REWRITE") != nullptr);
  const std::string replayed = Replay(text);
  EXPECT_FALSE(absl::StrContains(replayed, "unknown command"));
  if (std::getenv("DMUON_REWRITE") != nullptr) {
    std::ofstream(path) << replayed;
    GTEST_SKIP() << "rewrote " << path;
  }
  EXPECT_EQ(replayed, text);
}

INSTANTIATE_TEST_SUITE_P(Scenarios, TranscriptTest, testing::ValuesIn(Scenarios()),
                         [](const auto& scenario) { return scenario.param; });

}  // namespace
}  // namespace dmuon::coordinator
