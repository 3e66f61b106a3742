// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Checkpoints of nodes that each have a directory of their own: wherever the parts are, a restore puts the state together.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/daemon/node/checkpoint_run.h"
#include "tests/daemon/node/exact_run.h"
#include "tests/daemon/node/gated_files.h"
#include "tests/daemon/node/test_node.h"
#include "wire/error.h"

namespace dmuon::node {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kFetched[] = "dmuon_checkpoint_bytes_total{job_id=\"model\",op=\"fetch\"";
constexpr char kRestored[] = "dmuon_checkpoint_bytes_total{job_id=\"model\",op=\"restore\"";

// All files of the job in one directory come to the other one, too.
void CopyJob(const Disk& from, const Disk& to) {
  std::filesystem::create_directories(to.directory.File("model"));
  std::filesystem::copy(from.directory.File("model"), to.directory.File("model"),
                        std::filesystem::copy_options::recursive | std::filesystem::copy_options::skip_existing);
}

void Forget(const Disk& disk, const std::string& ending) { std::filesystem::remove(disk.File(ending)); }

// A job whose worker r is on node r, modulo; node n has disks[n].
struct Nodes {
  Nodes(const std::vector<Disk*>& disks, const TestJob& job, uint32_t slots = 2)
      : cluster(disks.size(), Options(slots), StoresOf(disks)), run(Engines(disks.size(), job.spec.world_size()), job) {}
  static EngineOptions Options(uint32_t slots) {
    EngineOptions options = TwoSlots();
    options.slots = slots;
    return options;
  }
  static std::vector<checkpoint::Store*> StoresOf(const std::vector<Disk*>& disks) {
    std::vector<checkpoint::Store*> stores;
    for (Disk* disk : disks) stores.push_back(disk->store.get());
    return stores;
  }
  std::vector<Engine*> Engines(size_t nodes, uint32_t workers) {
    std::vector<Engine*> engines;
    for (uint32_t rank = 0; rank < workers; ++rank) engines.push_back(&cluster.engine(rank % nodes));
    return engines;
  }
  TestCluster cluster;
  TestRun run;
};

// Saved after step 2 by two nodes of two workers, each in its own directory.
class NodeLocalTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kSaved = 2;
  static constexpr uint64_t kSteps = 4;

  void SetUp() override {
    Nodes before({&first_, &second_}, job_);
    ASSERT_TRUE(before.run.Start(shards_).ok());
    ExpectSteps(before.run, 1, kSaved);
    const absl::Status saved = before.run.Save("two", kSaved);
    ASSERT_TRUE(saved.ok()) << saved;
    ExpectSteps(before.run, kSaved + 1, kSteps);
    expected_ = WholeModel(before.run, job_, shards_);
  }

  // The rest of the run, on `disks`, has the bits of the uninterrupted one. The bytes that went from node to node, of all.
  std::pair<double, double> ExpectItGoesOn(const std::vector<Disk*>& disks, uint32_t workers, uint32_t slots = 2) {
    const TestJob job = CheckpointModel(workers);
    const Shards shards = Rows(job, workers, true);
    Nodes after(disks, job, slots);
    EXPECT_TRUE(after.run.Start(shards, Zero).ok());
    const absl::StatusOr<uint64_t> step = after.run.Restore("two");
    EXPECT_TRUE(step.ok()) << step.status();
    if (!step.ok()) return {};
    EXPECT_EQ(*step, kSaved);
    ExpectSteps(after.run, kSaved + 1, kSteps);
    EXPECT_EQ(WholeModel(after.run, job, shards), expected_);
    return {after.cluster.Counter(kFetched), after.cluster.Counter(kRestored)};
  }

  // Of a restore on `disks`, after which all is as if it had never been asked for.
  absl::Status RefusalOn(const std::vector<Disk*>& disks) {
    Nodes after(disks, job_);
    EXPECT_TRUE(after.run.Start(shards_).ok());
    ExpectSteps(after.run, 1, 1);
    absl::Status status = after.run.Restore("two").status();
    ExpectSteps(after.run, 2, 3);
    EXPECT_EQ(ParametersOf(after.run, job_), Undisturbed(job_, shards_, 3));
    return status;
  }

  const TestJob job_ = CheckpointModel(4);
  const Shards shards_ = Rows(job_, 4, true);
  Disk first_;
  Disk second_;
  Disk empty_;
  std::vector<float> expected_;
};

TEST_F(NodeLocalTest, NodesWithTheSameOwnersReadTheirOwnPartsOnly) {
  EXPECT_EQ(ExpectItGoesOn({&first_, &second_}, 4).first, 0.0);
}

TEST_F(NodeLocalTest, OtherOwnersGetWhatOthersHave) {
  const auto [fetched, restored] = ExpectItGoesOn({&first_, &second_}, 2, /*slots=*/1);
  EXPECT_GT(fetched, 0.0);
  EXPECT_LT(fetched, restored);
}

TEST_F(NodeLocalTest, DirectoriesThatChangedHandsAreReadFromAfar) {
  const auto [fetched, restored] = ExpectItGoesOn({&second_, &first_}, 4);
  EXPECT_EQ(fetched, restored);  // every byte, once
}

