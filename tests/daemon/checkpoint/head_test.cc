// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/checkpoint/head.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/daemon/checkpoint/samples.h"

namespace dmuon::checkpoint {
namespace {

using ::testing::HasSubstr;

Head SampleHead(std::vector<Entry> entries) {
  Head head{kJob, "first", 7, 3, "node-0", "0.1.0", std::move(entries), {}};
  for (size_t i = 0; i < head.entries.size(); ++i) head.sha256.emplace_back(64, static_cast<char>('a' + static_cast<int>(i % 6)));
  return head;
}

// One array of 2 values, so that each text is there once.
Head SmallHead() { return SampleHead({WholeEntry("w", kWeight, {2, 1})}); }

constexpr uint64_t kSmallBytes = 8;

// With the length that it has.
std::string Framed(std::string json) {
  const uint64_t length = json.size();
  std::string bytes(kLengthBytes, '\0');
  std::memcpy(bytes.data(), &length, kLengthBytes);
  return bytes + json;
}

std::string With(const std::string& from, const std::string& to) {
  const std::string json = MakeHead(SmallHead()).value().substr(kLengthBytes);
  EXPECT_THAT(json, HasSubstr(from));
  return Framed(absl::StrReplaceAll(json, {{from, to}}));
}

absl::Status Parse(const std::string& head, uint64_t data_bytes = kSmallBytes) {
  return ParseHead(head, head.size() + data_bytes).status();
}

TEST(HeadTest, IsWhatSafetensorsAsksFor) {
  const std::string head = MakeHead(SmallHead()).value();
  uint64_t length = 0;
  std::memcpy(&length, head.data(), kLengthBytes);
  EXPECT_EQ(length + kLengthBytes, head.size());
  EXPECT_EQ(head.size() % kHeadAlignment, 0U);
  EXPECT_EQ(head.substr(kLengthBytes, head.find_last_not_of(' ') + 1 - kLengthBytes),
            R"({"__metadata__":{"format":"dmuon-1","job":"demo","name":"first","step":"7","generation":"3",)"
            R"("node":"node-0","dmuon_version":"0.1.0","entries":"{\"w/weight\":{\"tensor\":\"w\",)"
            R"(\"tensor_shape\":[2,1],\"optimizer\":\"muon\",\"updates\":7,\"quantity\":\"weight\",)"
            R"(\"offset\":[0,0],\"length\":[2,1],\"matrix\":-1,\"sha256\":\")" +
                std::string(64, 'a') + R"(\"}}"},"w/weight":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}})");
}

TEST(HeadTest, ComesBackAsItWas) {
  const Head head = SampleHead(SampleEntries());
  const std::string made = MakeHead(head).value();
  EXPECT_EQ(ParseHead(made, made.size() + Image::BytesFor(head.entries)).value(), head);
  const Head none = SampleHead({});
  EXPECT_EQ(ParseHead(MakeHead(none).value(), MakeHead(none).value().size()).value(), none);
}

TEST(HeadTest, NamesWithQuotesComeBack) {
  const Head head = SampleHead({WholeEntry("a\"b\\c~/d", "q", {1})});
  EXPECT_EQ(ParseHead(MakeHead(head).value(), MakeHead(head).value().size() + 4).value(), head);
}

TEST(HeadTest, KeysTellBoxAndMatrix) {
  const std::vector<Entry> entries = SampleEntries();
  EXPECT_EQ(entries[1].Key(), "layers.0.wq/momentum");
  EXPECT_EQ(entries[2].Key(), "scale/weight");
  EXPECT_EQ(entries[4].Key(), "experts/momentum[1:3, 0:2, 0:3]");
  EXPECT_EQ(entries[5].Key(), "experts/row_norms[1:3, 0:2, 0:3]#2");
}

