// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/cpu_backend.h"

#include <cmath>
#include <cstring>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/newton_schulz.h"
#include "kernels/cpu/products.h"

namespace dmuon::kernels {
namespace {

std::span<const float> Floats(const void* data, size_t count) {
  return {static_cast<const float*>(data), count};
}
std::span<const uint16_t> Halves(const void* data, size_t count) {
  return {static_cast<const uint16_t*>(data), count};
}

MomentumStage MakeMomentum(const Optimizer& optimizer, const Hyper& hyper, double clip) {
  const double share = optimizer.momentum == Momentum::kEma ? 1.0 - hyper.momentum : 1.0;
  return {.keep = hyper.momentum, .take = share * clip, .nesterov = optimizer.nesterov};
}

// `step` counts the update that is about to be applied.
AdamStage MakeAdam(const Optimizer& optimizer, const Hyper& hyper, double clip, int64_t step) {
  const double t = static_cast<double>(step);
  const double first = optimizer.bias_correction ? 1.0 - std::pow(hyper.momentum, t) : 1.0;
  const double second = optimizer.bias_correction ? 1.0 - std::pow(hyper.beta2, t) : 1.0;
  return {.beta1 = hyper.momentum,
          .beta2 = hyper.beta2,
          .clip = clip,
          .decay = 1.0 - hyper.lr * hyper.weight_decay,
          .rate = hyper.lr / first,
          .inverse_root_second = 1.0 / std::sqrt(second),
          .eps = optimizer.second_moment_eps};
}

class CpuBackend final : public Backend {
 public:
  [[nodiscard]] std::string_view name() const override { return "cpu"; }

  void BindThread(int threads) override { BindProductThreads(threads); }

  void CastToFloat(DType dtype, const void* from, std::span<float> to) override {
    if (to.empty()) return;  // an empty shard may have no address
    if (dtype == DType::kFloat32) {
      std::memcpy(to.data(), from, to.size_bytes());
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
      std::memcpy(to, from.data(), from.size_bytes());
    } else {
      FloatToBf16(from, {static_cast<uint16_t*>(to), from.size()});
    }
  }

  void Multiply(double factor, std::span<float> values) override {
    if (factor != 1.0) MultiplyFloat(factor, values, values);
  }

  GradientStats Measure(std::span<const float> gradient) override { return MeasureFloat(gradient); }

  void Direction(const Optimizer& optimizer, const Hyper& hyper, double clip,
                 std::span<const float> gradient, const UnitState& state,
                 std::span<float> update) override {
    MomentumDirection(MakeMomentum(optimizer, hyper, clip), gradient, state.momentum, update);
  }

  absl::Status Orthogonalize(const NewtonSchulz& newton_schulz, const Method& method, MatrixView x,
                             Scratch& scratch) override {
    return OrthogonalizeFloat(newton_schulz, method, x, scratch);
  }

  void Apply(const Optimizer& optimizer, const Hyper& hyper, double clip, double scale,
             std::span<const float> gradient, std::span<const float> update,
             UnitState& state) override {
    state.step += 1;
    if (optimizer.needs_whole_matrix()) {
      ApplyUpdate(MakeMomentum(optimizer, hyper, clip), 1.0 - hyper.lr * hyper.weight_decay,
                  hyper.lr * scale, gradient, update, state.momentum, state.weight);
    } else {
      ApplyAdam(MakeAdam(optimizer, hyper, clip, state.step), gradient, state.momentum,
                state.second_moment, state.weight);
    }
  }
};

}  // namespace

std::unique_ptr<Backend> MakeCpuBackend() { return std::make_unique<CpuBackend>(); }

}  // namespace dmuon::kernels
