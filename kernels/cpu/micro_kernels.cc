// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/micro_kernels.h"

#include <array>
#include <bit>
#include <cmath>

#include "kernels/cpu/cpu_features.h"
#include "kernels/cpu/micro_kernel_impl.h"
#include "kernels/cpu/micro_kernel_table.h"

namespace dmuon::kernels {
namespace {

// For any CPU. Slow where a fused multiply-add is a function of the C library.
struct Plain {
  using Vector = uint32_t;
  using Sum = float;
  static constexpr int64_t kLanes = 1, kRows = 8, kVectors = 8;

  static Vector Load(const float* from) { return std::bit_cast<uint32_t>(*from); }
  static void Store(float* to, Vector v) { *to = std::bit_cast<float>(v); }
  static Vector LoadAnywhere(const float* from) { return Load(from); }
  static void StoreAnywhere(float* to, Vector v) { Store(to, v); }
  static Vector Broadcast(const float* unit) { return Load(unit); }
  static Sum Zero() { return 0.0F; }
  static Sum Scale(float factor, Sum sum) { return factor * sum; }
  static Sum AddScaled(float factor, const float* from, Sum sum) { return std::fma(factor, *from, sum); }
  static void StoreSum(float* to, Sum sum) { *to = sum; }
  static void Transpose(Vector (& /*one by one*/)[1]) {}
};

struct PlainFloat : Plain {
  static constexpr Precision kPrecision = Precision::kFloat32;
  static constexpr int64_t kDepthsPerUnit = 1;
  static int64_t Units(int64_t depth) { return depth; }
  static Sum MultiplyAdd(Vector a, Vector b, Sum sum) {
    return std::fma(std::bit_cast<float>(a), std::bit_cast<float>(b), sum);
  }
  static Vector AlongDepth(const float* from) { return Load(from); }
  static Vector AlongLines(const float* from, int64_t depth_stride, int64_t unit) {
    return Load(from + unit * depth_stride);
  }
};

// VDPBF16PS word by word.
struct PlainPairs : Plain {
  static constexpr Precision kPrecision = Precision::kBFloat16;
  static constexpr int64_t kDepthsPerUnit = 2;
  static int64_t Units(int64_t depth) { return (depth + 1) / 2; }
  static float Low(Vector pair) { return std::bit_cast<float>(pair << 16); }
  static float High(Vector pair) { return std::bit_cast<float>(pair & 0xffff0000U); }
  static Sum MultiplyAdd(Vector a, Vector b, Sum sum) {
    return std::fma(Low(a), Low(b), std::fma(High(a), High(b), sum));
  }

  // The upper half of a number rounded to bf16, ties to even.
  static uint32_t Rounded(float value) {
    const auto bits = std::bit_cast<uint32_t>(value);
    if ((bits & 0x7fffffff) < kSmallestRounded) return 0;
    return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  }
  static Vector AlongLines(const float* from, int64_t depth_stride, int64_t unit) {
    const float* even = from + 2 * unit * depth_stride;
    return Rounded(even[0]) | Rounded(even[depth_stride]) << 16;
  }
  static Vector AlongDepth(const float* from) { return AlongLines(from, 1, 0); }
};

constexpr MicroKernel kPlainKernel = MakeMicroKernel<PlainFloat>("plain");
constexpr MicroKernel kPlainPairsKernel = MakeMicroKernel<PlainPairs>("plain_bf16");

}  // namespace

std::span<const MicroKernel* const> MicroKernels(Precision precision) {
  using Table = std::array<const MicroKernel*, 3>;
  static constexpr Table kFloat = {&kAvx512Kernel, &kAvx2Kernel, &kPlainKernel};
  static constexpr Table kRounded = {&kAvx512PairsKernel, &kAvx2RoundedKernel, &kPlainPairsKernel};
  const bool rounded = precision == Precision::kBFloat16;
  const size_t first = (rounded ? Cpu().avx512_bf16 : Cpu().avx512) ? 0 : Cpu().avx2 ? 1 : 2;
  return std::span(rounded ? kRounded : kFloat).subspan(first);
}

}  // namespace dmuon::kernels
