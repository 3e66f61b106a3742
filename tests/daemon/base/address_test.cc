// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "wire/address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/daemon/base/temp_dir.h"

namespace dmuon::wire {
namespace {

using ::testing::HasSubstr;

class DefaultAddressTest : public ::testing::Test {
 protected:
  DefaultAddressTest() {
    ::unsetenv("DMUON_ADDRESS");
    ::unsetenv("XDG_RUNTIME_DIR");
  }
  ~DefaultAddressTest() override {
    ::unsetenv("DMUON_ADDRESS");
    ::unsetenv("XDG_RUNTIME_DIR");
  }
};

TEST_F(DefaultAddressTest, TheVariableWins) {
  ::setenv("XDG_RUNTIME_DIR", "/run/user/1", 1);
  ::setenv("DMUON_ADDRESS", "127.0.0.1:5", 1);
  EXPECT_EQ(DefaultAddress(), "127.0.0.1:5");
}

TEST_F(DefaultAddressTest, ThenTheRuntimeDirectory) {
  ::setenv("DMUON_ADDRESS", "", 1);
  ::setenv("XDG_RUNTIME_DIR", "/run/user/1", 1);
  EXPECT_EQ(DefaultAddress(), "unix:/run/user/1/dmuon/dmuond.sock");
}

TEST_F(DefaultAddressTest, ThenAPlaceOfTheUser) {
  const std::string expected = ::geteuid() == 0
                                   ? "unix:/run/dmuon/dmuond.sock"
                                   : absl::StrCat("unix:/tmp/dmuon-", ::geteuid(), "/dmuond.sock");
  EXPECT_EQ(DefaultAddress(), expected);
}

TEST(UnixPathTest, IsThePathOfAUnixAddressOnly) {
  EXPECT_EQ(UnixPath("unix:/a/b"), "/a/b");
  EXPECT_EQ(UnixPath("unix:///a/b"), "/a/b");
  EXPECT_EQ(UnixPath("127.0.0.1:1"), std::nullopt);
}

TEST(PrepareSocketDirectoryTest, MakesAPrivateDirectoryAndKeepsAnExistingOne) {
  const dmuon::TempDir dir;
  for (int round = 0; round < 2; ++round) {
    EXPECT_TRUE(PrepareSocketDirectory(dir.File("new/s.sock")).ok());
    struct stat info {};
    ASSERT_EQ(::stat(dir.File("new").c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777U, 0700U);
  }
}

TEST(PrepareSocketDirectoryTest, ForeignDirectoriesAreRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a directory away";
  const dmuon::TempDir dir;
  ASSERT_EQ(::mkdir(dir.File("theirs").c_str(), 0700), 0);
  ASSERT_EQ(::chown(dir.File("theirs").c_str(), 12345, 12345), 0);
  const absl::Status status = PrepareSocketDirectory(dir.File("theirs/s.sock"));
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(status.message()), HasSubstr("belongs to user 12345"));
}

TEST(PrepareSocketDirectoryTest, PathsThatDoNotFitAreRefusedWithTheBound) {
  EXPECT_TRUE(PrepareSocketDirectory("/" + std::string(100, 'x')).ok());
  const absl::Status status = PrepareSocketDirectory("/" + std::string(101, 'x'));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("102 bytes; 1..101 are possible"));
}

TEST(PrepareSocketDirectoryTest, MissingParentsAndFilesInTheWayAreNamed) {
  const dmuon::TempDir dir;
  EXPECT_EQ(PrepareSocketDirectory(dir.File("a/b/s.sock")).code(), absl::StatusCode::kNotFound);
  std::ofstream(dir.File("file")) << "x";
  EXPECT_EQ(PrepareSocketDirectory(dir.File("file/s.sock")).code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace dmuon::wire
