// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/owned_state.h"

#include <memory>
#include <thread>
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
    EXPECT_TRUE(state.Orthogonalize(0, 1, {.lr = 0.1}, 1.0, work).ok());
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
  const absl::Status status = state.Orthogonalize(0, 1, {.lr = 0.1}, 1.0, work);
  EXPECT_EQ(status.message(), "tensor 'w': not finite");
  EXPECT_EQ(work.calls, 1U);
  EXPECT_EQ(state.unit(0).weight, std::vector<float>(24, 0.0F));
  for (const OwnedMatrix& matrix : state.unit(0).matrices) EXPECT_EQ(matrix.state[0], std::vector<float>(12, 0.0F));
  EXPECT_EQ(state.unit(0).updates, 0);
  ASSERT_TRUE(state.Orthogonalize(0, 1, {.lr = 0.1}, 1.0, work).ok());
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
    ASSERT_TRUE(state.Orthogonalize(0, 1, hyper, 1.0, work).ok());
    state.Apply(0, hyper, 1.0);
  }
  for (size_t i = 0; i < 12; ++i) EXPECT_FLOAT_EQ(unit.matrices[1].state[0][i], 0.5F * before[i]);
  EXPECT_NE(unit.matrices[0].state[0], unit.matrices[1].state[0]);
  for (const float value : unit.weight) EXPECT_TRUE(std::isfinite(value));
}

// Two sizes of matrices, the first of them skipped in the middle.
struct Layers {
  Layers() {
    job.add_groups()->mutable_muon()->set_variant(v1::VARIANT_MUON);
    job.mutable_groups(0)->set_name("muon");
    for (const int64_t rows : {4, 4, 4, 4, 6, 4, 4, 4, 4, 4}) {
      v1::Tensor* tensor = job.add_tensors();
      tensor->add_shape(rows);
      tensor->add_shape(12);
      v1::Unit* unit = plan.add_units();
      unit->set_tensor(static_cast<uint32_t>(plan.units_size() - 1));
      *unit->mutable_box() = wire::ToProto(wire::Box{2, {}, {rows, 12}});
      unit->add_owners();
      unit->add_methods()->set_form(v1::FORM_GRAM);
    }
  }
  // All weights after a step, batches as `state` says; `ends` of these.
  std::vector<float> Step(kernels::Backend& backend, NewtonSchulzWork& work, std::vector<size_t>& ends) const {
    OwnedState state(job, plan, 0, 0, &backend);
    const auto skipped = [](const OwnedUnit& unit) { return unit.tensor == 2; };
    std::vector<float> weights;
    for (size_t i = 0; i < state.size(); ++i) {
      std::vector<float>& gradient = state.mutable_unit(i).gradient;
      for (size_t k = 0; k < gradient.size(); ++k) gradient[k] = static_cast<float>((7 * i + k * k) % 11) - 5.0F;
    }
    for (size_t i = 0; i < state.size(); i = ends.back()) {
      ends.push_back(state.BatchEnd(i, skipped));
      if (skipped(state.unit(i))) continue;
      EXPECT_TRUE(state.Orthogonalize(i, ends.back(), {.lr = 0.1}, 1.0, work).ok());
      for (size_t k = i; k < ends.back(); ++k) state.Apply(k, {.lr = 0.1}, 1.0);
    }
    for (size_t i = 0; i < state.size(); ++i) {
      weights.insert(weights.end(), state.unit(i).weight.begin(), state.unit(i).weight.end());
    }
    return weights;
  }

  v1::JobSpec job;
  v1::Plan plan;
};

TEST(OwnedState, MatricesOfOneShapeThatFollowEachOtherAreOneBatchOfTheSameBits) {
  std::thread([] {  // so that no other test inherits the team
    const auto cpu = *kernels::MakeBackend("cpu");
    NewtonSchulzWork alone, together;
    std::vector<size_t> ends_alone, ends_together;
    cpu->BindThread(1);
    const std::vector<float> one_by_one = Layers().Step(*cpu, alone, ends_alone);
    cpu->BindThread(3);
    EXPECT_EQ(Layers().Step(*cpu, together, ends_together), one_by_one);
    EXPECT_EQ(ends_alone, (std::vector<size_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
    EXPECT_EQ(ends_together, (std::vector<size_t>{2, 3, 4, 5, 8, 10})) << "at most three, and the third is skipped";
    EXPECT_EQ(together.calls, alone.calls);
    EXPECT_EQ(together.flops, alone.flops);
    EXPECT_EQ(together.by_method, alone.by_method);
  }).join();
}

}  // namespace
}  // namespace dmuon::node
