// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The loops of every kind of CPU that this machine can run, bit by bit.
#include "kernels/cpu/loops.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/matrices.h"

namespace dmuon::kernels {
namespace {

// Around the widths of vectors and of sums, and a whole block.
constexpr size_t kCounts[] = {0, 1, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 65, 100, 1001, kBlock - 1, kBlock};
constexpr size_t kOffsets[] = {0, 1, 2, 3, 5};  // from an aligned address, in elements
constexpr size_t kRoom = kBlock + 8;

// What loops may write to. `u`, `w`, `g` have both signs, zeros and numbers from subnormal to huge.
struct Buffers {
  Buffers() {
    const auto fill = [](std::vector<float>& values, uint32_t seed) {
      values = Gaussian(1, kRoom, seed).values;
      for (size_t i = 0; i < kRoom; i += 11) values[i] = 0.0F;
      for (size_t i = 5; i < kRoom; i += 13) values[i] *= 1e-41F;
      for (size_t i = 7; i < kRoom; i += 17) values[i] *= 1e15F;
    };
    fill(u, 1);
    fill(w, 2);
    fill(g, 3);
    fill(m, 4);
    fill(v, 5);
    for (float& value : v) value = std::abs(value);
    for (size_t i = 0; i < kRoom; ++i) {
      columns.push_back(std::abs(static_cast<double>(m[i])));
      halves.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(w[i]) >> 16));
    }
  }

  [[nodiscard]] std::vector<uint64_t> Bits() const {
    std::vector<uint64_t> bits;
    for (const std::vector<float>* buffer : {&u, &w, &g, &m, &v}) {
      for (const float value : *buffer) bits.push_back(std::bit_cast<uint32_t>(value));
    }
    for (const double value : columns) bits.push_back(std::bit_cast<uint64_t>(value));
    bits.insert(bits.end(), halves.begin(), halves.end());
    bits.push_back(std::bit_cast<uint64_t>(sum));
    return bits;
  }

  std::vector<float> u, w, g, m, v;
  std::vector<double> columns;
  std::vector<uint16_t> halves;
  double sum = 0.0;  // what a loop returned
};

// One loop on `n` elements from element `at` on.
struct Case {
  const char* name;
  std::function<void(const CpuLoops&, Buffers&, size_t n, size_t at)> run;
  bool one_by_one = true;  // not a sum: the same when it is called for each element
};

const AdamStep kAdam = {.clip = 0.7, .beta1 = 0.9, .beta2 = 0.99, .inverse_root = 1.3, .eps = 1e-8, .decay = 0.999,
                        .rate = 1e-3, .cautious = false};

const Case kStageCases[] = {
    {"combine", [](auto& l, auto& b, size_t n, size_t at) {
       l.stages.combine(n, 0.3, &b.g[at], 0.7, &b.m[at], &b.u[at]);
     }},
    {"combine in place", [](auto& l, auto& b, size_t n, size_t at) {
       l.stages.combine(n, 0.3, &b.u[at], -0.7, &b.m[at], &b.u[at]);
     }},
    {"combine_over_moment", [](auto& l, auto& b, size_t n, size_t at) {
       l.stages.combine_over_moment(n, 0.3, &b.u[at], 0.7, &b.m[at], {0.95, 0.5, 1e-8, &b.g[at], &b.v[at]}, &b.u[at]);
     }},
    {"combine_over_factors", [](auto& l, auto& b, size_t n, size_t at) {
       l.stages.combine_over_factors(n, 0.3, &b.g[at], 0.7, &b.m[at], {0.4, &b.columns[at], 1e-8}, &b.u[at]);
     }},
    {"multiply", [](auto& l, auto& b, size_t n, size_t at) { l.stages.multiply(n, 1.0 / 3.0, &b.u[at]); }},
    {"move_cautiously", [](auto& l, auto& b, size_t n, size_t at) {
       l.stages.move_cautiously(n, 0.99, 0.01, &b.u[at], &b.w[at]);
     }},
    {"sign", [](auto& l, auto& b, size_t n, size_t at) { l.stages.sign(n, &b.u[at]); }},
    {"commit_moment", [](auto& l, auto& b, size_t n, size_t at) {
       l.stages.commit_moment(n, 0.95, 0.5, &b.g[at], &b.v[at]);
     }},
    {"normalize", [](auto& l, auto& b, size_t n, size_t at) { l.stages.normalize(n, 0.95, 1e-8, &b.v[at], &b.u[at]); }},
    {"divide", [](auto& l, auto& b, size_t n, size_t at) { l.stages.divide(n, 3.0, &b.u[at]); }},
    {"adam", [](auto& l, auto& b, size_t n, size_t at) {
       l.stages.adam(n, kAdam, &b.g[at], &b.m[at], &b.v[at], &b.w[at]);
     }},
    {"adam, cautious", [](auto& l, auto& b, size_t n, size_t at) {
       AdamStep step = kAdam;
       step.cautious = true;
       l.stages.adam(n, step, &b.g[at], &b.m[at], &b.v[at], &b.w[at]);
     }},
    {"sum_squares", [](auto& l, auto& b, size_t n, size_t at) { b.sum = l.stages.sum_squares(n, &b.u[at]); }, false},
    {"add_squares", [](auto& l, auto& b, size_t n, size_t at) {
       b.sum = l.stages.add_squares(n, &b.u[at], &b.columns[at]);
     }, false},
    {"add_magnitudes", [](auto& l, auto& b, size_t n, size_t at) {
       b.sum = l.stages.add_magnitudes(n, &b.m[at], 0.5, &b.g[at], &b.columns[at]);
     }, false},
    {"add_magnitudes to none", [](auto& l, auto& b, size_t n, size_t at) {
       b.sum = l.stages.add_magnitudes(n, &b.m[at], 0.5, &b.g[at], nullptr);
     }, false},
};

