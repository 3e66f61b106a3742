// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/checkpoint/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/checkpoint/names.h"
#include "tests/daemon/base/temp_dir.h"
#include "tests/daemon/checkpoint/samples.h"
#include "wire/error.h"

namespace dmuon::checkpoint {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
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
    const std::vector<Manifest> manifests = store_->List(kJob).value();
    for (const Manifest& manifest : manifests) names.push_back(manifest.name);
    return names;
  }
  void Put(const std::string& file, const std::string& content) const { std::ofstream(FileOf(file)) << content; }

  // The clock of files may stand still for milliseconds.
  void MakeOlder(const std::string& file, int hours) const {
    std::filesystem::last_write_time(FileOf(file), std::filesystem::last_write_time(FileOf(file)) - std::chrono::hours(hours));
  }
  void PutEarlier(const std::string& file) const {
    Put(file, "left");
    MakeOlder(file, 1);
  }

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

TEST_F(StoreTest, SavingUnderANameReplacesItAndItsParts) {
  ASSERT_TRUE(SaveIt("latest", 7).ok());
  ASSERT_TRUE(SaveIt("other", 8).ok());
  ASSERT_TRUE(SaveIt("latest", 9).ok());
  EXPECT_TRUE(Load(*store_, "latest", 9).ok());
  EXPECT_TRUE(Load(*store_, "other", 8).ok());
  EXPECT_THAT(Files(), UnorderedElementsAre("latest.json", "latest.9.3.node-0.safetensors", "other.json",
                                            "other.8.3.node-0.safetensors"));
}

// The former must stay whole until the new manifest is there, so the values need another file.
TEST_F(StoreTest, SavingAgainAtTheSameStepTakesAnotherFile) {
  ASSERT_TRUE(SaveIt("latest", 7).ok());
  const Image other = SampleImage(SampleEntries(), 50);
  const absl::StatusOr<Part> part = store_->WritePart(SampleManifest("latest", 7), "node-0", other, nullptr);
  ASSERT_TRUE(part.ok());
  EXPECT_EQ(part->file, "latest.7.3.node-0%r1.safetensors");
  EXPECT_TRUE(Load(*store_, "latest", 7).ok());
  Manifest manifest = SampleManifest("latest", 7);
  manifest.parts = {*part};
  EXPECT_TRUE(store_->Commit(manifest).ok());
  EXPECT_THAT(Files(), UnorderedElementsAre("latest.json", "latest.7.3.node-0%r1.safetensors"));
  ASSERT_TRUE(SaveIt("latest", 7).ok());
  EXPECT_THAT(Files(), UnorderedElementsAre("latest.json", "latest.7.3.node-0.safetensors"));
}

