// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The element-wise stages in fp32. Each element is computed in double and rounded once, so a result
// does not depend on where in a span the element lies, on the vector width of the machine, or on
// how a tensor was cut into boxes. These loops are bound by memory; double costs little.
//
// Spans of one call have the same length. They do not overlap, but for `from` and `to` of
// MultiplyFloat, which may be the same.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/backend.h"

namespace dmuon::kernels {

// As Backend::Measure. The sum is taken in blocks of fixed length.
GradientStats MeasureFloat(std::span<const float> values);

// No NaN and no infinity.
bool AllFinite(std::span<const float> values);

// In fp32: a sum in an order that depends on the length alone, and to += factor * from.
float Dot(std::span<const float> a, std::span<const float> b);
void AddMultiple(float factor, std::span<const float> from, std::span<float> to);

// to = factor * from.
void MultiplyFloat(double factor, std::span<const float> from, std::span<float> to);

// The upper 16 bits of an fp32 number, rounded to nearest even, and back.
void Bf16ToFloat(std::span<const uint16_t> from, std::span<float> to);
void AddBf16ToFloat(std::span<const uint16_t> from, std::span<float> to);
void AddFloat(std::span<const float> from, std::span<float> to);
void FloatToBf16(std::span<const float> from, std::span<uint16_t> to);

// The momentum stage as two factors: M <- keep*M + take*G; update = take*G + keep*M if `nesterov`,
// else M.
struct MomentumStage {
  double keep;
  double take;  // with the clip factor in it
  bool nesterov;
};
void MomentumDirection(const MomentumStage& stage, std::span<const float> gradient,
                       std::span<const float> momentum, std::span<float> update);

// M <- keep*M + take*G;  W <- decay*W - rate*update.
void ApplyUpdate(const MomentumStage& stage, double decay, double rate,
                 std::span<const float> gradient, std::span<const float> update,
                 std::span<float> momentum, std::span<float> weight);

// AdamW of one step, with everything that is the same for all elements worked out beforehand.
struct AdamStage {
  double beta1, beta2;
  double clip;
  double decay;                // 1 - lr*weight_decay
  double rate;                 // lr / (1 - beta1^t)
  double inverse_root_second;  // 1 / sqrt(1 - beta2^t)
  double eps;                  // added to the root of the corrected second moment
};
void ApplyAdam(const AdamStage& stage, std::span<const float> gradient, std::span<float> momentum,
               std::span<float> second_moment, std::span<float> weight);

}  // namespace dmuon::kernels
