// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/plan/methods.h"

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

TEST(Methods, OperationsAreThoseOfTheFormulas) {
  // In units of s^3, five iterations at aspect a: 5 (3a + 1); with one restart 6a + 14.
  EXPECT_DOUBLE_EQ(kernels::NewtonSchulzFlops(100, 400, 5), 65e6);
  EXPECT_DOUBLE_EQ(kernels::GramNewtonSchulzFlops(400, 100, 5), 38e6);
  EXPECT_DOUBLE_EQ(kernels::GramNewtonSchulzFlops(100, 100, 2), (3 + 2 + 3) * 1e6);
  // Of the 14, in bf16, 7 are fp32: 2 before the restart, 3 and 2 after it.
  const kernels::Method mixed{kernels::Form::kGram, kernels::Precision::kBFloat16};
  EXPECT_DOUBLE_EQ(kernels::NewtonSchulzWork(mixed, 100, 400, 5), 38e6 + 7e6);
  EXPECT_DOUBLE_EQ(kernels::NewtonSchulzWork(mixed, 100, 400, 1), kernels::GramNewtonSchulzFlops(100, 400, 1));
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
