// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/loops.h"

#include <array>

#include "kernels/cpu/cpu_features.h"
#include "kernels/cpu/loop_impl.h"

namespace dmuon::kernels {
namespace {

constexpr CpuLoops kPlainLoops = MakeLoops("plain");
constexpr StageLoops<double> kDoubleLoops = MakeStageLoops<double>("plain");

}  // namespace

std::span<const CpuLoops* const> AllLoops() {
  static constexpr std::array<const CpuLoops*, 3> kAll = {&kAvx512Loops, &kAvx2Loops, &kPlainLoops};
  return std::span(kAll).subspan(Cpu().avx512 ? 0 : Cpu().avx2 ? 1 : 2);
}

template <>
const StageLoops<float>& Stages() {
  return AllLoops().front()->stages;
}

template <>
const StageLoops<double>& Stages() {
  return kDoubleLoops;
}

const CastLoops& Casts() { return AllLoops().front()->casts; }

}  // namespace dmuon::kernels
