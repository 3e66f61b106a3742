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

  // A small matrix has too few blocks for a team: each thread then takes a matrix of its own. A large one keeps the
  // team busy, and several would not fit into the caches.
  [[nodiscard]] size_t BatchSize(const MatrixShape& shape) const override {
    constexpr int64_t kLargestInBatch = int64_t{1} << 20;  // elements
    return shape.rows * shape.cols <= kLargestInBatch ? static_cast<size_t>(TeamSize()) : 1;
  }

  void OrthogonalizeBatch(const NewtonSchulz& newton_schulz, const Method& method, std::span<const MatrixView> batch,
                          std::span<absl::Status> statuses, Scratch& scratch) override {
    // Of a few, each is quicker by the whole team.
    const bool few = batch.empty() || 2 * batch.size() < BatchSize({batch[0].rows, batch[0].cols});
    if (few || batch.size() < 2 || TeamSize() < 2) {
      return Backend::OrthogonalizeBatch(newton_schulz, method, batch, statuses, scratch);
    }
    std::vector<Scratch*> parts;
    for (size_t i = 0; i < batch.size(); ++i) parts.push_back(&scratch.Part(i));
    ForEach(batch.size(), [&](size_t i) {
      const Alone alone;
      statuses[i] = OrthogonalizeFloat(newton_schulz, method, batch[i], *parts[i]);
    });
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
