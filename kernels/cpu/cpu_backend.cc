// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/cpu_backend.h"

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/micro_kernels.h"
#include "kernels/cpu/newton_schulz.h"
#include "kernels/cpu/processor.h"
#include "kernels/cpu/stages.h"
#include "kernels/cpu/team.h"
#include "kernels/cpu/top_k.h"

namespace dmuon::kernels {
namespace {

std::span<const float> Floats(const void* data, size_t count) {
  return {static_cast<const float*>(data), count};
}
std::span<const uint16_t> Halves(const void* data, size_t count) {
  return {static_cast<const uint16_t*>(data), count};
}

class CpuBackend final : public Backend {
 public:
  [[nodiscard]] std::string_view name() const override { return "cpu"; }
  [[nodiscard]] std::string device() const override {
    std::string text = ProcessorModel();
    for (const Precision precision : {Precision::kFloat32, Precision::kBFloat16}) {
      text.append(", ").append(MicroKernels(precision).front()->name);
    }
    return text;
  }

  void BindThread(int threads) override { BindTeam(threads); }

  void CastToFloat(DType dtype, const void* from, std::span<float> to) override {
    if (to.empty()) return;  // an empty shard may have no address
    if (dtype == DType::kFloat32) {
      CopyFloat(Floats(from, to.size()), to);
    } else {
      Bf16ToFloat(Halves(from, to.size()), to);
    }
  }

  void AddToFloat(DType dtype, const void* from, std::span<float> to) override {
    if (dtype == DType::kFloat32) {
      AddFloat(Floats(from, to.size()), to);
    } else {
      AddBf16ToFloat(Halves(from, to.size()), to);
    }
  }

  void CastFromFloat(std::span<const float> from, DType dtype, void* to) override {
    if (from.empty()) return;
    if (dtype == DType::kFloat32) {
      CopyFloat(from, {static_cast<float*>(to), from.size()});
    } else {
      FloatToBf16(from, {static_cast<uint16_t*>(to), from.size()});
    }
  }

  void Multiply(double factor, std::span<float> values) override {
    if (factor != 1.0) MultiplyFloat(factor, values, values);
  }

  GradientStats Measure(std::span<const float> gradient) override { return MeasureFloat(gradient); }

  MatrixView Direction(const Optimizer& optimizer, const Hyper& hyper, double clip, std::span<const float> gradient,
                       const UnitState& state, std::span<float> update) override {
    const MatrixShape shape = MakeDirection(optimizer, hyper, clip, gradient, state, update);
    return {update.data(), shape.rows, shape.cols};
  }

  absl::Status Orthogonalize(const NewtonSchulz& newton_schulz, const Method& method, MatrixView x,
                             Scratch& scratch) override {
    return OrthogonalizeFloat(newton_schulz, method, x, scratch);
  }

  absl::Status OrthogonalizeTopK(const TopK& top_k, int64_t step, MatrixView x, MatrixView basis,
                                 Scratch& scratch) override {
    return OrthogonalizeTopKFloat(top_k, step, x, basis, scratch);
  }

  void Apply(const Optimizer& optimizer, const Hyper& hyper, double clip, std::span<const float> gradient,
             std::span<float> update, UnitState& state) override {
    ApplyStep(optimizer, hyper, clip, gradient, update, state);
  }
};

}  // namespace

std::unique_ptr<Backend> MakeCpuBackend() { return std::make_unique<CpuBackend>(); }

}  // namespace dmuon::kernels
