// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Parts in memory that another process has made: nothing of them is believed.

#include "daemon/checkpoint/shared_part.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "daemon/base/sha256.h"
#include "tests/daemon/checkpoint/samples.h"

namespace dmuon::checkpoint {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kLimit = uint64_t{1} << 20;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

Head SampleHead() {
  Head head;
  head.job_id = kJob;
  head.name = "state";
  head.step = 7;
  head.generation = 3;
  head.node = "node-0";
  head.version = "0.1.0";
  return head;
}

SharedPart Sample() {
  Image image = CreateSharedImage(SampleHead(), SampleEntries()).value();
  for (size_t i = 0; i < image.entries().size(); ++i) {
    float value = 1000.0F * static_cast<float>(i + 1);
    for (float& element : image.values(i)) element = value += 0.25F;
  }
  return SealPart(SampleHead(), std::move(image)).value();
}

std::string BytesOf(const SharedPart& part) {
  std::string bytes(part.bytes, '\0');
  EXPECT_EQ(::pread(part.fd.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  return bytes;
}

std::string DigestOf(const std::string& bytes) {
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  Sha256 hash;
  hash.Update(std::as_bytes(std::span(bytes).first(kLengthBytes + length)));
  return hash.Hex();
}

wire::ScopedFd Memory(const std::string& bytes, int seals = kSeals) {
  wire::ScopedFd fd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::write(fd.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

std::string ErrorOf(wire::ScopedFd fd, const std::string& digest, absl::StatusCode code, uint64_t limit = kLimit) {
  const absl::Status status = OpenReceived(std::move(fd), limit, digest).status();
  EXPECT_EQ(status.code(), code) << status;
  return std::string(status.message());
}

TEST(SharedPartTest, WhatIsSealedIsReadAgainAndIsAFileOfACheckpoint) {
  SharedPart part = Sample();
  const std::string bytes = BytesOf(part);
  const auto received = OpenReceived(std::move(part.fd), kLimit, DigestOf(bytes));
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_EQ((*received)->entries(), SampleEntries());
  EXPECT_EQ((*received)->head().step, 7);
  for (size_t i = 0; i < SampleEntries().size(); ++i) {
    std::vector<float> values(SampleEntries()[i].elements());
    ASSERT_TRUE((*received)->Read(i, values).ok());
    const float first = 1000.0F * static_cast<float>(i + 1) + 0.25F;
    EXPECT_EQ(values.empty() ? first : values.front(), first);
  }
}

TEST(SharedPartTest, NobodyCanChangeWhatIsSealed) {
  const SharedPart part = Sample();
  EXPECT_LT(::pwrite(part.fd.get(), "x", 1, 0), 0);
  EXPECT_LT(::ftruncate(part.fd.get(), 8), 0);
  EXPECT_LT(::ftruncate(part.fd.get(), static_cast<off_t>(part.bytes) + 8), 0);
  EXPECT_EQ(::mmap(nullptr, part.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, part.fd.get(), 0), MAP_FAILED);
}

TEST(SharedPartTest, EverySealIsAskedFor) {
  const std::string bytes = BytesOf(Sample());
  for (const int missing : {F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_WRITE}) {
    EXPECT_THAT(ErrorOf(Memory(bytes, kSeals & ~missing), DigestOf(bytes), absl::StatusCode::kInvalidArgument),
                HasSubstr("not sealed against shrinking, growing and writing"));
  }
  EXPECT_THAT(ErrorOf(wire::ScopedFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)), DigestOf(bytes),
                      absl::StatusCode::kInvalidArgument),
              HasSubstr("in no memfd"));
}

TEST(SharedPartTest, MoreThanAllowedIsRefusedWithBothSizesBeforeAnythingIsRead) {
  wire::ScopedFd sparse(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(sparse.get(), off_t{1} << 50), 0);
  ASSERT_EQ(::fcntl(sparse.get(), F_ADD_SEALS, kSeals), 0);
  EXPECT_THAT(ErrorOf(std::move(sparse), std::string(64, '0'), absl::StatusCode::kInvalidArgument),
              HasSubstr("has 1125899906842624 bytes, allowed are 1048576"));
}

TEST(SharedPartTest, WhatIsCutOffOrIsNoPartIsDamaged) {
  const std::string bytes = BytesOf(Sample());
  for (const size_t length : {size_t{0}, size_t{7}, size_t{8}, size_t{100}, bytes.size() - 4, bytes.size() - 1}) {
    ErrorOf(Memory(bytes.substr(0, length)), DigestOf(bytes), absl::StatusCode::kDataLoss);
  }
  ErrorOf(Memory(bytes + "more"), DigestOf(bytes), absl::StatusCode::kDataLoss);
  ErrorOf(Memory(std::string(4096, '\xff')), DigestOf(bytes), absl::StatusCode::kDataLoss);
  EXPECT_THAT(ErrorOf(Memory(bytes), std::string(64, '0'), absl::StatusCode::kDataLoss),
              HasSubstr("its head is not the one that was saved"));
}

TEST(SharedPartTest, ValuesAreProvedWhenTheyAreRead) {
  std::string bytes = BytesOf(Sample());
  const std::string digest = DigestOf(bytes);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  const auto received = OpenReceived(Memory(bytes), kLimit, digest);
  ASSERT_TRUE(received.ok()) << received.status();
  const size_t last = SampleEntries().size() - 1;
  std::vector<float> values(SampleEntries()[last].elements());
  EXPECT_THAT(std::string((*received)->Read(last, values).message()), HasSubstr("are not those that were saved"));
}

}  // namespace
}  // namespace dmuon::checkpoint
