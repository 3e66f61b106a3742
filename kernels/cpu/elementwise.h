// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Casts, sums and factors, by the calling thread's team (team.h); the stages of optimizers are in stages.h. But for
// Dot and AddMultiple, their loops and their bits are those of loops.h.
//
// Spans of one call have the same length. They do not overlap, but for `from` and `to` of
// MultiplyFloat, which may be the same.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/backend.h"

namespace dmuon::kernels {

// As Backend::Measure. The sums of blocks are added up in each grain, and those of grains then, in rising order.
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
void CopyFloat(std::span<const float> from, std::span<float> to);

}  // namespace dmuon::kernels
