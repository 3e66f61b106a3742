// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What every disk promises, and what only the machine's does.

#include "daemon/checkpoint/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tests/daemon/base/temp_dir.h"
#include "tests/daemon/checkpoint/memory_files.h"
#include "tests/daemon/checkpoint/samples.h"

namespace dmuon::checkpoint {
namespace {

using ::testing::UnorderedElementsAre;

std::span<const std::byte> Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string ReadAll(File& file) {
  std::string text(static_cast<size_t>(file.Bytes()), '\0');
  EXPECT_EQ(file.Read(std::as_writable_bytes(std::span(text)), 0), file.Bytes());
  return text;
}

class FilesTest : public ::testing::TestWithParam<const char*> {
 protected:
  FilesTest() : files_(std::string(GetParam()) == "disk" ? DiskFiles() : std::make_shared<MemoryFiles>()) {
    EXPECT_EQ(files_->OpenRoot(dir_.File("a/b//c/"), root_), 0);
  }
  void Put(const std::string& name, const std::string& content) {
    std::unique_ptr<File> file;
    ASSERT_EQ(root_->CreateFile(name, file), 0);
    ASSERT_EQ(file->Write(Bytes(content), 0), static_cast<int64_t>(content.size()));
    ASSERT_EQ(file->Sync(), 0);
  }
  std::string Get(const std::string& name) {
    std::unique_ptr<File> file;
    const int error = root_->OpenFile(name, file);
    return error == 0 ? ReadAll(*file) : std::strerror(-error);
  }

  TempDir dir_;
  std::shared_ptr<Files> files_;
  std::unique_ptr<Folder> root_;
};

TEST_P(FilesTest, WritesRenamesListsAndRemoves) {
  Put("x", "first");
  Put("y", "second");
  EXPECT_EQ(root_->Rename("x", "y"), 0);
  EXPECT_EQ(Get("y"), "first");
  EXPECT_EQ(root_->MakeFolder("z"), 0);
  EXPECT_EQ(root_->MakeFolder("z"), -EEXIST);
  std::vector<std::string> names;
  EXPECT_EQ(root_->List(names), 0);
  EXPECT_EQ(root_->List(names), 0);
  EXPECT_THAT(names, UnorderedElementsAre("y", "z"));
  EXPECT_EQ(root_->Remove("y"), 0);
  EXPECT_EQ(root_->Remove("y"), -ENOENT);
  EXPECT_EQ(root_->Rename("y", "z2"), -ENOENT);
  EXPECT_EQ(root_->Sync(), 0);
  EXPECT_GT(root_->FreeBytes(), 0);
}

TEST_P(FilesTest, AFileIsCreatedOnceAndWrittenAnywhere) {
  Put("x", "abc");
  std::unique_ptr<File> file;
  EXPECT_EQ(root_->CreateFile("x", file), -EEXIST);
  ASSERT_EQ(root_->CreateFile("y", file), 0);
  EXPECT_EQ(file->Write(Bytes("tail"), 4), 4);
  EXPECT_EQ(file->Write(Bytes("head"), 0), 4);
  ASSERT_EQ(root_->OpenFile("y", file), 0);
  EXPECT_EQ(ReadAll(*file), "headtail");
  std::byte one{};
  EXPECT_EQ(file->Read({&one, 1}, 8), 0);
  EXPECT_GT(file->ChangedAt(), 0);
}

TEST_P(FilesTest, NamesAreSingleComponents) {
  Put("x", "");
  std::unique_ptr<File> file;
  std::unique_ptr<Folder> folder;
  for (const std::string name : {"", ".", "..", "a/b", "/x", "../x"}) {
    EXPECT_EQ(root_->OpenFile(name, file), -EINVAL) << name;
    EXPECT_EQ(root_->CreateFile(name, file), -EINVAL) << name;
    EXPECT_EQ(root_->OpenFolder(name, folder), -EINVAL) << name;
    EXPECT_EQ(root_->MakeFolder(name), -EINVAL) << name;
    EXPECT_EQ(root_->Remove(name), -EINVAL) << name;
    EXPECT_EQ(root_->Rename("x", name), -EINVAL) << name;
    EXPECT_EQ(root_->Rename(name, "x"), -EINVAL) << name;
  }
}

TEST_P(FilesTest, AFolderIsNoFileAndTheOtherWayRound) {
  Put("x", "");
  EXPECT_EQ(root_->MakeFolder("z"), 0);
  std::unique_ptr<File> file;
  std::unique_ptr<Folder> folder;
  EXPECT_EQ(root_->OpenFile("z", file), -EINVAL);
  EXPECT_EQ(root_->OpenFolder("x", folder), -ENOTDIR);
  EXPECT_EQ(root_->OpenFile("no", file), -ENOENT);
  EXPECT_EQ(root_->OpenFolder("no", folder), -ENOENT);
}

INSTANTIATE_TEST_SUITE_P(All, FilesTest, ::testing::Values("disk", "memory"),
                         [](const auto& test) { return std::string(test.param); });

class DiskTest : public ::testing::Test {
 protected:
  DiskTest() { EXPECT_EQ(files_->OpenRoot(dir_.File("root"), root_), 0); }
  [[nodiscard]] std::string Path(const std::string& name) const { return dir_.File("root/" + name); }
  [[nodiscard]] mode_t ModeOf(const std::string& name) const {
    struct stat status {};
    EXPECT_EQ(::stat(Path(name).c_str(), &status), 0);
    return status.st_mode & 0777U;
  }

