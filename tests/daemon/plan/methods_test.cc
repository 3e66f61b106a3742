// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/plan/methods.h"

#include <algorithm>
#include <vector>

#include "daemon/plan/optimizers.h"
#include "gtest/gtest.h"

namespace dmuon::plan {
namespace {

v1::Group GroupOf(v1::Variant variant, v1::Precision precision = v1::PRECISION_UNSPECIFIED) {
  v1::Group group;
  group.mutable_muon()->set_variant(variant);
  group.mutable_muon()->set_precision(precision);
  return group;
}

kernels::Form FormOf(int64_t rows, int64_t cols, v1::Variant variant = v1::VARIANT_MUON,
                     v1::Precision precision = v1::PRECISION_UNSPECIFIED) {
  return ChooseMethod(GroupOf(variant, precision), {rows, cols}).form;
}

TEST(Methods, GramIsChosenWhereItSavesWorkAndOnlyThere) {
  EXPECT_EQ(FormOf(512, 512), kernels::Form::kStandard);
  EXPECT_EQ(FormOf(512, 530), kernels::Form::kStandard);
  EXPECT_EQ(FormOf(512, 1024), kernels::Form::kGram);
  EXPECT_EQ(FormOf(1024, 512), kernels::Form::kGram);
  EXPECT_EQ(FormOf(1, 300), kernels::Form::kGram);
  // Of a square Dion2 orthogonalises a quarter.
  EXPECT_EQ(FormOf(512, 512, v1::VARIANT_DION2), kernels::Form::kGram);
}

TEST(Methods, InBf16GramMustAlsoMakeUpForItsFp32Products) {
  EXPECT_EQ(FormOf(512, 768), kernels::Form::kGram);
  EXPECT_EQ(FormOf(512, 768, v1::VARIANT_MUON, v1::PRECISION_BF16), kernels::Form::kStandard);
  EXPECT_EQ(FormOf(512, 1536, v1::VARIANT_MUON, v1::PRECISION_BF16), kernels::Form::kGram);
}

constexpr kernels::Method kMixed{kernels::Form::kGram, kernels::Precision::kBFloat16};
constexpr kernels::Method kStandard{kernels::Form::kStandard, kernels::Precision::kBFloat16};

// With eight iterations of Polar Express it errs by 0.6 on a matrix of low rank (kernels/README.md).
TEST(Methods, Bf16GramIsNeitherChosenNorAllowedBeyondWhatItIsProvenFor) {
  const auto allowed = [](const v1::Group& group) {
    const std::vector<kernels::Method> methods = AllowedMethods(group);
    return std::count(methods.begin(), methods.end(), kMixed) == 1;
  };
  for (const v1::Precision precision : {v1::PRECISION_BF16, v1::PRECISION_AUTO}) {
    v1::Group group = GroupOf(v1::VARIANT_MUON, precision);
    v1::MuonOptions& muon = *group.mutable_muon();
    muon.set_coefficients(v1::COEFFICIENT_SET_POLAR_EXPRESS);
    EXPECT_TRUE(allowed(group));
    muon.set_iterations(6);
    EXPECT_FALSE(allowed(group));
    EXPECT_EQ(AllowedMethods(group).size(), precision == v1::PRECISION_BF16 ? 1U : 3U);
    muon.set_iterations(5);
    EXPECT_TRUE(allowed(group));
    v1::Quintic& own = *muon.add_polynomials();
    own.set_a(1.5);
    own.set_b(-0.5);
    EXPECT_FALSE(allowed(group));
  }
  v1::Group group = GroupOf(v1::VARIANT_MUON, v1::PRECISION_BF16);
  EXPECT_EQ(ChooseMethod(group, {512, 1536}), kMixed);
  group.mutable_muon()->set_iterations(8);
  EXPECT_EQ(ChooseMethod(group, {512, 1536}), kStandard);
  group.mutable_muon()->set_precision(v1::PRECISION_FP32);
  EXPECT_EQ(ChooseMethod(group, {512, 1536}).form, kernels::Form::kGram) << "in fp32 it is for any number";
}

TEST(Methods, OperationsAreThoseOfTheFormulas) {
  // In units of s^3, five iterations at aspect a: 5 (3a + 1); with one restart 6a + 14.
  EXPECT_DOUBLE_EQ(kernels::NewtonSchulzFlops(100, 400, 5), 65e6);
  EXPECT_DOUBLE_EQ(kernels::GramNewtonSchulzFlops(400, 100, 5), 38e6);
  EXPECT_DOUBLE_EQ(kernels::GramNewtonSchulzFlops(100, 100, 2), (3 + 2 + 3) * 1e6);
  // Of the 14, in bf16, 7 are fp32: 2 before the restart, 3 and 2 after it.
  EXPECT_DOUBLE_EQ(kernels::NewtonSchulzWork(kMixed, 100, 400, 5), 38e6 + 7e6);
  EXPECT_DOUBLE_EQ(kernels::NewtonSchulzWork(kMixed, 100, 400, 1), kernels::GramNewtonSchulzFlops(100, 400, 1));
  EXPECT_DOUBLE_EQ(kernels::NewtonSchulzWork({kernels::Form::kGram, kernels::Precision::kFloat32}, 100, 400, 5), 38e6);
}

TEST(Methods, PrecisionIsTheGroups) {
  const kernels::MatrixShape matrix{8, 8};
  EXPECT_EQ(ChooseMethod(GroupOf(v1::VARIANT_MUON), matrix).precision, kernels::Precision::kFloat32);
  EXPECT_EQ(ChooseMethod(GroupOf(v1::VARIANT_MUON, v1::PRECISION_BF16), matrix).precision, kernels::Precision::kBFloat16);
}

TEST(Methods, TheWireKeepsEveryMethod) {
  for (int i = 0; i < kernels::kMethods; ++i) {
    EXPECT_EQ(kernels::IndexOf(FromProto(ToProto(kernels::MethodAt(i)))), i);
  }
}

}  // namespace
}  // namespace dmuon::plan
