// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// fp32 <-> bf16 over every backend.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/matrices.h"

namespace dmuon::kernels {
namespace {

constexpr uint32_t kBf16Patterns = 0x10000;

float FromBits(uint32_t bits) { return std::bit_cast<float>(bits); }
float FromUpper(uint32_t upper) { return FromBits(upper << 16); }

class CastTest : public BackendTest {
 protected:
  std::vector<uint16_t> Halves(const std::vector<float>& values) {
    std::vector<uint16_t> out(values.size());
    backend().CastFromFloat(values, DType::kBFloat16, out.data());
    return out;
  }
  uint16_t Half(float value) { return Halves({value})[0]; }
};

DMUON_INSTANTIATE_BACKENDS(CastTest);

TEST_P(CastTest, EveryBf16ComesBackUnchanged) {
  std::vector<uint16_t> all(kBf16Patterns);
  for (uint32_t i = 0; i < kBf16Patterns; ++i) all[i] = static_cast<uint16_t>(i);
  std::vector<float> wide(kBf16Patterns);
  backend().CastToFloat(DType::kBFloat16, all.data(), wide);
  const std::vector<uint16_t> back = Halves(wide);
  for (uint32_t i = 0; i < kBf16Patterns; ++i) {
    if (std::isnan(FromUpper(i))) {
      ASSERT_TRUE(std::isnan(wide[i]) && std::isnan(FromUpper(back[i]))) << i;
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(wide[i]), i << 16);
      ASSERT_EQ(back[i], i);
    }
  }
}

TEST_P(CastTest, NaNStaysNaN) {
  // Payloads in the lost bits only, and one that a plain round would carry into the sign.
  for (const uint32_t bits : {0x7f800001U, 0xff800001U, 0x7fffffffU, 0xffffffffU, 0x7fc00000U}) {
    EXPECT_TRUE(std::isnan(FromUpper(Half(FromBits(bits))))) << bits;
    EXPECT_EQ(Half(FromBits(bits)) >> 15, bits >> 31) << bits;
  }
}

TEST_P(CastTest, TiesGoToEven) {
  EXPECT_EQ(Half(FromBits(0x3f808000)), 0x3f80);  // down to even
  EXPECT_EQ(Half(FromBits(0x3f818000)), 0x3f82);  // up to even
  EXPECT_EQ(Half(FromBits(0x3f808001)), 0x3f81);  // just above a tie
  EXPECT_EQ(Half(FromBits(0x3f817fff)), 0x3f81);  // just below one
  EXPECT_EQ(Half(FromBits(0xbf818000)), 0xbf82);  // by magnitude
}

TEST_P(CastTest, EndsOfTheRange) {
  EXPECT_EQ(Half(0.0F), 0);
  EXPECT_EQ(Half(-0.0F), 0x8000);
  EXPECT_EQ(Half(std::numeric_limits<float>::max()), 0x7f80);  // nearer to infinity than to any
  EXPECT_EQ(Half(FromBits(0x7f7f7fff)), 0x7f7f);
  EXPECT_EQ(Half(-std::numeric_limits<float>::infinity()), 0xff80);
  EXPECT_EQ(Half(FromBits(0x00000001)), 0);       // smallest subnormal
  EXPECT_EQ(Half(FromBits(0x00008000)), 0);       // tie below the smallest bf16 subnormal
  EXPECT_EQ(Half(FromBits(0x00008001)), 1);
  EXPECT_EQ(Half(FromBits(0x007fffff)), 0x0080);  // subnormal rounds up to the smallest normal
}

TEST_P(CastTest, RandomNumbersGoToTheNearestNeighbour) {
  constexpr uint32_t kSeed = 16;
  RecordProperty("seed", static_cast<int>(kSeed));
  std::mt19937 random(kSeed);
  std::vector<float> values;
  while (values.size() < 100000) {
    const float value = FromBits(static_cast<uint32_t>(random()));
    if (std::abs(value) < FromUpper(0x7f7f)) values.push_back(value);  // false for NaN
  }
  const std::vector<uint16_t> halves = Halves(values);
  for (size_t i = 0; i < values.size(); ++i) {
    const double value = values[i];
    const double got = FromUpper(halves[i]);
    const double below = FromUpper(std::bit_cast<uint32_t>(values[i]) >> 16);
    const double above = FromUpper((std::bit_cast<uint32_t>(values[i]) >> 16) + 1);
    ASSERT_LE(std::abs(got - value), std::min(std::abs(below - value), std::abs(above - value)));
  }
}

TEST_P(CastTest, FloatsPassThroughBitForBit) {
  const std::vector<float> in = {1.5F, -0.0F, FromBits(1), FromBits(0x7f800000), -3e38F};
  std::vector<float> out(in.size());
  backend().CastToFloat(DType::kFloat32, in.data(), out);
  std::vector<float> again(in.size());
  backend().CastFromFloat(out, DType::kFloat32, again.data());
  for (size_t i = 0; i < in.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(again[i]), std::bit_cast<uint32_t>(in[i]));
  }
}

TEST_P(CastTest, AddRoundsEachSumOnce) {
  std::vector<float> sum = {1.0F, -2.0F, 16777216.0F};
  const std::vector<float> floats = {0.5F, 2.0F, 1.0F};
  backend().AddToFloat(DType::kFloat32, floats.data(), sum);
  EXPECT_EQ(sum, (std::vector<float>{1.5F, 0.0F, 16777216.0F}));
  const std::vector<uint16_t> halves = Halves({0.25F, -1.0F, 2.0F});
  backend().AddToFloat(DType::kBFloat16, halves.data(), sum);
  EXPECT_EQ(sum, (std::vector<float>{1.75F, -1.0F, 16777218.0F}));
}

TEST_P(CastTest, EmptyBoxesNeedNoAddress) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    backend().CastToFloat(dtype, nullptr, {});
    backend().AddToFloat(dtype, nullptr, {});
    backend().CastFromFloat({}, dtype, nullptr);
  }
  EXPECT_TRUE(backend().Measure({}).finite);
}

}  // namespace
}  // namespace dmuon::kernels
