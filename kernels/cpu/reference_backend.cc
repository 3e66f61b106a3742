// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/reference_backend.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/processor.h"
#include "kernels/cpu/reference.h"
#include "kernels/cpu/stages.h"
#include "kernels/newton_schulz.h"

namespace dmuon::kernels {
namespace {

std::vector<double> Wide(std::span<const float> from) { return {from.begin(), from.end()}; }

void Round(std::span<const double> from, std::span<float> to) {
  for (size_t i = 0; i < to.size(); ++i) to[i] = static_cast<float>(from[i]);
}

bool Finite(std::span<const double> values) {
  for (const double value : values) {
    if (!std::isfinite(value)) return false;
  }
  return true;
}

// Element `i` of a foreign buffer; copied byte-wise, so that alignment does not matter.
float Element(DType dtype, const void* from, size_t i) {
  const auto* at = static_cast<const unsigned char*>(from) + i * SizeOf(dtype);
  if (dtype == DType::kFloat32) {
    float value = 0.0F;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  uint16_t upper = 0;
  std::memcpy(&upper, at, sizeof(upper));
  return std::bit_cast<float>(static_cast<uint32_t>(upper) << 16);
}

// Of the two bf16 neighbours of `value`, the nearer one; of two equally near ones the even one.
uint16_t NearestBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto below = static_cast<uint16_t>(bits >> 16);  // towards zero
  if (std::isnan(value)) return static_cast<uint16_t>(below | 0x40);
  const uint32_t rest = bits & 0xffff;
  const bool up = rest > 0x8000 || (rest == 0x8000 && (below & 1) != 0);
  return static_cast<uint16_t>(below + (up ? 1 : 0));
}

// A unit's state in double.
struct WideState {
  explicit WideState(const UnitState& from)
      : weight(Wide(from.weight)), momentum(Wide(from.momentum)), second_moment(Wide(from.second_moment)),
        column_moment(Wide(from.column_moment)), slow_gradient(Wide(from.slow_gradient)), basis(Wide(from.basis)),
        state{from.rows, from.cols, weight, momentum, second_moment, column_moment, slow_gradient, basis, from.step} {}

  void RoundTo(UnitState& to) const {
    Round(weight, to.weight);
    Round(momentum, to.momentum);
    Round(second_moment, to.second_moment);
    Round(column_moment, to.column_moment);
    Round(slow_gradient, to.slow_gradient);
    Round(basis, to.basis);
    to.step = state.step;
  }

  std::vector<double> weight, momentum, second_moment, column_moment, slow_gradient, basis;
  BasicUnitState<double> state;
};

class ReferenceBackend final : public Backend {
 public:
  [[nodiscard]] std::string_view name() const override { return "reference"; }
  [[nodiscard]] std::string device() const override { return ProcessorModel(); }

  void BindThread(int /*threads*/) override {}  // one thread is all it ever uses

  void CastToFloat(DType dtype, const void* from, std::span<float> to) override {
    for (size_t i = 0; i < to.size(); ++i) to[i] = Element(dtype, from, i);
  }

  void AddToFloat(DType dtype, const void* from, std::span<float> to) override {
    for (size_t i = 0; i < to.size(); ++i) to[i] += Element(dtype, from, i);
  }

  void CastFromFloat(std::span<const float> from, DType dtype, void* to) override {
    for (size_t i = 0; i < from.size(); ++i) {
      auto* at = static_cast<unsigned char*>(to) + i * SizeOf(dtype);
      const uint16_t half = NearestBf16(from[i]);
      if (dtype == DType::kFloat32) {
        std::memcpy(at, &from[i], sizeof(float));
      } else {
        std::memcpy(at, &half, sizeof(half));
      }
    }
  }

  void Multiply(double factor, std::span<float> values) override {
    if (factor == 1.0) return;
    for (float& value : values) value = static_cast<float>(factor * static_cast<double>(value));
  }

  GradientStats Measure(std::span<const float> gradient) override {
    GradientStats stats;
    for (const float element : gradient) {
      const double value = element;
      stats.sum_squares += value * value;
      stats.max_abs = std::max(stats.max_abs, std::abs(value));
      stats.finite = stats.finite && std::isfinite(element);
    }
    return stats;
  }

  MatrixView Direction(const Optimizer& optimizer, const Hyper& hyper, double clip, std::span<const float> gradient,
                       const UnitState& state, std::span<float> update) override {
    WideState wide(state);
    std::vector<double> direction(update.size());
    const MatrixShape shape =
        MakeDirection<double>(optimizer, hyper, clip, Wide(gradient), wide.state, direction);
    Round(direction, update);
    return {update.data(), shape.rows, shape.cols};
  }

  absl::Status Orthogonalize(const NewtonSchulz& newton_schulz, const Method& /*method*/, MatrixView x,
                             Scratch& /*scratch*/) override {
    if (absl::Status status = CheckDimensions(x); !status.ok()) return status;
    return Rounded("Newton-Schulz", x, [&](std::span<double> wide) {
      reference::Orthogonalize(newton_schulz, x.rows, x.cols, wide);
    });
  }

  absl::Status OrthogonalizeTopK(const TopK& top_k, int64_t step, MatrixView x, MatrixView basis,
                                 Scratch& /*scratch*/) override {
    std::vector<double> vectors = Wide({basis.data, static_cast<size_t>(basis.rows * basis.cols)});
    absl::Status status = Rounded("top-k", x, [&](std::span<double> wide) {
      reference::OrthogonalizeTopK(RankAt(top_k, step, std::min(x.rows, x.cols)), x.rows, x.cols, wide, vectors);
    });
    if (status.ok()) Round(vectors, {basis.data, vectors.size()});
    return status;
  }

  void Apply(const Optimizer& optimizer, const Hyper& hyper, double clip, std::span<const float> gradient,
             std::span<float> update, UnitState& state) override {
    WideState wide(state);
    std::vector<double> direction = Wide(update);
    ApplyStep<double>(optimizer, hyper, clip, Wide(gradient), direction, wide.state);
    wide.RoundTo(state);
  }

 private:
  // x <- f(x), which works in double.
  template <typename F>
  static absl::Status Rounded(const char* what, MatrixView x, F f) {
    const std::span<float> values(x.data, static_cast<size_t>(x.rows) * static_cast<size_t>(x.cols));
    std::vector<double> wide = Wide(values);
    if (!Finite(wide)) {
      return absl::InvalidArgumentError(
          absl::StrCat("input of ", what, " is not finite (", x.rows, " x ", x.cols, ")"));
    }
    f(wide);
    if (!Finite(wide)) {
      return absl::InternalError(
          absl::StrCat(what, " of a finite ", x.rows, " x ", x.cols, " matrix gave a non-finite result"));
    }
    Round(wide, values);
    return absl::OkStatus();
  }
};

}  // namespace

std::unique_ptr<Backend> MakeReferenceBackend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace dmuon::kernels
