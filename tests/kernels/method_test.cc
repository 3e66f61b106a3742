// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Each form and precision of Newton-Schulz: close to the polynomials in double, the same bits every time,
// and what happens when a result is beyond reason.
#include <cmath>
#include <iterator>
#include <ostream>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/reference.h"
#include "kernels/cpu/singular_bound.h"
#include "tests/kernels/matrices.h"
#include "tests/kernels/spectra.h"

namespace dmuon::kernels {
namespace {

struct Named {
  const char* name;
  Method method;
  // Relative Frobenius against the polynomials in double, over all spectra and sets below. Measured by
  // tests/bench/ns_error_bench: 2.0e-5, 8.5e-5, 0.081, 0.050; the last
  // one more where few rows are of low rank.
  double bound;
};
constexpr Named kMethods[] = {{"StandardFloat32", {Form::kStandard, Precision::kFloat32}, 4e-5},
                              {"GramFloat32", {Form::kGram, Precision::kFloat32}, 2e-4},
                              {"StandardBFloat16", {Form::kStandard, Precision::kBFloat16}, 0.12},
                              {"GramBFloat16", {Form::kGram, Precision::kBFloat16}, 0.25}};

void PrintTo(const Named& method, std::ostream* out) { *out << method.name; }

class MethodTest : public testing::TestWithParam<std::tuple<const char*, Named>> {
 protected:
  void SetUp() override { backend_ = MakeOrSkip(std::get<0>(GetParam())); }
  [[nodiscard]] Matrix Run(const Matrix& input, const NewtonSchulz& ns = {}) {
    return Orthogonal(*backend_, ns, input, std::get<1>(GetParam()).method);
  }
  static double bound() { return std::get<1>(GetParam()).bound; }
  // Of matrices of this shape, on all spectra and with all sets.
  void ExpectWithinBound(int64_t rows, int64_t cols);
  std::unique_ptr<Backend> backend_;
};

std::string MethodName(const testing::TestParamInfo<MethodTest::ParamType>& info) {
  return std::get<1>(info.param).name;
}
INSTANTIATE_TEST_SUITE_P(All, MethodTest, testing::Combine(testing::Values("cpu"), testing::ValuesIn(kMethods)),
                         MethodName);
INSTANTIATE_TEST_SUITE_P(Gpu, MethodTest, testing::Combine(testing::Values("cuda"), testing::ValuesIn(kMethods)),
                         MethodName);

// A list of one's own; its last polynomial repeats.
constexpr Quintic kOwn[] = {{3.9505, -6.3029, 2.6377}, {3.4445, -4.7750, 2.0315}, {2.0, -1.5, 0.5}};

std::vector<float> InDouble(const NewtonSchulz& ns, const Matrix& input) {
  std::vector<double> judge(input.values.begin(), input.values.end());
  reference::Orthogonalize(ns, input.rows, input.cols, judge);
  return {judge.begin(), judge.end()};
}

void MethodTest::ExpectWithinBound(int64_t rows, int64_t cols) {
  for (const Polynomials& set : {Polynomials(CoefficientSet::kJordan), Polynomials(CoefficientSet::kYou),
                                 Polynomials(CoefficientSet::kPolarExpress), Polynomials(kOwn)}) {
    for (const std::string_view name : kSpectra) {
      const Matrix input{rows, cols, WithSpectrum(rows, cols, Spectrum(name, rows, cols), 5).x};
      const NewtonSchulz ns{.coefficients = set};
      EXPECT_LE(RelativeError(Run(input, ns).values, InDouble(ns, input)), bound())
          << name << " " << rows << " x " << cols << ", set " << set.at(1).a;
    }
  }
}

TEST_P(MethodTest, StaysWithinItsBoundOnEverySpectrum) { ExpectWithinBound(40, 160); }  // cases row 37
TEST_P(MethodTest, StaysWithinItsBoundInEveryShape) {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{40, 40}, {160, 40}, {10, 500}}) ExpectWithinBound(rows, cols);
}

// Beyond 8 iterations even fp32 loses digits on low rank: what rounding adds grows three- to fourfold with each.
TEST_P(MethodTest, WhateverItIsProvenForStaysNearThePolynomialsInDouble) {
  const Method method = std::get<1>(GetParam()).method;
  const double near = method.precision == Precision::kBFloat16 ? 0.12 : 1e-3;
  std::vector<Polynomials> sets(std::begin(kCoefficientSets), std::end(kCoefficientSets));
  sets.emplace_back(kOwn);
  for (const std::string_view name : kSpectra) {
    const Matrix input{40, 160, WithSpectrum(40, 160, Spectrum(name, 40, 160), 5).x};
    for (const Polynomials& set : sets) {
      for (int iterations = 1; iterations <= 8; ++iterations) {
        const NewtonSchulz ns{.coefficients = set, .iterations = iterations};
        if (!IsProven(ns, method)) continue;
        EXPECT_LE(RelativeError(Run(input, ns).values, InDouble(ns, input)), near)
            << name << ", " << iterations << " iterations, set " << set.at(1).a;
      }
    }
  }
}

