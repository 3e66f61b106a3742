// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/owned_state.h"

#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "tests/daemon/node/diverging_backend.h"

namespace dmuon::node {
namespace {

// A job of one 4 x 12 matrix, planned for one slot.
struct OneMatrix {
  explicit OneMatrix(v1::Form form) {
    job.add_groups()->mutable_muon()->set_variant(v1::VARIANT_MUON);
    job.mutable_groups(0)->set_name("muon");
    v1::Tensor* tensor = job.add_tensors();
    tensor->set_name("w");
    tensor->add_shape(4);
    tensor->add_shape(12);
    v1::Unit* unit = plan.add_units();
    *unit->mutable_box() = wire::ToProto(wire::Box{2, {}, {4, 12}});
    unit->add_owners();
    unit->add_methods()->set_form(form);
  }
  std::vector<float> Step(kernels::Backend& backend, NewtonSchulzWork& work) const {
    OwnedState state(job, plan, 0, 0, &backend);
    for (size_t i = 0; i < 48; ++i) state.mutable_unit(0).gradient[i] = static_cast<float>(i % 7) - 3.0F;
    EXPECT_TRUE(state.Orthogonalize(0, {.lr = 0.1}, 1.0, work).ok());
    state.Apply(0, {.lr = 0.1}, 1.0);
    return state.unit(0).weight;
  }

  v1::JobSpec job;
  v1::Plan plan;
};

TEST(OwnedState, AGramFormThatDivergesIsComputedAgainInTheStandardFormAndCounted) {
  DivergingBackend diverging;
  const auto cpu = *kernels::MakeBackend("cpu");
  NewtonSchulzWork work;
  NewtonSchulzWork plain;
  EXPECT_EQ(OneMatrix(v1::FORM_GRAM).Step(diverging, work), OneMatrix(v1::FORM_STANDARD).Step(*cpu, plain));
  EXPECT_EQ(work.calls, 1U);
  EXPECT_EQ(work.recomputed, 1U);
  EXPECT_EQ(work.by_method[kernels::IndexOf({kernels::Form::kGram, kernels::Precision::kFloat32})], 1U);
  EXPECT_EQ(work.by_method[kernels::IndexOf({kernels::Form::kStandard, kernels::Precision::kFloat32})], 1U);
  EXPECT_EQ(plain.recomputed, 0U);
}

TEST(OwnedState, ThePlansMethodIsWhatRuns) {
  const auto cpu = *kernels::MakeBackend("cpu");
  OneMatrix gram(v1::FORM_GRAM);
  gram.plan.mutable_units(0)->mutable_methods(0)->set_precision(v1::PRECISION_BF16);
  NewtonSchulzWork work;
  gram.Step(*cpu, work);
  EXPECT_EQ(work.by_method[kernels::IndexOf({kernels::Form::kGram, kernels::Precision::kBFloat16})], 1U);
  EXPECT_EQ(work.flops, kernels::GramNewtonSchulzFlops(4, 12, 5));
}

// A job of one 6 x 4 tensor whose even rows are one matrix and whose odd rows are another.
OneMatrix Interleaved() {
  OneMatrix fused(v1::FORM_STANDARD);
  v1::Tensor& tensor = *fused.job.mutable_tensors(0);
  tensor.clear_shape();
  for (const int64_t length : {6, 4}) tensor.add_shape(length);
  for (int i = 0; i < 2; ++i) tensor.add_row_blocks(1);
  tensor.set_row_repeats(3);
  v1::Unit& unit = *fused.plan.mutable_units(0);
  *unit.mutable_box() = wire::ToProto(wire::Box{2, {}, {6, 4}});
  unit.add_methods()->set_form(v1::FORM_STANDARD);
  return fused;
}

TEST(OwnedState, AllMatricesOfAUnitAreUpdatedOrNone) {
  const OneMatrix fused = Interleaved();
  DivergingBackend failing(/*runs=*/1);  // the second matrix
  OwnedState state(fused.job, fused.plan, 0, 0, &failing);
  for (size_t i = 0; i < 24; ++i) state.mutable_unit(0).gradient[i] = static_cast<float>(i % 5) - 2.0F;
  NewtonSchulzWork work;
  const absl::Status status = state.Orthogonalize(0, {.lr = 0.1}, 1.0, work);
  EXPECT_EQ(status.message(), "tensor 'w': not finite");
  EXPECT_EQ(work.calls, 1U);
  EXPECT_EQ(state.unit(0).weight, std::vector<float>(24, 0.0F));
  for (const OwnedMatrix& matrix : state.unit(0).matrices) EXPECT_EQ(matrix.state[0], std::vector<float>(12, 0.0F));
  EXPECT_EQ(state.unit(0).updates, 0);
  ASSERT_TRUE(state.Orthogonalize(0, {.lr = 0.1}, 1.0, work).ok());
  state.Apply(0, {.lr = 0.1}, 1.0);
  EXPECT_EQ(work.calls, 3U);
  EXPECT_EQ(state.unit(0).updates, 1);
}

TEST(OwnedState, AMatrixWithoutGradientKeepsADecayingMomentumBesideOthersThatMove) {
  const OneMatrix fused = Interleaved();
  const auto cpu = *kernels::MakeBackend("cpu");
  OwnedState state(fused.job, fused.plan, 0, 0, cpu.get());
  OwnedUnit& unit = state.mutable_unit(0);
  const kernels::Hyper hyper{.lr = 0.1, .momentum = 0.5};
  NewtonSchulzWork work;
  std::vector<float> before;
  for (const float silent : {1.0F, 0.0F}) {
    before = unit.matrices[1].state[0];
    for (size_t i = 0; i < 24; ++i) unit.gradient[i] = (static_cast<float>(i % 5) - 2.0F) * (i < 12 ? 1.0F : silent);
    ASSERT_TRUE(state.Orthogonalize(0, hyper, 1.0, work).ok());
    state.Apply(0, hyper, 1.0);
  }
  for (size_t i = 0; i < 12; ++i) EXPECT_FLOAT_EQ(unit.matrices[1].state[0][i], 0.5F * before[i]);
  EXPECT_NE(unit.matrices[0].state[0], unit.matrices[1].state[0]);
  for (const float value : unit.weight) EXPECT_TRUE(std::isfinite(value));
}

}  // namespace
}  // namespace dmuon::node
