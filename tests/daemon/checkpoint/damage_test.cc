// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Damage anywhere in a small checkpoint is found, and the bytes on disk are those of the first release.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "daemon/base/log.h"
#include "tests/daemon/checkpoint/memory_files.h"
#include "tests/daemon/checkpoint/samples.h"

namespace dmuon::checkpoint {
namespace {

class DamageTest : public ::testing::Test {
 protected:
  DamageTest() : disk_(std::make_shared<MemoryFiles>()), store_(Store::Open("disk", disk_).value()) {
    SetLogLevel(LogLevel::kError);
    manifest_ = Save(*store_, SampleManifest("golden", 7)).value();
  }
  std::string& ManifestBytes() { return disk_->Content(kJob, "golden.json"); }
  std::string& PartBytes() { return disk_->Content(kJob, manifest_.parts[0].file); }
  absl::Status Verify() {
    const absl::StatusOr<Manifest> manifest = store_->Find(kJob, "golden");
    return manifest.ok() ? store_->Verify(*manifest, nullptr) : manifest.status();
  }

  std::shared_ptr<MemoryFiles> disk_;
  std::unique_ptr<Store> store_;
  Manifest manifest_;
};

TEST_F(DamageTest, AFlippedBitAnywhereInAPartIsFound) {
  ASSERT_TRUE(Verify().ok());
  for (size_t i = 0; i < PartBytes().size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      PartBytes()[i] = static_cast<char>(PartBytes()[i] ^ (1 << bit));
      const absl::Status status = Verify();
      EXPECT_TRUE(absl::IsDataLoss(status)) << "byte " << i << ", bit " << bit << ": " << status;
      EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("golden.7.3.node-0.safetensors"));
      PartBytes()[i] = static_cast<char>(PartBytes()[i] ^ (1 << bit));
    }
  }
  EXPECT_TRUE(Verify().ok());
}

TEST_F(DamageTest, AFlippedBitAnywhereInAManifestIsFound) {
  for (size_t i = 0; i < ManifestBytes().size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      ManifestBytes()[i] = static_cast<char>(ManifestBytes()[i] ^ (1 << bit));
      const absl::Status status = Verify();
      // "1" of the format may become "3", and a part's name that of no file.
      EXPECT_FALSE(status.ok()) << "byte " << i << ", bit " << bit;
      ManifestBytes()[i] = static_cast<char>(ManifestBytes()[i] ^ (1 << bit));
    }
  }
  EXPECT_TRUE(Verify().ok());
}

TEST_F(DamageTest, TruncationAtEveryLengthIsFound) {
  const std::string part = PartBytes();
  for (size_t length = 0; length < part.size(); ++length) {
    PartBytes() = part.substr(0, length);
    EXPECT_TRUE(absl::IsDataLoss(Verify())) << length;
  }
  PartBytes() = part + '\0';
  EXPECT_TRUE(absl::IsDataLoss(Verify()));
  PartBytes() = part;
  const std::string manifest = ManifestBytes();
  for (size_t length = 0; length + 1 < manifest.size(); ++length) {  // without the final newline it is whole
    ManifestBytes() = manifest.substr(0, length);
    EXPECT_TRUE(absl::IsDataLoss(Verify())) << length;
  }
}

// DMUON_WRITE_GOLDEN=1 writes the files anew; that is a new format, and old ones must still be read.
TEST_F(DamageTest, TheBytesOnDiskAreThoseOfFormat1) {
  for (const auto& [file, bytes] : {std::pair<std::string, std::string>("golden.json", ManifestBytes()),
                                    {manifest_.parts[0].file, PartBytes()}}) {
    const std::string path = std::string(DMUON_GOLDEN) + "/" + file;
    if (std::getenv("DMUON_WRITE_GOLDEN") != nullptr) std::ofstream(path, std::ios::binary) << bytes;
    std::ifstream stream(path, std::ios::binary);
    std::stringstream golden;
    golden << stream.rdbuf();
    EXPECT_TRUE(golden.str() == bytes) << path << " has " << golden.str().size() << " bytes, written are " << bytes.size();
  }
}

}  // namespace
}  // namespace dmuon::checkpoint