TEST_P(MethodTest, VectorsAndTinyMatricesAreRight) {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 1}, {1, 300}, {300, 1}, {2, 3}, {3, 2}}) {
    const Matrix input = Gaussian(rows, cols, 9);
    EXPECT_LE(RelativeError(Run(input).values, InDouble({}, input)), bound()) << rows << " x " << cols;
  }
}

TEST_P(MethodTest, AnyNumberOfIterationsEndsInTheCallersBuffer) {
  for (int iterations = 1; iterations <= 9; ++iterations) {
    const NewtonSchulz ns{.iterations = iterations};
    const Matrix input = Gaussian(12, 30, 9);
    EXPECT_LE(RelativeError(Run(input, ns).values, InDouble(ns, input)), bound()) << iterations;
  }
}

TEST_P(MethodTest, ScaleDoesNotMatter) {  // cases row 39
  const Matrix input = Gaussian(24, 60, 4);
  const Matrix expected = Run(input);
  // Powers of two, so that the scaled input is exactly the same direction.
  for (const double factor : {0x1p-100, 0x1p-33, 0x1p-20, 0x1p20, 0x1p100}) {
    EXPECT_LE(RelativeError(Run(Times(factor, input)).values, expected.values), 1e-6) << factor;
  }
}

TEST_P(MethodTest, ZeroStaysZero) {  // cases row 40
  const Matrix zero{64, 32, std::vector<float>(2048)};
  EXPECT_EQ(Run(zero).values, zero.values);
}

TEST_P(MethodTest, RowsAndColumnsOfZerosChangeNothing) {
  const Matrix input = Gaussian(21, 37, 4);
  Matrix padded{24, 48, std::vector<float>(24 * 48)};
  for (int64_t r = 0; r < 21; ++r) {
    for (int64_t c = 0; c < 37; ++c) padded.values[static_cast<size_t>(r * 48 + c)] = input.values[static_cast<size_t>(r * 37 + c)];
  }
  const Matrix expected = Run(input);
  const Matrix got = Run(padded);
  std::vector<float> inner;
  for (int64_t r = 0; r < 24; ++r) {
    for (int64_t c = 0; c < 48; ++c) {
      const float value = got.values[static_cast<size_t>(r * 48 + c)];
      if (r < 21 && c < 37) {
        inner.push_back(value);
      } else {
        ASSERT_EQ(value, 0.0F);
      }
    }
  }
  EXPECT_LE(RelativeError(inner, expected.values), bound());
}

TEST_P(MethodTest, SameInputGivesSameBitsWhateverTheTeam) {  // cases row 35
  const Matrix input = Gaussian(128, 512, 35);
  const Matrix first = Run(input);
  for (int run = 1; run < 200; ++run) {
    if (run % 25 == 0) {
      Matrix in_team;
      std::thread([&] {
        backend_->BindThread(1 + run / 25 % 4);
        in_team = Run(input);
      }).join();
      ASSERT_EQ(in_team.values, first.values) << "run " << run;
    }
    ASSERT_EQ(Run(input).values, first.values) << "run " << run;
  }
}

TEST(SingularBoundTest, KnowsWhatThePolynomialsCanGive) {
  // Jordan's five steps end in [0.68, 1.13] from 1e-2 on and reach 1.20 below.
  EXPECT_NEAR(LargestSingularValue({}), 1.202, 0.002);
  EXPECT_NEAR(LargestSingularValue({.coefficients = CoefficientSet::kYou}), 1.145, 0.01);
  EXPECT_NEAR(LargestSingularValue({.coefficients = CoefficientSet::kPolarExpress}), 1.124, 0.005);
  // 1.5 s - 0.2 s^3 is largest, 1.3, at 1, and goes to 1.5107 from there.
  const Quintic own[] = {{1.5, -0.2, 0.0}};
  EXPECT_NEAR(LargestSingularValue({.coefficients = Polynomials(own), .iterations = 1}), 1.3, 0.005);
  EXPECT_NEAR(LargestSingularValue({.coefficients = Polynomials(own), .iterations = 2}), 1.5106, 0.005);
}

TEST(SingularBoundTest, OneDirectionThatGrewIsFound) {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{30, 90}, {90, 30}, {50, 50}}) {
    std::vector<double> values(static_cast<size_t>(std::min(rows, cols)), 1.1);
    SpectralMatrix sound = WithSpectrum(rows, cols, values, 3);
    EXPECT_TRUE(WithinSingularBound({}, {sound.x.data(), rows, cols}));
    values[7] = 4.0;
    SpectralMatrix grown = WithSpectrum(rows, cols, values, 3);
    EXPECT_FALSE(WithinSingularBound({}, {grown.x.data(), rows, cols}));
    sound.x[5] = NAN;
    EXPECT_FALSE(WithinSingularBound({}, {sound.x.data(), rows, cols}));
  }
}

TEST(SingularBoundTest, ZeroIsWithinAnyBound) {
  std::vector<float> zero(20);
  EXPECT_TRUE(WithinSingularBound({}, {zero.data(), 4, 5}));
}

}  // namespace
}  // namespace dmuon::kernels
