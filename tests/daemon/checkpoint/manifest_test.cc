// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/checkpoint/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "daemon/checkpoint/names.h"
#include "tests/daemon/checkpoint/samples.h"

namespace dmuon::checkpoint {
namespace {

using ::testing::HasSubstr;

Manifest TwoNodes() {
  Manifest manifest = SampleManifest("run.best", 12);
  manifest.automatic = true;
  manifest.parts = {{"host-a:7000", "run.best.12.3.host-a%3A7000.safetensors", 4096, 6, std::string(64, 'a')},
                    {"host-b:7000", "run.best.12.3.host-b%3A7000.safetensors", 128, 0, std::string(64, '0')}};
  return manifest;
}

std::string With(const std::string& from, const std::string& to) {
  std::string json = ToJson(TwoNodes());
  EXPECT_THAT(json, HasSubstr(from));
  return absl::StrReplaceAll(json, {{from, to}});
}

TEST(ManifestTest, ReadsForPeopleAndProgramsAlike) {
  const std::string expected = R"({
  "format": 1,
  "job": "demo",
  "name": "run.best",
  "step": 12,
  "generation": 3,
  "automatic": true,
  "dmuon_version": "0.1.0",
  "parts": [
    {
      "node": "host-a:7000",
      "file": "run.best.12.3.host-a%3A7000.safetensors",
      "bytes": 4096,
      "entries": 6,
      "header_sha256": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
    },
    {
      "node": "host-b:7000",
      "file": "run.best.12.3.host-b%3A7000.safetensors",
      "bytes": 128,
      "entries": 0,
      "header_sha256": "0000000000000000000000000000000000000000000000000000000000000000"
    }
  ]
}
)";
  EXPECT_EQ(ToJson(TwoNodes()), expected);
}

TEST(ManifestTest, ComesBackAsItWasWithTheLargestNumbers) {
  Manifest manifest = TwoNodes();
  manifest.step = std::numeric_limits<uint64_t>::max();
  manifest.generation = std::numeric_limits<uint64_t>::max();
  EXPECT_EQ(ParseManifest(ToJson(manifest)).value(), manifest);
  manifest.parts.clear();
  EXPECT_EQ(ParseManifest(ToJson(manifest)).value(), manifest);
}

TEST(ManifestTest, FieldsOfLaterVersionsAreIgnored) {
  EXPECT_EQ(ParseManifest(With("\"step\"", "\"colour\": {\"is\": [null, 1.5]}, \"step\"")).value(), TwoNodes());
}

TEST(ManifestTest, ANewerFormatIsRefusedWithBothVersions) {
  const absl::Status status = ParseManifest(With("\"format\": 1", "\"format\": 2")).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("format 2 by dmuon 0.1.0"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("up to 1"));
  // Whatever else it looks like.
  EXPECT_TRUE(absl::IsFailedPrecondition(ParseManifest(R"({"format": 18446744073709551615, "dmuon_version": 7})").status()));
}

