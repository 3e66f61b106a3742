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
    unit->mutable_method()->set_form(form);
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
  gram.plan.mutable_units(0)->mutable_method()->set_precision(v1::PRECISION_BF16);
  NewtonSchulzWork work;
  gram.Step(*cpu, work);
  EXPECT_EQ(work.by_method[kernels::IndexOf({kernels::Form::kGram, kernels::Precision::kBFloat16})], 1U);
  EXPECT_EQ(work.flops, kernels::GramNewtonSchulzFlops(4, 12, 5));
}

}  // namespace
}  // namespace dmuon::node
