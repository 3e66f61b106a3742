// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <string_view>

#include "kernels/backend.h"

namespace dmuon::node {

// The cpu backend, whose Gram form diverges, and whose Newton-Schulz fails after `runs` where that is not negative,
// as no input that is known makes the real one do.
class DivergingBackend : public kernels::Backend {
 public:
  explicit DivergingBackend(int runs = -1) : runs_(runs) {}
  [[nodiscard]] std::string_view name() const override { return cpu_->name(); }
  [[nodiscard]] std::string device() const override { return cpu_->device(); }
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
    if (runs_ >= 0 && runs_-- == 0) return absl::InternalError("not finite");
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
  int runs_;
  std::unique_ptr<kernels::Backend> cpu_ = *kernels::MakeBackend("cpu");
};

}  // namespace dmuon::node