TEST_F(StoreTest, APartIsNothingUntilItIsCommitted) {
  const absl::StatusOr<Part> part =
      store_->WritePart(SampleManifest("first", 7), "node-0", SampleImage(SampleEntries()), nullptr);
  ASSERT_TRUE(part.ok());
  EXPECT_TRUE(absl::IsNotFound(store_->Find(kJob, "first").status()));
  EXPECT_THAT(store_->List(kJob).value(), IsEmpty());
  EXPECT_THAT(store_->Jobs().value(), IsEmpty());
  store_->Discard(SampleManifest("first", 7), *part);
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(StoreTest, DiscardLeavesWhatAManifestNames) {
  const absl::StatusOr<Manifest> manifest = Save(*store_, SampleManifest("first", 7));
  ASSERT_TRUE(manifest.ok());
  store_->Discard(*manifest, manifest->parts[0]);
  EXPECT_TRUE(Load(*store_, "first", 7).ok());
}

TEST_F(StoreTest, ACheckpointIsOfAsManyNodesAsThereAre) {
  Manifest manifest = SampleManifest("both", 7);
  const std::unique_ptr<Store> other = Open();
  for (const auto& [store, node] : {std::pair(store_.get(), "host-a:7000"), {other.get(), "host/b@.7"}}) {
    manifest.parts.push_back(store->WritePart(manifest, node, SampleImage(SampleEntries(), 7), nullptr).value());
  }
  // At once, as nodes that share a root do.
  std::thread thread([&] { EXPECT_TRUE(other->Commit(manifest).ok()); });
  EXPECT_TRUE(store_->Commit(manifest).ok());
  thread.join();
  EXPECT_TRUE(Load(*store_, "both", 7).ok());
  EXPECT_EQ(store_->Find(kJob, "both").value(), manifest);
  EXPECT_THAT(Files(), UnorderedElementsAre("both.json", "both.7.3.host-a%3A7000.safetensors",
                                            "both.7.3.host%2Fb%40%2E7.safetensors"));
}

TEST_F(StoreTest, TwoWritersOfOneRootDoNotDisturbEachOther) {
  const auto run = [&](const std::string& node) {
    const std::unique_ptr<Store> store = Open();
    EXPECT_TRUE(store->Tidy(kJob, node).ok());
    for (uint64_t step = 1; step <= 20; ++step) {
      Manifest manifest = SampleManifest(node, step);
      manifest.automatic = true;
      const absl::StatusOr<Manifest> saved = Save(*store, manifest, node);
      EXPECT_TRUE(saved.ok()) << saved.status();
      EXPECT_TRUE(Load(*store, node, step).ok());
      EXPECT_TRUE(store->Prune(kJob, 2).ok());
    }
  };
  std::thread other(run, "node-1");
  run("node-2");
  other.join();
  EXPECT_THAT(Names(), UnorderedElementsAre("node-1", "node-2"));
  EXPECT_TRUE(Load(*store_, "node-1", 20).ok());
  EXPECT_TRUE(Load(*store_, "node-2", 20).ok());
  EXPECT_EQ(Files().size(), 4U);
}

TEST_F(StoreTest, ALateCommitDoesNotBringBackAFormerStep) {
  Manifest slow = SampleManifest("latest", 7);
  slow.parts.push_back(store_->WritePart(slow, "node-0", SampleImage(SampleEntries(), 7), nullptr).value());
  const std::unique_ptr<Store> fast = Open();
  ASSERT_TRUE(fast->Commit(slow).ok());
  ASSERT_TRUE(Save(*fast, SampleManifest("latest", 8), "node-1").ok());
  const absl::Status late = store_->Commit(slow);
  EXPECT_TRUE(absl::IsFailedPrecondition(late)) << late;
  EXPECT_TRUE(Load(*store_, "latest", 8).ok());
}

TEST_F(StoreTest, WhatIsNotThereIsNotFoundAndSaysWhatIs) {
  const absl::Status no_job = store_->Find(kJob, "x").status();
  EXPECT_TRUE(absl::IsNotFound(no_job)) << no_job;
  EXPECT_EQ(wire::ReasonOf(no_job), v1::ERROR_REASON_CHECKPOINT);
  ASSERT_TRUE(SaveIt("first", 7).ok());
  const absl::Status no_name = store_->Find(kJob, "second").status();
  EXPECT_TRUE(absl::IsNotFound(no_name)) << no_name;
  EXPECT_THAT(std::string(no_name.message()), HasSubstr("job demo has no checkpoint second here; there are: first"));
  EXPECT_TRUE(absl::IsNotFound(store_->Delete(kJob, "second")));
  EXPECT_TRUE(absl::IsNotFound(store_->Delete("nobody", "second")));
  EXPECT_THAT(store_->List("nobody").value(), IsEmpty());

  const Manifest manifest = store_->Find(kJob, "first").value();
  std::filesystem::remove(FileOf(manifest.parts[0].file));
  const absl::Status no_part = store_->OpenPart(manifest, manifest.parts[0]).status();
  EXPECT_TRUE(absl::IsNotFound(no_part)) << no_part;
  EXPECT_THAT(std::string(no_part.message()), HasSubstr("node node-0"));
  EXPECT_THAT(std::string(no_part.message()), HasSubstr("first.7.3.node-0.safetensors"));
  EXPECT_TRUE(absl::IsNotFound(store_->Verify(manifest, nullptr)));
}

TEST_F(StoreTest, NamesThatLeadElsewhereAreRefused) {
  ASSERT_TRUE(SaveIt("first", 7).ok());
  const Image image = SampleImage(SampleEntries());
  for (const std::string name : {"../x", "a/b", ".hid", "", "..", "A", "a b"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(store_->Find(kJob, name).status())) << name;
    EXPECT_TRUE(absl::IsInvalidArgument(store_->Delete(kJob, name))) << name;
    EXPECT_TRUE(absl::IsInvalidArgument(store_->Commit(SampleManifest(name, 7)))) << name;
    EXPECT_TRUE(absl::IsInvalidArgument(store_->WritePart(SampleManifest(name, 7), "node-0", image, nullptr).status()));
  }
  for (const std::string job : {"", "a b", "a\nb"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(store_->List(job).status())) << job;
    EXPECT_TRUE(absl::IsInvalidArgument(store_->WritePart(SampleManifest("x", 7, job), "node-0", image, nullptr).status()));
  }
  EXPECT_TRUE(absl::IsInvalidArgument(store_->WritePart(SampleManifest("x", 7), "", image, nullptr).status()));
  // From a peer's manifest.
  Manifest manifest = store_->Find(kJob, "first").value();
  for (const std::string file : {"../demo/first.7.3.node-0.safetensors", ".", "", "/etc/passwd"}) {
    manifest.parts[0].file = file;
    EXPECT_TRUE(absl::IsDataLoss(store_->OpenPart(manifest, manifest.parts[0]).status())) << file;
    EXPECT_TRUE(absl::IsDataLoss(store_->Verify(manifest, nullptr))) << file;
    EXPECT_TRUE(absl::IsInvalidArgument(store_->Commit(manifest))) << file;
  }
}

TEST_F(StoreTest, JobsWhoseIdsAreNoFileNamesStayApart) {
  for (const std::string job : {"a/b", "a%2Fb", "..", ".", "a:b@c"}) {
    if (job == "a%2Fb") continue;  // no id
    ASSERT_TRUE(Save(*store_, SampleManifest("first", 7, job)).ok()) << job;
    EXPECT_TRUE(Load(*store_, "first", 7, job).ok()) << job;
  }
  std::filesystem::create_directory(root_ + "/lost+found");
  std::filesystem::create_directory(root_ + "/empty");
  EXPECT_THAT(store_->Jobs().value(), ElementsAre(".", "..", "a/b", "a:b@c"));
}

TEST_F(StoreTest, LinksInTheRootAreRefused) {
  ASSERT_TRUE(SaveIt("first", 7).ok());
  std::filesystem::create_directory_symlink(root_ + "/" + kJob, root_ + "/linked");
  EXPECT_FALSE(store_->Find("linked", "first").ok());
  EXPECT_FALSE(Save(*store_, SampleManifest("first", 7, "linked")).ok());
  EXPECT_THAT(store_->Jobs().value(), ElementsAre(kJob));
  const std::string part = FileOf("first.7.3.node-0.safetensors");
  std::filesystem::rename(part, dir_.File("part"));
  std::filesystem::create_symlink(dir_.File("part"), part);
  const absl::Status status = Load(*store_, "first", 7);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  std::filesystem::rename(FileOf("first.json"), dir_.File("json"));
  std::filesystem::create_symlink(dir_.File("json"), FileOf("first.json"));
  EXPECT_TRUE(absl::IsDataLoss(store_->Find(kJob, "first").status()));
}

TEST_F(StoreTest, ListsByStepAndLeavesOutWhatItCannotRead) {
  ASSERT_TRUE(SaveIt("c", 10).ok());
  ASSERT_TRUE(SaveIt("b", 9).ok());
  ASSERT_TRUE(SaveIt("a", 10).ok());
  Put("broken.json", "{");
  Put("notes.txt", "mine");
  EXPECT_THAT(Names(), ElementsAre("b", "a", "c"));
  EXPECT_TRUE(absl::IsDataLoss(store_->Find(kJob, "broken").status()));
}

TEST_F(StoreTest, AManifestOfAnotherJobOrNameIsDamage) {
  ASSERT_TRUE(SaveIt("first", 7).ok());
  ASSERT_TRUE(Save(*store_, SampleManifest("first", 7, "other")).ok());
  std::filesystem::copy_file(FileOf("first.json"), FileOf("second.json"));
  EXPECT_TRUE(absl::IsDataLoss(store_->Find(kJob, "second").status()));
  std::filesystem::copy(FileOf("first.json", "other"), FileOf("first.json"), std::filesystem::copy_options::overwrite_existing);
  const absl::Status status = store_->Find(kJob, "first").status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("of job other"));
}

