// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Every fault that a disk can have, at every call that a store makes. What was saved before stays; what is new is
// there or not, but not by half.

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "daemon/base/log.h"
#include "daemon/checkpoint/names.h"
#include "tests/daemon/checkpoint/faulty_files.h"
#include "tests/daemon/checkpoint/memory_files.h"
#include "tests/daemon/checkpoint/samples.h"

namespace dmuon::checkpoint {
namespace {

using Kind = Fault::Kind;

constexpr char kNode[] = "node-0";
// Automatic.
constexpr char kOlder[] = "step-000000000003";
constexpr char kNewer[] = "step-000000000004";

// A disk with checkpoints "kept" of step 1, "latest" of step 2 and two automatic ones, which a test changes.
class Disk {
 public:
  Disk() : memory_(std::make_shared<MemoryFiles>(Full())), faulty_(std::make_shared<FaultyFiles>(memory_)), store_(Open()) {
    SetLogLevel(LogLevel::kError);
  }

  [[nodiscard]] Store& store() const { return *store_; }
  [[nodiscard]] FaultyFiles& faults() const { return *faulty_; }
  [[nodiscard]] MemoryFiles& memory() const { return *memory_; }

  // As a new process finds it, on a disk that is well again.
  void Restart() {
    faulty_->Arm({});
    store_ = Open();
  }
  // Which steps the checkpoint may have; 0: none.
  void ExpectWhole(const std::string& name, const std::vector<uint64_t>& steps) const {
    const absl::StatusOr<Manifest> manifest = store_->Find(kJob, name);
    const uint64_t step = manifest.ok() ? manifest->step : 0;
    EXPECT_TRUE(manifest.ok() || absl::IsNotFound(manifest.status())) << manifest.status();
    EXPECT_NE(std::find(steps.begin(), steps.end(), step), steps.end()) << name << " is of step " << step;
    const absl::Status loaded = manifest.ok() ? Load(*store_, name, step) : absl::OkStatus();
    EXPECT_TRUE(loaded.ok()) << loaded;
  }
  // But for one part of `may_be_left`, which nodes with other disks may want.
  void ExpectNoLitter(const std::string& may_be_left) const {
    EXPECT_TRUE(store_->Tidy(kJob, kNode, /*keep=*/1).ok());
    std::vector<std::string> wanted;
    const std::vector<Manifest> manifests = store_->List(kJob).value();
    for (const Manifest& manifest : manifests) {
      wanted.push_back(manifest.name + ".json");
      for (const Part& part : manifest.parts) wanted.push_back(part.file);
    }
    std::sort(wanted.begin(), wanted.end());
    std::vector<std::string> left;
    const std::vector<std::string> there = memory_->NamesIn(kJob);
    EXPECT_TRUE(std::includes(there.begin(), there.end(), wanted.begin(), wanted.end()));
    std::set_difference(there.begin(), there.end(), wanted.begin(), wanted.end(), std::back_inserter(left));
    EXPECT_LE(left.size(), may_be_left.empty() ? 0U : 1U);
    for (const std::string& file : left) EXPECT_EQ(OwnerOf(file)->name, may_be_left) << file;
  }

 private:
  static const MemoryFiles& Full() {
    static const std::shared_ptr<MemoryFiles> full = [] {
      auto files = std::make_shared<MemoryFiles>();
      const std::unique_ptr<Store> store = Store::Open("disk", files).value();
      for (const auto& [name, step] : {std::pair("kept", 1), {"latest", 2}, {kOlder, 3}, {kNewer, 4}}) {
        Manifest manifest = SampleManifest(name, static_cast<uint64_t>(step));
        manifest.automatic = name[0] == 's';
        EXPECT_TRUE(Save(*store, manifest).ok());
      }
      return files;
    }();
    return *full;
  }
  [[nodiscard]] std::unique_ptr<Store> Open() const { return Store::Open("disk", faulty_).value(); }