TEST(ManifestTest, WhatIsWrongIsDamageThatPointsToTheField) {
  const struct {
    std::string json;
    std::string says;
  } cases[] = {
      {"", "no JSON at byte"},
      {"[]", "must be an object"},
      {"{}", "/format: is missing"},
      {With("\"format\": 1", "\"format\": 0"), "/format"},
      {With("\"format\": 1", "\"format\": \"1\""), "/format: is string"},
      {With("\"job\": \"demo\"", "\"job\": \"de mo\""), "/job"},
      {With("\"run.best\"", "\"../best\""), "/name"},
      {With("\"step\": 12", "\"step\": -1"), "/step: is number"},
      {With("\"step\": 12", "\"step\": 1.0"), "/step: is number"},
      {With("\"step\": 12", "\"step\": 18446744073709551616"), "/step: is number"},
      {With("\"step\": 12", "\"step\": 1e999"), "no JSON at byte"},
      {With("\"step\": 12", "\"step\": 12, \"step\": 12"), "two fields are called \"step\""},
      {With("\"automatic\": true", "\"automatic\": 1"), "/automatic: is number"},
      {With("\"0.1.0\"", "\"\""), "/dmuon_version"},
      {With("\"parts\": [", "\"parts\": {}, \"other\": ["), "/parts: is object"},
      {With("\"bytes\": 128", "\"bytes\": 18446744073709551615"), "/parts/1/bytes: is 18446744073709551615"},
      {With("\"entries\": 6", "\"entries\": null"), "/parts/0/entries: is null"},
      {With("\"entries\": 6", "\"entries\": 4294967297"), "/parts/0/entries"},
      {With("host-b:7000", "host-a:7000"), "/parts/1: a second part of node host-a:7000"},
      {With("host-b%3A", "host-a%3A"), "/parts/1: a second part in file"},
      {With(std::string(64, 'a'), std::string(64, 'A')), "/parts/0/header_sha256"},
      {With(std::string(64, 'a'), "a"), "/parts/0/header_sha256"},
      {ToJson(TwoNodes()) + "{", "no JSON at byte"},
      {ToJson(TwoNodes()).substr(0, 200), "no JSON at byte"},
      {std::string(100'000, '['), "more than 8 levels"},
      {std::string((uint64_t{16} << 20) + 1, ' '), "16777217 bytes"},
  };
  for (const auto& wrong : cases) {
    const absl::Status status = ParseManifest(wrong.json).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << wrong.says << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(wrong.says));
  }
}

TEST(ManifestTest, AFileOfAPartIsAPlainName) {
  for (const std::string file : {"", ".", "..", ".hid", "../x", "a/b", "/etc/passwd", "a b", "a\\\\b", "\\u0000", "\\u00e4"}) {
    const absl::Status status = ParseManifest(With("run.best.12.3.host-b%3A7000.safetensors", file)).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << file;
    EXPECT_THAT(std::string(status.message()), HasSubstr("/parts/1/file"));
  }
}

TEST(ManifestTest, NamesAreShortAndPlain) {
  for (const std::string name : {"a", "7", "step-100", "run.best_2"}) {
    EXPECT_TRUE(ValidateName(name).ok()) << name;
  }
  for (const std::string name : {"", "../x", "a/b", ".hid", "-x", "_x", "A", "a b", "ä"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ValidateName(name))) << name;
  }
  EXPECT_FALSE(ValidateName(absl::string_view("a\0b", 3)).ok());
  EXPECT_TRUE(ValidateName(std::string(128, 'x')).ok());
  EXPECT_FALSE(ValidateName(std::string(129, 'x')).ok());
}

// What ids allow and file names do not.
TEST(NamesTest, EveryIdHasAFolderAndComesBackFromIt) {
  for (const std::string id : {"demo", "a.b", "..", ".", ".hid", "a/b", "/", "team:run@7", "A_b-c", "100%2F"}) {
    const absl::StatusOr<std::string> folder = FolderOf(id);
    if (id.find('%') != std::string::npos) {
      EXPECT_FALSE(folder.ok());
      continue;
    }
    ASSERT_TRUE(folder.ok()) << folder.status();
    EXPECT_TRUE(IsPlainName(*folder)) << *folder;
    EXPECT_EQ(JobOf(*folder), id);
  }
  EXPECT_EQ(FolderOf("..").value(), "%2E.");
  EXPECT_EQ(FolderOf("a/b").value(), "a%2Fb");
  for (const std::string folder : {"", "%", "%2", "%zz", "a%2f", "a%41", "lost+found", ".."}) {
    EXPECT_EQ(JobOf(folder), std::nullopt) << folder;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(FolderOf(std::string(128, '/')).status()));
}

TEST(NamesTest, APartsNameHasOneMeaning) {
  Manifest manifest = SampleManifest("x", 1);
  for (const std::string name : {"x", "x.7", "x.7.1", "1.2.3.4"}) {
    for (const std::string node : {"a", "2.a", "1.2.3.4:7000", "x%r1", ".."}) {
      manifest.name = name;
      for (const int again : {0, 1, 12}) {
        const std::string file = PartFile(manifest, node, again);
        EXPECT_EQ(OwnerOf(file), (Owner{NodeText(node), name, manifest.step})) << file;
        EXPECT_TRUE(IsPlainName(file)) << file;
      }
    }
  }
  EXPECT_EQ(OwnerOf(DraftFile("1.2.3.4:7000")), (Owner{NodeText("1.2.3.4:7000"), ""}));
  EXPECT_NE(NodeText("a"), NodeText("2.a"));
  for (const std::string file : {"x.json", "a.safetensors", "x.1.2.safetensors", "x.1.b.a.safetensors", ".1.2.a.safetensors",
                                 "a.tmp", "a.1.tmp", "a.1.0123.tmp", "a.x.0123456789abcdef.tmp"}) {
    EXPECT_EQ(OwnerOf(file), std::nullopt) << file;
  }
}

TEST(NamesTest, TheLongestNamesFitAFileSystem) {
  Manifest manifest = SampleManifest(std::string(128, 'n'), std::numeric_limits<uint64_t>::max());
  manifest.generation = std::numeric_limits<uint64_t>::max();
  const std::string node(128, ':');
  EXPECT_LE(PartFile(manifest, node, 99).size(), kMaxFileName);
  EXPECT_LE(DraftFile(node).size(), kMaxFileName);
  EXPECT_EQ(NodeText(node).size(), 64U);
  EXPECT_NE(NodeText(node), NodeText(node.substr(1)));
}

}  // namespace
}  // namespace dmuon::checkpoint
