// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// For CPUs with AVX-512 F, BW and VL.
#include "kernels/cpu/loop_impl.h"

namespace dmuon::kernels {

constinit const CpuLoops kAvx512Loops = MakeLoops("avx512");

}  // namespace dmuon::kernels
