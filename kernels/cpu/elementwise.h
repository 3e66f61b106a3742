// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Casts, sums and factors; the stages of optimizers are in stages.h. But for Dot and AddMultiple, each
// element is computed in double and rounded once, so a result does not depend on where in a span the element
// lies, on the vector width of the machine, or on how a tensor was cut into boxes. These loops are bound by
// memory; double costs little.
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

}  // namespace dmuon::kernels