  std::shared_ptr<MemoryFiles> memory_;
  std::shared_ptr<FaultyFiles> faulty_;
  std::unique_ptr<Store> store_;
};

// What is done, and which steps each checkpoint may have afterwards, whatever happens; the last one after success.
struct Scenario {
  std::string name;
  std::function<absl::Status(Store&)> act;
  std::vector<std::pair<std::string, std::vector<uint64_t>>> steps;
  bool certain = true;  // false: it leaves alone what it cannot read, and that is no error
  std::string leaves = {};  // whose part may stay when something goes wrong
};

std::vector<Scenario> Scenarios() {
  const auto save = [](const std::string& name, uint64_t step) {
    return [=](Store& store) { return Save(store, SampleManifest(name, step)).status(); };
  };
  return {
      {"a new one", save("new", 5), {{"latest", {2}}, {kOlder, {3}}, {kNewer, {4}}, {"new", {0, 5}}}, true, "new"},
      {"in place of a former", save("latest", 5), {{kOlder, {3}}, {kNewer, {4}}, {"latest", {2, 5}}}, true, "latest"},
      {"again at its step", save("latest", 2), {{kOlder, {3}}, {kNewer, {4}}, {"latest", {2}}}, true, "latest"},
      {"delete", [](Store& store) { return store.Delete(kJob, "latest"); }, {{kOlder, {3}}, {kNewer, {4}}, {"latest", {2, 0}}}, true, "latest"},
      {"prune", [](Store& store) { return store.Prune(kJob, 1); }, {{"latest", {2}}, {kNewer, {4}}, {kOlder, {3, 0}}}, false},
      {"tidy", [](Store& store) { return store.Tidy(kJob, kNode); }, {{"latest", {2}}, {kOlder, {3}}, {kNewer, {4}}}},
  };
}

void ExpectOutcome(const Disk& disk, const Scenario& scenario, const absl::Status& status) {
  disk.ExpectWhole("kept", {1});
  for (const auto& [name, steps] : scenario.steps) {
    disk.ExpectWhole(name, status.ok() && scenario.certain ? std::vector<uint64_t>{steps.back()} : steps);
  }
  disk.ExpectNoLitter(scenario.leaves);
}

uint64_t CallsOf(const Scenario& scenario) {
  const Disk disk;
  disk.faults().Arm({});
  EXPECT_TRUE(scenario.act(disk.store()).ok()) << scenario.name;
  return disk.faults().calls();
}

// Prints how many faults the whole suite injected, one that stays counted once: `checkpoint_test --gtest_filter='FaultTest.*'`.
class FaultTest : public testing::Test {
 public:
  static void TearDownTestSuite() {
    std::cout << written_ + read_ << " faults injected in all: " << written_ << " while files were written, renamed and removed, "
              << read_ << " while they were read\n";
  }
  static void Written(uint64_t faults) { Tell(faults, written_); }
  static void Read(uint64_t faults) { Tell(faults, read_); }

