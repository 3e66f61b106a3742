// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/owned_state.h"

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/backend.h"

namespace dmuon::node {
namespace {

// The cpu backend, whose Gram form diverges, as no input that is known makes the real one do.
class DivergingBackend final : public kernels::Backend {
 public:
  [[nodiscard]] std::string_view name() const override { return cpu_->name(); }
  void BindThread(int threads) override { cpu_->BindThread(threads); }
  void CastToFloat(kernels::DType dtype, const void* from, std::span<float> to) override {
    cpu_->CastToFloat(dtype, from, to);
  }
  void AddToFloat(kernels::DType dtype, const void* from, std::span<float> to) override {
    cpu_->AddToFloat(dtype, from, to);
  }
  void CastFromFloat(std::span<const float> from, kernels::DType dtype, void* to) override {
    cpu_->CastFromFloat(from, dtype, to);
  }
  void Multiply(double factor, std::span<float> values) override { cpu_->Multiply(factor, values); }
  kernels::GradientStats Measure(std::span<const float> gradient) override { return cpu_->Measure(gradient); }
  kernels::MatrixView Direction(const kernels::Optimizer& optimizer, const kernels::Hyper& hyper, double clip,
                                std::span<const float> gradient, const kernels::UnitState& state,
                                std::span<float> update) override {
    return cpu_->Direction(optimizer, hyper, clip, gradient, state, update);
  }
  absl::Status Orthogonalize(const kernels::NewtonSchulz& newton_schulz, const kernels::Method& method,
                             kernels::MatrixView x, kernels::Scratch& scratch) override {
    if (method.form == kernels::Form::kGram) {
      x.data[0] = NAN;
      return absl::AbortedError("diverged");
    }
    return cpu_->Orthogonalize(newton_schulz, method, x, scratch);
  }
  absl::Status OrthogonalizeTopK(const kernels::TopK& top_k, int64_t step, kernels::MatrixView x,
                                 kernels::MatrixView basis, kernels::Scratch& scratch) override {
    return cpu_->OrthogonalizeTopK(top_k, step, x, basis, scratch);
  }
  void Apply(const kernels::Optimizer& optimizer, const kernels::Hyper& hyper, double clip,
             std::span<const float> gradient, std::span<float> update, kernels::UnitState& state) override {
    cpu_->Apply(optimizer, hyper, clip, gradient, update, state);
  }

 private:
  std::unique_ptr<kernels::Backend> cpu_ = *kernels::MakeBackend("cpu");
};

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
