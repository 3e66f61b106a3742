// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The kernels of each file that is compiled for one kind of CPU. To be used where the CPU has been asked.
#pragma once

#include <cstdint>

#include "kernels/cpu/micro_kernels.h"

namespace dmuon::kernels {

extern const MicroKernel kAvx512Kernel;
extern const MicroKernel kAvx512PairsKernel;
extern const MicroKernel kAvx2Kernel;
extern const MicroKernel kAvx2RoundedKernel;

// Bits of 2^-55. What is smaller is rounded to zero instead of bf16: then no sum of products is subnormal,
// and it does not matter that VDPBF16PS makes zeros of those.
inline constexpr int32_t kSmallestRounded = (127 - 55) << 23;

}  // namespace dmuon::kernels