TEST_F(NodeLocalTest, ANodeThatWasNotThereTakesPart) {
  EXPECT_GT(ExpectItGoesOn({&first_, &second_, &empty_}, 3).first, 0.0);
}

TEST_F(NodeLocalTest, ANodeWithAnEmptyDirectoryGetsAllFromTheOthers) {
  CopyJob(second_, first_);
  const double fetched = ExpectItGoesOn({&empty_, &first_}, 4).first;
  EXPECT_GT(fetched, 0.0);
  EXPECT_TRUE(std::filesystem::is_empty(empty_.directory.path()));
}

TEST_F(NodeLocalTest, OneNodeThatHasBothPartsNeedsNobody) {
  CopyJob(second_, first_);
  EXPECT_EQ(ExpectItGoesOn({&first_}, 1).first, 0.0);
}

TEST_F(NodeLocalTest, WhereAllPartsAreOnAllNodesNothingMoves) {
  CopyJob(second_, first_);
  CopyJob(first_, second_);
  const auto [fetched, restored] = ExpectItGoesOn({&second_, &first_}, 3, /*slots=*/1);
  EXPECT_EQ(fetched, 0.0);
  EXPECT_GT(restored, 0.0);
}

TEST_F(NodeLocalTest, AManifestOfOneNodeIsEnough) {
  Forget(first_, ".json");
  EXPECT_EQ(ExpectItGoesOn({&first_, &second_}, 4).first, 0.0);
}

TEST_F(NodeLocalTest, WithoutAnyManifestThereIsNoCheckpoint) {
  Forget(first_, ".json");
  Forget(second_, ".json");
  const absl::Status status = RefusalOn({&first_, &second_});
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("node node-0: job model has no checkpoint two"));
}

TEST_F(NodeLocalTest, APartThatNobodyHasIsNamed) {
  const std::string lost = second_.File(".safetensors").filename().string();
  Forget(second_, ".safetensors");
  const absl::Status status = RefusalOn({&first_, &second_});
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(wire::ReasonOf(status), v1::ERROR_REASON_CHECKPOINT);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(lost), HasSubstr("node node-1")));
}

TEST_F(NodeLocalTest, ADamagedArrayOfAnotherNodeIsNamedAndChangesNothing) {
  const std::filesystem::path file = second_.File(".safetensors");
  FlipLastBit(file);
  const absl::Status status = RefusalOn({&second_, &first_});
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(wire::ReasonOf(status), v1::ERROR_REASON_CHECKPOINT);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("node node-0: "), HasSubstr(file.filename().string()), HasSubstr("the values of ")));
}

TEST_F(NodeLocalTest, ADamagedHeadIsNamedAndChangesNothing) {
  const std::filesystem::path file = second_.File(".safetensors");
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
  const absl::Status status = RefusalOn({&first_, &second_});
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("node node-1: "), HasSubstr(file.filename().string())));
}

TEST_F(NodeLocalTest, TwoManifestsOfOneNameAreRefusedNamingBothNodes) {
  {
    Nodes other({&second_, &empty_}, job_);
    ASSERT_TRUE(other.run.Start(shards_).ok());
    ExpectSteps(other.run, 1, 1);
    ASSERT_TRUE(other.run.Save("two", 1).ok());
  }
  const absl::Status status = RefusalOn({&first_, &empty_});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("node node-0 restores checkpoint 'two' of step 2"),
                                                   HasSubstr("node node-1 checkpoint 'two' of step 1")));
}

// The first node loses its connections before its n-th read of a part: while heads, its own arrays, or those that go to the
// other one are read.
TEST_F(NodeLocalTest, ANodeLostInTheMiddleIsMadeUpForByARepetition) {
  const auto gate = std::make_shared<Gate>();
  Disk watched(std::make_shared<GatedFiles>(gate));
  CopyJob(second_, watched);
  Nodes after({&watched, &first_}, job_);
  ASSERT_TRUE(after.run.Start(shards_, Zero).ok());
  size_t lost = 0;
  for (size_t read = 0; !HasFailure(); ++read) {
    bool dropped = false;
    gate->Before(read, [&] {
      dropped = true;
      after.cluster.switchboard().Drop("node-0");
    });
    const absl::Status status = after.run.Restore("two").status();
    gate->Before(0, nullptr);
    if (status.ok()) {
      if (!dropped) break;  // there were fewer reads
    } else {
      ++lost;
      EXPECT_EQ(wire::ReasonOf(status), v1::ERROR_REASON_PEER_LOST) << status;
      const absl::StatusOr<uint64_t> again = after.run.Restore("two");
      EXPECT_TRUE(again.ok()) << "after read " << read << ": " << again.status();
    }
    ExpectSteps(after.run, kSaved + 1, kSteps);
    EXPECT_EQ(WholeModel(after.run, job_, shards_), expected_) << "after read " << read;
  }
  EXPECT_GT(lost, 4U);
}

}  // namespace
}  // namespace dmuon::node