TEST(HeadTest, MoreArraysThanTheSafetensorsPackageReadsAreRefused) {
  std::vector<Entry> entries(100'000, WholeEntry(std::string(256, 'w'), kWeight, {2, 1}));
  const absl::Status status = MakeHead(SampleHead(std::move(entries))).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
}

TEST(HeadTest, ItsLengthIsHeldAgainstTheFile) {
  const auto bytes_of = [](uint64_t length, uint64_t file_bytes) {
    std::array<std::byte, kLengthBytes> bytes{};
    std::memcpy(bytes.data(), &length, kLengthBytes);
    return HeadBytes(bytes, file_bytes);
  };
  EXPECT_EQ(bytes_of(100, 108).value(), 108U);
  EXPECT_TRUE(absl::IsDataLoss(bytes_of(101, 108).status()));
  EXPECT_TRUE(absl::IsDataLoss(bytes_of(0, 7).status()));
  EXPECT_TRUE(absl::IsDataLoss(bytes_of(~uint64_t{0}, 108).status()));
  EXPECT_TRUE(absl::IsDataLoss(bytes_of(kMaxHeadBytes + 1, uint64_t{1} << 40).status()));
}

struct Wrong {
  std::string head;
  std::string says;
};

void ExpectDamage(const std::vector<Wrong>& cases) {
  for (const Wrong& wrong : cases) {
    const absl::Status status = Parse(wrong.head);
    EXPECT_TRUE(absl::IsDataLoss(status)) << wrong.says << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(wrong.says));
  }
}

TEST(HeadTest, WhatIsWrongIsDamageThatPointsToTheField) {
  EXPECT_TRUE(Parse(With(" ", " ")).ok());
  ExpectDamage({
      {"", "shorter than its head"},
      {Framed(""), "no JSON at byte"},
      {Framed("{}"), "/__metadata__: is missing"},
      {Framed(R"({"__metadata__":[]})"), "/__metadata__: is array"},
      {Framed(std::string(1'000'000, '[')), "more than 8 levels"},
      {With("dmuon-1", "pt"), "/__metadata__/format"},
      {With("dmuon-1", "dmuon-0"), "/__metadata__/format"},
      {With("dmuon-1", "dmuon-01"), "/__metadata__/format"},
      {With("\"demo\"", "\"de mo\""), "/__metadata__/job"},
      {With("\"first\"", "\"../first\""), "/__metadata__/name"},
      {With("\"node-0\"", "\"\""), "/__metadata__/node"},
      {With("\"0.1.0\"", "\"\""), "/__metadata__/dmuon_version"},
      {With("\"step\":\"7\"", "\"step\":7"), "/__metadata__/step: is number"},
      {With("\"step\":\"7\"", "\"step\":\" 7\""), "/__metadata__/step"},
      {With("\"step\":\"7\"", "\"step\":\"18446744073709551616\""), "/__metadata__/step"},
      {With("F32", "BF16"), "/w~1weight/dtype"},
      {With("\"shape\":[2,1]", "\"shape\":[2,-1]"), "/w~1weight/shape/1"},
      {With("\"shape\":[2,1]", "\"shape\":[2,9223372036854775808]"), "/w~1weight/shape/1"},
      {With("\"shape\":[2,1]", "\"shape\":[1,2]"), "not that of their box"},
      {With("\"shape\":[2,1]", "\"shape\":[1,1,1,1,1,1,1,1,2]"), "9 numbers, allowed are 8"},
      {With("[0,8]", "[0,8,8]"), "data_offsets"},
      {With("[0,8]", "[8,0]"), "data_offsets"},
      {With("[0,8]", "[4,8]"), "begin at 4"},
      {With("[0,8]", "[0,4]"), "are 4 bytes, the file has 8"},
      {With("[0,8]", "[0,9223372036854775807]"), "the file has 8"},
  });
}

TEST(HeadTest, WhatIsWrongAboutAnArrayIsDamageThatPointsToTheField) {
  ExpectDamage({
      {With("}}\"},\"w/weight\":", "}}\"},\"w/other\":"), "w~1other: is missing"},
      {With("\"w/weight\":{\"dtype\"", "\"x\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},\"w/weight\":{\"dtype\""),
       "tells of 1 arrays, the file has 2"},
      {With("\"w/weight\":{\"dtype\"", "\"w/weight\":{},\"w/weight\":{\"dtype\""), "two fields are called"},
      {With("\\\"tensor\\\":\\\"w\\\"", "\\\"tensor\\\":\\\"v\\\""), "is what is called v/weight"},
      {With("\\\"tensor\\\":\\\"w\\\"", "\\\"tensor\\\":\\\"\\\""), "the name of a tensor"},
      {With("\\\"tensor_shape\\\":[2,1]", "\\\"tensor_shape\\\":[1,1]"), "reach outside"},
      {With("\\\"tensor_shape\\\":[2,1]", "\\\"tensor_shape\\\":[9999999999,1]"), "length 9999999999"},
      {With("\\\"offset\\\":[0,0]", "\\\"offset\\\":[0]"), "has not as many numbers"},
      {With("\\\"offset\\\":[0,0]", "\\\"offset\\\":[9223372036854775807,0]"), "reach outside"},
      {With("\\\"matrix\\\":-1", "\\\"matrix\\\":-2"), "matrix: is number"},
      {With("\\\"matrix\\\":-1", "\\\"matrix\\\":4294967295"), "matrix 2147483647"},
      {With("\\\"updates\\\":7", "\\\"updates\\\":7.5"), "updates: is number"},
      {With("aaaa", "AAAA"), "sha256: is no SHA-256"},
      {With("\\\"sha256\\\"", "\\\"sha512\\\""), "sha256: is missing"},
  });
}