  TempDir dir_;
  std::shared_ptr<Files> files_ = DiskFiles();
  std::unique_ptr<Folder> root_;
};

TEST_F(DiskTest, EverythingIsForThisUserOnly) {
  std::unique_ptr<File> file;
  ASSERT_EQ(root_->CreateFile("x", file), 0);
  ASSERT_EQ(root_->MakeFolder("z"), 0);
  EXPECT_EQ(ModeOf("x"), 0600U);
  EXPECT_EQ(ModeOf("z"), 0700U);
  EXPECT_EQ(ModeOf(""), 0700U);
}

TEST_F(DiskTest, LinksAreNotFollowed) {
  std::filesystem::create_directory(dir_.File("elsewhere"));
  std::filesystem::create_symlink(dir_.File("elsewhere"), Path("folder"));
  std::filesystem::create_symlink("/etc/passwd", Path("file"));
  std::filesystem::create_symlink("/proc/self/exe", Path("magic"));
  std::unique_ptr<Folder> folder;
  std::unique_ptr<File> file;
  EXPECT_EQ(root_->OpenFolder("folder", folder), -ELOOP);
  EXPECT_EQ(root_->OpenFile("file", file), -ELOOP);
  EXPECT_EQ(root_->OpenFile("magic", file), -ELOOP);
  EXPECT_EQ(root_->CreateFile("file", file), -EEXIST);
  // The link itself goes, not what it names.
  EXPECT_EQ(root_->Remove("folder"), 0);
  EXPECT_TRUE(std::filesystem::exists(dir_.File("elsewhere")));
}

TEST_F(DiskTest, APipeIsNotWaitedFor) {
  ASSERT_EQ(::mkfifo(Path("pipe").c_str(), 0600), 0);
  std::unique_ptr<File> file;
  EXPECT_EQ(root_->OpenFile("pipe", file), -EINVAL);
}

TEST_F(DiskTest, ARootThatCannotBeMadeIsAnErrorWithItsPath) {
  std::unique_ptr<File> file;
  ASSERT_EQ(root_->CreateFile("x", file), 0);
  const absl::Status status = Store::Open(Path("x/y")).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(Path("x/y") + ": Not a directory"));
  EXPECT_FALSE(Store::Open("").ok());
}

// A file system of one MiB: what does not fit leaves what was there.
TEST_F(DiskTest, AFullFileSystemLeavesTheFormerCheckpoint) {
  std::filesystem::create_directory(Path("small"));
  if (::mount("dmuon-test", Path("small").c_str(), "tmpfs", 0, "size=1m") != 0) {
    GTEST_SKIP() << "mounting a tmpfs is not allowed here: " << std::strerror(errno);
  }
  const std::unique_ptr<Store> store = Store::Open(Path("small")).value();
  EXPECT_TRUE(Save(*store, SampleManifest("kept", 1)).ok());
  const auto write = [&](int64_t count) {
    const Image image = SampleImage({WholeEntry("w", kWeight, {count})});
    return store->WritePart(SampleManifest("large", 2), "node-0", image, nullptr).status();
  };
  EXPECT_TRUE(absl::IsResourceExhausted(write(1 << 20))) << "asked before a byte is written";
  // There is room when it is asked, and none when it is used: another writer takes it.
  std::unique_ptr<Folder> folder;
  std::unique_ptr<File> other;
  EXPECT_EQ(files_->OpenRoot(Path("small"), folder), 0);
  EXPECT_EQ(folder->CreateFile("other", other), 0);
  const Image image = SampleImage({WholeEntry("w", kWeight, {100'000})});
  const std::string filling(1 << 20, 'x');
  const absl::Status full = store->WritePart(SampleManifest("large", 2), "node-0", image, [&](uint64_t, uint64_t) {
                                   other->Write(Bytes(filling), 0);
                                   return true;
                                 }).status();
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_TRUE(Load(*store, "kept", 1).ok());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(Path("small/demo")), {}), 2);
  folder.reset();
  other.reset();
  ::umount2(Path("small").c_str(), MNT_DETACH);
}

}  // namespace
}  // namespace dmuon::checkpoint
