// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A header of its own, without includes that run code, for files that are compiled for one kind of CPU.
#pragma once

#include <cstdint>

namespace dmuon::kernels {

// Of the operands of a matrix product; sums are fp32.
enum class Precision : uint8_t { kFloat32, kBFloat16 };

}  // namespace dmuon::kernels