// The other job's part has the right hash in its own manifest, and the wrong job in its head.
TEST_F(StoreTest, APartOfAnotherCheckpointIsDamage) {
  ASSERT_TRUE(SaveIt("first", 7).ok());
  const Manifest other = Save(*store_, SampleManifest("first", 7, "other")).value();
  std::filesystem::copy(FileOf(other.parts[0].file, "other"), FileOf("stolen.safetensors"));
  Manifest manifest = SampleManifest("mixed", 7);
  manifest.parts = other.parts;
  manifest.parts[0].file = "stolen.safetensors";
  ASSERT_TRUE(store_->Commit(manifest).ok());
  const absl::Status status = store_->Verify(store_->Find(kJob, "mixed").value(), nullptr);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("its job is other, its manifest says demo"));
}

TEST_F(StoreTest, ACheckpointOfANewerFormatIsLeftAlone) {
  ASSERT_TRUE(SaveIt("first", 7).ok());
  Put("next.json", R"({"format": 2, "dmuon_version": "9.0.0"})");
  Put("next.8.3.node-0.safetensors", "new");
  EXPECT_TRUE(absl::IsFailedPrecondition(store_->Find(kJob, "next").status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(store_->Delete(kJob, "next")));
  EXPECT_TRUE(store_->Tidy(kJob, "node-0").ok());
  EXPECT_EQ(Files().size(), 4U);
}

TEST_F(StoreTest, DeletingTakesManifestAndPartsAndNothingElse) {
  ASSERT_TRUE(SaveIt("first", 7).ok());
  ASSERT_TRUE(SaveIt("second", 8).ok());
  EXPECT_TRUE(store_->Delete(kJob, "first").ok());
  EXPECT_THAT(Files(), UnorderedElementsAre("second.json", "second.8.3.node-0.safetensors"));
  EXPECT_TRUE(Load(*store_, "second", 8).ok());
}

TEST_F(StoreTest, ADamagedCheckpointCanBeDeleted) {
  ASSERT_TRUE(SaveIt("first", 7).ok());
  ASSERT_TRUE(SaveIt("first.7", 8).ok());
  Put("first.json", "{");
  EXPECT_TRUE(store_->Delete(kJob, "first").ok());
  EXPECT_THAT(Files(), UnorderedElementsAre("first.7.json", "first.7.8.3.node-0.safetensors"));
}

TEST_F(StoreTest, PruningKeepsTheLastAutomaticOnesAndAllOthers) {
  ASSERT_TRUE(SaveIt("mine", 1).ok());
  for (uint64_t step = 10; step <= 14; ++step) ASSERT_TRUE(SaveIt(absl::StrCat("auto-", step), step, true).ok());
  EXPECT_TRUE(store_->Prune(kJob, 0).ok());
  EXPECT_EQ(Names().size(), 6U);
  EXPECT_TRUE(store_->Prune(kJob, 2).ok());
  EXPECT_THAT(Names(), ElementsAre("mine", "auto-13", "auto-14"));
  EXPECT_EQ(Files().size(), 6U);
  EXPECT_TRUE(store_->Prune("nobody", 2).ok());
}

TEST_F(StoreTest, AfterGoingBackTheNewOnesAreTheLast) {
  ASSERT_TRUE(SaveIt("auto-50", 50, true).ok());
  ASSERT_TRUE(SaveIt("auto-100", 100, true).ok());
  const auto now = std::filesystem::last_write_time(FileOf("auto-100.json"));
  std::filesystem::last_write_time(FileOf("auto-50.json"), now - std::chrono::hours(2));
  std::filesystem::last_write_time(FileOf("auto-100.json"), now - std::chrono::hours(1));
  ASSERT_TRUE(SaveIt("auto-60", 60, true).ok());
  EXPECT_TRUE(store_->Prune(kJob, 1).ok());
  EXPECT_THAT(Names(), ElementsAre("auto-60"));
}

TEST_F(StoreTest, TidyingTakesOnlyWhatAnEarlierProcessOfThisNodeLeft) {
  ASSERT_TRUE(SaveIt("first", 7).ok());
  const std::vector<std::string> others = {"first.8.3.node-1.safetensors", "node-1.12.0123456789abcdef.tmp", "notes.txt",
                                           "first.8.3.a-node-0.safetensors", "x.tmp"};
  const std::vector<std::string> ours = {"first.8.3.node-0.safetensors", "first.8.3.node-0%r2.safetensors",
                                         "node-0.12.0123456789abcdef.tmp"};
  for (const auto* files : {&others, &ours}) {
    for (const std::string& file : *files) PutEarlier(file);
  }
  EXPECT_TRUE(store_->Tidy(kJob, "node-0").ok());
  std::vector<std::string> wanted = {"first.json", "first.7.3.node-0.safetensors"};
  wanted.insert(wanted.end(), others.begin(), others.end());
  EXPECT_THAT(Files(), ::testing::UnorderedElementsAreArray(wanted));
  EXPECT_TRUE(store_->Tidy("nobody", "node-0").ok());
}

// The process ended after its part was there, and before its Commit; that of another node, with its own root, did not.
TEST_F(StoreTest, APartThatAnotherNodesManifestMayNameStays) {
  Manifest manifest = SampleManifest("first", 7);
  manifest.parts = {Open()->WritePart(manifest, "node-0", SampleImage(SampleEntries(), 7), nullptr).value()};
  MakeOlder(manifest.parts[0].file, 1);
  ASSERT_TRUE(SaveIt("other", 8, true).ok());
  EXPECT_TRUE(store_->Tidy(kJob, "node-0", 1).ok());
  const absl::StatusOr<std::unique_ptr<ArraySource>> part = store_->OpenPart(manifest, manifest.parts[0]);
  EXPECT_TRUE(part.ok()) << part.status();
  ASSERT_TRUE(SaveIt("first", 9).ok());  // in its place
  EXPECT_TRUE(store_->Tidy(kJob, "node-0", 1).ok());
  EXPECT_TRUE(absl::IsNotFound(store_->OpenPart(manifest, manifest.parts[0]).status()));
}

TEST_F(StoreTest, AnAutomaticPartThatNoManifestNamesStaysAsLongAsItsCheckpointWould) {
  const std::string file = AutomaticName(5) + ".5.3.node-0.safetensors";
  ASSERT_TRUE(SaveIt(AutomaticName(4), 4, true).ok());
  MakeOlder(AutomaticName(4) + ".json", 2);
  PutEarlier(file);
  ASSERT_TRUE(SaveIt("mine", 6).ok());
  ASSERT_TRUE(SaveIt(AutomaticName(6), 6, true).ok());
  EXPECT_TRUE(store_->Tidy(kJob, "node-0", 2).ok());
  EXPECT_THAT(Files(), Contains(file));
  ASSERT_TRUE(SaveIt(AutomaticName(7), 7, true).ok());
  EXPECT_TRUE(store_->Tidy(kJob, "node-0", 0).ok());  // all are kept
  EXPECT_THAT(Files(), Contains(file));
  EXPECT_TRUE(store_->Tidy(kJob, "node-0", 2).ok());
  EXPECT_THAT(Files(), Not(Contains(file)));
}

TEST_F(StoreTest, TidyingLeavesASaveInProgress) {
  Manifest manifest = SampleManifest("first", 7);
  const absl::StatusOr<Part> part = store_->WritePart(
      manifest, "node-0", SampleImage(SampleEntries(), 7), [&](uint64_t, uint64_t) { return store_->Tidy(kJob, "node-0").ok(); });
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_TRUE(store_->Tidy(kJob, "node-0").ok());
  manifest.parts = {*part};
  EXPECT_TRUE(store_->Commit(manifest).ok());
  EXPECT_TRUE(store_->Tidy(kJob, "node-0").ok());
  EXPECT_TRUE(Load(*store_, "first", 7).ok());
}

TEST_F(StoreTest, TidyingLeavesPartsWhereAManifestCannotBeRead) {
  ASSERT_TRUE(SaveIt("first", 7).ok());
  Put("first.json", "{");
  Put("node-0.12.0123456789abcdef.tmp", "left");
  EXPECT_TRUE(store_->Tidy(kJob, "node-0").ok());
  EXPECT_THAT(Files(), UnorderedElementsAre("first.json", "first.7.3.node-0.safetensors"));
}

TEST_F(StoreTest, VerifyingReadsWhatIsHereBeforeItMissesWhatIsNot) {
  Manifest manifest = SampleManifest("both", 7);
  for (const std::string node : {"node-0", "node-1"}) {
    manifest.parts.push_back(store_->WritePart(manifest, node, SampleImage(SampleEntries(), 7), nullptr).value());
  }
  ASSERT_TRUE(store_->Commit(manifest).ok());
  std::filesystem::remove(FileOf(manifest.parts[0].file));
  const absl::Status missing = store_->Verify(manifest, nullptr);
  EXPECT_TRUE(absl::IsNotFound(missing)) << missing;
  EXPECT_THAT(std::string(missing.message()), HasSubstr(manifest.parts[0].file));
  std::filesystem::resize_file(FileOf(manifest.parts[1].file), 100);
  const absl::Status damaged = store_->Verify(manifest, nullptr);
  EXPECT_TRUE(absl::IsDataLoss(damaged)) << damaged;
  EXPECT_THAT(std::string(damaged.message()), HasSubstr(manifest.parts[1].file));
}

TEST_F(StoreTest, ProgressGrowsToAllAndStopsWhenTold) {
  std::vector<uint64_t> done;
  const auto count = [&](uint64_t now, uint64_t total) {
    EXPECT_LE(now, total);
    done.push_back(now);
    return done.size() < 3;
  };
  const Image image = SampleImage({WholeEntry("w", kWeight, {1 << 20})});
  const absl::Status status = store_->WritePart(SampleManifest("first", 7), "node-0", image, count).status();
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_THAT(Files(), IsEmpty());

  ASSERT_TRUE(SaveIt("second", 8).ok());
  const Manifest manifest = store_->Find(kJob, "second").value();
  uint64_t last = 0;
  EXPECT_TRUE(store_->Verify(manifest, [&](uint64_t now, uint64_t total) {
                      last = now;
                      return now <= total;
                    }).ok());
  EXPECT_EQ(last, manifest.parts[0].bytes);
  EXPECT_TRUE(absl::IsCancelled(store_->Verify(manifest, [](uint64_t, uint64_t) { return false; })));
}

TEST_F(StoreTest, ReadsOnlyAsMuchAsThereIs) {
  const Manifest manifest = Save(*store_, SampleManifest("first", 7)).value();
  const std::unique_ptr<ArraySource> reader = store_->OpenPart(manifest, manifest.parts[0]).value();
  std::vector<float> values(13);
  EXPECT_TRUE(absl::IsInvalidArgument(reader->Read(0, values)));
  // An open part stays, whatever becomes of its file.
  EXPECT_TRUE(store_->Delete(kJob, "first").ok());
  values.resize(12);
  EXPECT_TRUE(reader->Read(0, values).ok());
}

}  // namespace
}  // namespace dmuon::checkpoint
