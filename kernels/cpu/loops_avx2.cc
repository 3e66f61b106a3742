// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// For CPUs with AVX2.
#include "kernels/cpu/loop_impl.h"

namespace dmuon::kernels {

constinit const CpuLoops kAvx2Loops = MakeLoops("avx2");

}  // namespace dmuon::kernels