TEST(HeadTest, ArraysMayNeitherOverlapNorLeaveAGap) {
  const std::string made = MakeHead(SampleHead(SampleEntries())).value();
  const uint64_t data_bytes = Image::BytesFor(SampleEntries());
  const auto moved = [&](const std::string& from, const std::string& to) {
    EXPECT_THAT(made, HasSubstr(from));
    return Parse(Framed(absl::StrReplaceAll(made.substr(kLengthBytes), {{from, to}})), data_bytes);
  };
  EXPECT_TRUE(moved("[48,96]", "[48,96]").ok());
  EXPECT_TRUE(absl::IsDataLoss(moved("[48,96]", "[44,92]")));
  EXPECT_TRUE(absl::IsDataLoss(moved("[48,96]", "[0,48]")));
  EXPECT_TRUE(absl::IsDataLoss(moved("[48,96]", "[52,100]")));
  EXPECT_TRUE(absl::IsDataLoss(Parse(made, data_bytes + 4)));
  EXPECT_TRUE(absl::IsDataLoss(Parse(made, data_bytes - 4)));
}

TEST(HeadTest, ANewerFormatIsRefusedWithBothVersions) {
  const absl::Status status = Parse(With("dmuon-1", "dmuon-2"));
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("format 2 by dmuon 0.1.0"));
}

TEST(ImageTest, RefusesWhatItCouldNotWrite) {
  EXPECT_TRUE(absl::IsInvalidArgument(Image::Create({WholeEntry("w", "q", {2}), WholeEntry("w", "q", {3})}).status()));
  Entry entry = WholeEntry("w", "q", {4});
  entry.shape = {5};
  EXPECT_TRUE(absl::IsInvalidArgument(Image::Create({entry}).status()));
  entry = WholeEntry("w", "q", {4});
  entry.box.offset[0] = 1;
  EXPECT_TRUE(absl::IsInvalidArgument(Image::Create({entry}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Image::Create({WholeEntry("w\n", "q", {4})}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Image::Create({WholeEntry("w", "q", std::vector<int64_t>(8, 1 << 30))}).status()));
  entry.box = wire::WholeBox(std::vector<int64_t>{4});
  entry.box.ndim = 9;
  EXPECT_TRUE(absl::IsInvalidArgument(Image::Create({entry}).status()));
}

TEST(ImageTest, ValuesLieInOrderWithoutAGapAndBeginAsZero) {
  absl::StatusOr<Image> image = Image::Create(SampleEntries());
  ASSERT_TRUE(image.ok());
  EXPECT_EQ(image->data().size(), Image::BytesFor(SampleEntries()));
  const float* next = reinterpret_cast<const float*>(image->data().data());
  for (size_t i = 0; i < image->entries().size(); ++i) {
    EXPECT_EQ(image->values(i).data(), next);
    for (const float value : image->values(i)) EXPECT_EQ(value, 0.0F);
    next += image->entries()[i].elements();
  }
  EXPECT_TRUE(Image::Create({}).value().data().empty());
}

TEST(ImageTest, MoreMemoryThanThereIsIsAnError) {
  std::vector<Entry> entries;
  for (int i = 0; i < 64; ++i) entries.push_back(WholeEntry(absl::StrCat("w", i), "q", {1 << 30, 1 << 16}));
  const absl::Status status = Image::Create(std::move(entries)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
}

}  // namespace
}  // namespace dmuon::checkpoint