 private:
  static void Tell(uint64_t faults, uint64_t& sum) {
    std::cout << faults << " faults injected\n";
    sum += faults;
  }
  static inline uint64_t written_ = 0;
  static inline uint64_t read_ = 0;
};

// Injects the fault at every call of every scenario; `check` is told the outcome. Returns how many there were.
uint64_t AtEveryCall(const Fault& fault, const std::function<void(const absl::Status&)>& check) {
  uint64_t faults = 0;
  for (const Scenario& scenario : Scenarios()) {
    const uint64_t calls = CallsOf(scenario);
    for (uint64_t at = 0; at < calls; ++at) {
      SCOPED_TRACE(testing::Message() << scenario.name << ", call " << at << " of " << calls);
      Disk disk;
      Fault now = fault;
      now.at = at;
      disk.faults().Arm(now);
      const absl::Status status = scenario.act(disk.store());
      faults += disk.faults().faults() > 0 ? 1 : 0;
      check(status);
      // Of the process that saw the fault, and of the next one.
      disk.faults().Arm({});
      disk.ExpectWhole("kept", {1});
      disk.Restart();
      ExpectOutcome(disk, scenario, status);
      if (testing::Test::HasFailure()) return faults;
    }
  }
  FaultTest::Written(faults);
  return faults;
}

void IsErrorOfDisk(const absl::Status& status) {
  EXPECT_TRUE(status.ok() || absl::IsUnavailable(status) || absl::IsResourceExhausted(status) || absl::IsDataLoss(status))
      << status;
}

TEST_F(FaultTest, AnErrorAtAnyCallLeavesTheFormerCheckpoint) {
  EXPECT_GT(AtEveryCall({Kind::kError, -EIO}, IsErrorOfDisk), 100U);
}

TEST_F(FaultTest, ADiskThatDiesAtAnyCallLeavesTheFormerCheckpoint) {
  EXPECT_GT(AtEveryCall({Kind::kError, -EIO, 0, /*from_on=*/true}, IsErrorOfDisk), 100U);
}

TEST_F(FaultTest, AFullDiskAtAnyCallLeavesTheFormerCheckpoint) {
  EXPECT_GT(AtEveryCall({Kind::kError, -ENOSPC}, IsErrorOfDisk), 100U);
  EXPECT_GT(AtEveryCall({Kind::kError, -ENOSPC, 0, /*from_on=*/true}, IsErrorOfDisk), 100U);
}

TEST_F(FaultTest, ASyncThatFailsIsNeverTakenForDone) {
  EXPECT_GT(AtEveryCall({Kind::kSyncError, -EIO}, IsErrorOfDisk), 10U);
}

TEST_F(FaultTest, ACallThatIsDoneAndFailsLeavesTheFormerCheckpoint) {
  EXPECT_GT(AtEveryCall({Kind::kLateError, -EIO}, IsErrorOfDisk), 100U);
}

TEST_F(FaultTest, ShortReadsAndWritesAreContinued) {
  const auto is_ok = [](const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; };
  EXPECT_GT(AtEveryCall({Kind::kShort}, is_ok), 20U);
  EXPECT_GT(AtEveryCall({Kind::kShort, 0, 0, /*from_on=*/true}, is_ok), 20U);
}

TEST_F(FaultTest, AnInterruptedCallIsMadeAgainButNoSync) {
  const auto is_ok_or_sync = [](const absl::Status& status) {
    EXPECT_TRUE(status.ok() || absl::StrContains(status.message(), "cannot sync")) << status;
  };
  EXPECT_GT(AtEveryCall({Kind::kError, -EINTR}, is_ok_or_sync), 100U);
}

TEST_F(FaultTest, WhatIsReadWronglyIsFoundAndRemovesNothingElse) {
  EXPECT_GT(AtEveryCall({Kind::kEnd}, IsErrorOfDisk), 10U);
  EXPECT_GT(AtEveryCall({Kind::kFlip}, IsErrorOfDisk), 10U);
}

// Loads "latest" with the fault at every call; `check` is told the outcome. Returns how many faults there were.
uint64_t AtEveryCallOfLoading(const Disk& disk, const Fault& fault, const std::function<void(const absl::Status&)>& check) {
  disk.faults().Arm({});
  EXPECT_TRUE(Load(disk.store(), "latest", 2).ok());
  const uint64_t calls = disk.faults().calls();
  uint64_t faults = 0;
  for (uint64_t at = 0; at < calls; ++at) {
    SCOPED_TRACE(testing::Message() << "call " << at << " of " << calls);
    Fault now = fault;
    now.at = at;
    disk.faults().Arm(now);
    const absl::Status status = Load(disk.store(), "latest", 2);
    if (disk.faults().faults() == 0) continue;
    ++faults;
    check(status);
  }
  FaultTest::Read(faults);
  return faults;
}

// All calls of loading, too: an answer is right or an error.
TEST_F(FaultTest, LoadingNeverGivesOtherValues) {
  const Disk disk;
  const auto is_error = [](const absl::Status& status) {
    EXPECT_TRUE(absl::IsDataLoss(status) || absl::IsNotFound(status) || absl::IsUnavailable(status)) << status;
  };
  uint64_t faults = 0;
  for (const Fault& fault : {Fault{Kind::kError, -EIO}, Fault{Kind::kError, -EIO, 0, /*from_on=*/true}, Fault{Kind::kError, -ENOENT},
                             Fault{Kind::kEnd}, Fault{Kind::kFlip}}) {
    faults += AtEveryCallOfLoading(disk, fault, is_error);
  }
  EXPECT_GT(faults, 40U);
}

TEST_F(FaultTest, LoadingGoesOnAfterShortAndInterruptedReads) {
  const Disk disk;
  const auto is_ok = [](const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; };
  EXPECT_GT(AtEveryCallOfLoading(disk, {Kind::kShort}, is_ok), 3U);
  EXPECT_GT(AtEveryCallOfLoading(disk, {Kind::kError, -EINTR}, is_ok), 10U);
}

TEST_F(FaultTest, ACrashAtAnyCallLosesNoCheckpoint) {
  using Loss = MemoryFiles::Loss;
  struct Crash {
    Loss loss;
    uint64_t seed;
  };
  std::vector<Crash> crashes = {{Loss::kNothing, 0}, {Loss::kAll, 0}};
  for (uint64_t seed = 1; seed <= 3; ++seed) crashes.push_back({Loss::kSome, seed});
  uint64_t count = 0;
  for (const Scenario& scenario : Scenarios()) {
    const uint64_t calls = CallsOf(scenario);
    for (uint64_t at = 0; at <= calls; ++at) {
      for (const Crash& crash : crashes) {
        SCOPED_TRACE(testing::Message() << scenario.name << ", call " << at << ", loss " << static_cast<int>(crash.loss)
                                        << ", seed " << crash.seed);
        Disk disk;
        disk.faults().Arm({Kind::kError, -EIO, at, /*from_on=*/true});
        const absl::Status status = scenario.act(disk.store());
        disk.memory().Crash(crash.loss, crash.seed + 100 * at);
        disk.Restart();
        ExpectOutcome(disk, scenario, status);
        ++count;
        if (HasFailure()) return;
      }
    }
  }
  std::cout << count << " crashes\n";
  EXPECT_GT(count, 800U);
}

}  // namespace
}  // namespace dmuon::checkpoint
