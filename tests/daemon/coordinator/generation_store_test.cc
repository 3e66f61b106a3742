// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include "daemon/coordinator/generation_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/daemon/base/temp_dir.h"

namespace dmuon::coordinator {
namespace {

using testing::HasSubstr;

class GenerationStoreTest : public testing::Test {
 protected:
  std::string File() const { return dir_.path() + "/generation"; }
  std::string Content() const {
    std::ifstream in(File());
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }
  void Write(const std::string& content) const { std::ofstream(File()) << content; }
  uint64_t Reopened() const {
    auto store = GenerationStore::Open(dir_.path());
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? store->highest() : 0;
  }

  TempDir dir_;
};

TEST_F(GenerationStoreTest, StartsAtZeroAndRemembersTheHighest) {
  {
    auto store = GenerationStore::Open(dir_.path());
    ASSERT_TRUE(store.ok()) << store.status();
    EXPECT_EQ(store->highest(), 0u);
    EXPECT_TRUE(store->Reserve(3).ok());
    EXPECT_EQ(Content(), "3\n");
    EXPECT_TRUE(store->Reserve(2).ok());
    EXPECT_EQ(store->highest(), 3u);
    EXPECT_TRUE(store->Reserve(12).ok());
  }
  EXPECT_EQ(Reopened(), 12u);
}

TEST_F(GenerationStoreTest, ATornWriteOfTheTemporaryFileChangesNothing) {
  Write("7\n");
  std::ofstream(absl::StrCat(File(), ".", getpid(), ".tmp")) << "9";
  EXPECT_EQ(Reopened(), 7u);
}

TEST_F(GenerationStoreTest, DamageIsReportedInsteadOfStartingOver) {
  for (const std::string damaged : {"", "12", "twelve\n", "-1\n", "12\n13\n"}) {
    SCOPED_TRACE(damaged);
    Write(damaged);
    const auto store = GenerationStore::Open(dir_.path());
    EXPECT_EQ(store.status().code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(store.status().message()), HasSubstr(File()));
  }
}

TEST_F(GenerationStoreTest, ASecondCoordinatorOnTheDirectoryIsRefused) {
  auto first = GenerationStore::Open(dir_.path());
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(GenerationStore::Open(dir_.path()).status().code(),
            absl::StatusCode::kFailedPrecondition);
  const GenerationStore moved = *std::move(first);
  EXPECT_FALSE(GenerationStore::Open(dir_.path()).ok()) << "the lock moves with the store";
}

TEST_F(GenerationStoreTest, AFailedWriteKeepsTheOldNumber) {
  auto store = GenerationStore::Open(dir_.path());
  ASSERT_TRUE(store.ok());
  ASSERT_TRUE(store->Reserve(4).ok());
  // A directory in the temporary file's place: opening it for writing fails even for root.
  std::filesystem::create_directory(absl::StrCat(File(), ".", getpid(), ".tmp"));
  EXPECT_EQ(store->Reserve(5).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(store->highest(), 4u);
  EXPECT_EQ(Content(), "4\n");
}

TEST_F(GenerationStoreTest, AMissingDirectoryIsMadeButNotItsParents) {
  EXPECT_TRUE(GenerationStore::Open(dir_.path() + "/new").ok());
  const auto store = GenerationStore::Open(dir_.path() + "/none/deeper");
  EXPECT_THAT(std::string(store.status().message()), HasSubstr(dir_.path() + "/none/deeper"));
}

TEST(MemoryGenerationStoreTest, LivesAsLongAsTheProcess) {
  GenerationStore store;
  EXPECT_TRUE(store.Reserve(5).ok());
  EXPECT_EQ(store.highest(), 5u);
}

}  // namespace
}  // namespace dmuon::coordinator
