// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/checkpoint/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/daemon/base/temp_dir.h"
#include "tests/daemon/checkpoint/samples.h"
#include "wire/error.h"

namespace dmuon::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class StoreTest : public ::testing::Test {
 protected:
  StoreTest() : root_(dir_.File("checkpoints")), store_(Open()) {}

  std::unique_ptr<Store> Open() {
    absl::StatusOr<std::unique_ptr<Store>> store = Store::Open(root_);
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
  absl::Status SaveIt(const std::string& name, uint64_t step, bool automatic = false) {
    Manifest manifest = SampleManifest(name, step);
    manifest.automatic = automatic;
    return Save(*store_, manifest).status();
  }
  [[nodiscard]] std::string FileOf(const std::string& name, const std::string& job = kJob) const {
    return root_ + "/" + job + "/" + name;
  }
  [[nodiscard]] std::vector<std::string> Files(const std::string& job = kJob) const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(root_ + "/" + job)) names.push_back(entry.path().filename());
    return names;
  }
  [[nodiscard]] std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const Manifest& manifest : store_->List(kJob).value()) names.push_back(manifest.name);
    return names;
  }
  void Put(const std::string& file, const std::string& content) const { std::ofstream(FileOf(file)) << content; }

  TempDir dir_;
  std::string root_;
  std::unique_ptr<Store> store_;
};

TEST_F(StoreTest, WhatWasSavedIsLoadedBitForBit) {
  ASSERT_TRUE(SaveIt("first", 7).ok());
  EXPECT_TRUE(Load(*store_, "first", 7).ok()) << Load(*store_, "first", 7);
  EXPECT_TRUE(Load(*Open(), "first", 7).ok());
  EXPECT_THAT(Files(), UnorderedElementsAre("first.json", "first.7.3.node-0.safetensors"));
}

}  // namespace
}  // namespace dmuon::checkpoint