const Case kCastCases[] = {
    {"widen", [](auto& l, auto& b, size_t n, size_t at) { l.casts.widen(n, &b.halves[at], &b.u[at]); }},
    {"add_widened", [](auto& l, auto& b, size_t n, size_t at) { l.casts.add_widened(n, &b.halves[at], &b.u[at]); }},
    {"add", [](auto& l, auto& b, size_t n, size_t at) { l.casts.add(n, &b.g[at], &b.u[at]); }},
    {"round", [](auto& l, auto& b, size_t n, size_t at) { l.casts.round(n, &b.u[at], &b.halves[at]); }},
    {"multiply", [](auto& l, auto& b, size_t n, size_t at) { l.casts.multiply(n, 0.1, &b.g[at], &b.u[at]); }},
    {"largest", [](auto& l, auto& b, size_t n, size_t at) { b.sum = l.casts.largest(n, &b.u[at]); }, false},
};

// On every kind of CPU, at every offset: as the loops for any CPU, one element at a time where they are not sums.
void ExpectSameBits(const Case& c) {
  static const Buffers kStart;
  const CpuLoops& plain = *AllLoops().back();
  for (const size_t n : kCounts) {
    for (const size_t at : kOffsets) {
      Buffers expected = kStart;
      if (c.one_by_one) {
        for (size_t i = 0; i < n; ++i) c.run(plain, expected, 1, at + i);
      } else {
        c.run(plain, expected, n, at);
      }
      for (const CpuLoops* loops : AllLoops()) {
        Buffers got = kStart;
        c.run(*loops, got, n, at);
        ASSERT_EQ(got.Bits(), expected.Bits()) 
            << c.name << " for " << loops->stages.name << ", " << n << " from " << at;
      }
    }
  }
}

TEST(LoopsTest, AnElementHasTheSameBitsOnEveryCpuAndWhereverItLies) {
  for (const Case& c : kStageCases) ExpectSameBits(c);
  for (const Case& c : kCastCases) ExpectSameBits(c);
}

TEST(LoopsTest, SumsAreTakenInTheOrderThatTheHeaderSays) {
  const Buffers b;
  for (const CpuLoops* loops : AllLoops()) {
    for (const size_t n : kCounts) {
      std::vector<double> lanes(kSumLanes);
      for (size_t i = 0; i < n; ++i) lanes[i % kSumLanes] += static_cast<double>(b.g[i]) * static_cast<double>(b.g[i]);
      for (size_t half = kSumLanes / 2; half > 0; half /= 2) {
        for (size_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
      }
      EXPECT_EQ(loops->stages.sum_squares(n, b.g.data()), lanes[0]) << loops->stages.name << " " << n;
    }
  }
}

TEST(LoopsTest, InfinityAndNaNAreLargestAndStayWhatTheyAre) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const CpuLoops* loops : AllLoops()) {
    for (const float bad : {infinity, -infinity, std::nanf("1"), -std::nanf("1")}) {
      for (size_t at = 0; at < 70; ++at) {
        std::vector<float> values(70, -1e30F);
        values[at] = bad;
        EXPECT_GE(loops->casts.largest(70, values.data()), 0x7f800000) << loops->stages.name << " " << at;
        std::vector<uint16_t> halves(70);
        loops->casts.round(70, values.data(), halves.data());
        loops->casts.widen(70, halves.data(), values.data());
        EXPECT_EQ(std::isnan(values[at]), std::isnan(bad));
        EXPECT_EQ(std::isinf(values[at]), std::isinf(bad));
        EXPECT_EQ(std::signbit(values[at]), std::signbit(bad));
      }
    }
  }
}

TEST(LoopsTest, ThePlainLoopsAreThereOnEveryCpu) { EXPECT_EQ(AllLoops().back()->stages.name, "plain"); }

}  // namespace
}  // namespace dmuon::kernels
