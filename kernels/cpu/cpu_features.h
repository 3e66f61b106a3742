// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What this CPU can run, asked once. Thread-safe.
#pragma once

namespace dmuon::kernels {

struct CpuFeatures {
  bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  bool avx512 = avx2 && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
                __builtin_cpu_supports("avx512vl") != 0;
  bool avx512_bf16 = avx512 && __builtin_cpu_supports("avx512bf16") != 0;
};

inline const CpuFeatures& Cpu() {
  static const CpuFeatures cpu;
  return cpu;
}

}  // namespace dmuon::kernels
