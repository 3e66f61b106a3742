// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// For CPUs with AVX2 and FMA.
#include <immintrin.h>

#include "kernels/cpu/micro_kernel_impl.h"
#include "kernels/cpu/micro_kernel_table.h"

namespace dmuon::kernels {
namespace {

struct Avx2Float {
  static constexpr Precision kPrecision = Precision::kFloat32;
  using Vector = __m256;
  using Sum = __m256;
  static constexpr int64_t kLanes = 8, kRows = 6, kVectors = 2, kDepthsPerUnit = 1;

  static int64_t Units(int64_t depth) { return depth; }
  static Vector Load(const float* from) { return _mm256_load_ps(from); }
  static void Store(float* to, Vector v) { _mm256_store_ps(to, v); }
  static Vector LoadAnywhere(const float* from) { return _mm256_loadu_ps(from); }
  static void StoreAnywhere(float* to, Vector v) { _mm256_storeu_ps(to, v); }
  static Sum Scale(float factor, Sum sum) { return _mm256_mul_ps(_mm256_set1_ps(factor), sum); }
  static Sum AddScaled(float factor, const float* from, Sum sum) {
    return _mm256_fmadd_ps(_mm256_set1_ps(factor), _mm256_loadu_ps(from), sum);
  }
  static void StoreSum(float* to, Sum sum) { _mm256_storeu_ps(to, sum); }
  static Sum Zero() { return _mm256_setzero_ps(); }
  static Vector Broadcast(const float* unit) { return _mm256_broadcast_ss(unit); }
  static Sum MultiplyAdd(Vector a, Vector b, Sum sum) { return _mm256_fmadd_ps(a, b, sum); }
  static Vector AlongDepth(const float* from) {
    return _mm256_loadu_ps(from);
  }
  static Vector AlongLines(const float* from, int64_t depth_stride, int64_t unit) {
    return AlongDepth(from + unit * depth_stride);
  }

  // Pairs of vectors exchange ever larger parts: 1, 2 and 4 lanes.
  static void Transpose(Vector (&v)[8]) {
    Vector w[8];
    DMUON_UNROLL
    for (int i = 0; i < 8; i += 2) {
      w[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
      w[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
    }
    DMUON_UNROLL
    for (int i = 0; i < 8; i += 4) {
      v[i] = _mm256_shuffle_ps(w[i], w[i + 2], 0x44);
      v[i + 1] = _mm256_shuffle_ps(w[i], w[i + 2], 0xee);
      v[i + 2] = _mm256_shuffle_ps(w[i + 1], w[i + 3], 0x44);
      v[i + 3] = _mm256_shuffle_ps(w[i + 1], w[i + 3], 0xee);
    }
    DMUON_UNROLL
    for (int b = 0; b < 4; ++b) {
      const Vector low = v[b];
      v[b] = _mm256_permute2f128_ps(low, v[4 + b], 0x20);
      v[4 + b] = _mm256_permute2f128_ps(low, v[4 + b], 0x31);
    }
  }
};

// Numbers rounded to bf16, as fp32; of each two depths the second comes first.
struct Avx2Rounded : Avx2Float {
  static constexpr Precision kPrecision = Precision::kBFloat16;
  static int64_t Units(int64_t depth) { return (depth + 1) / 2 * 2; }

  static Vector Rounded(const float* from) {
    const __m256i bits = _mm256_castps_si256(Avx2Float::AlongDepth(from));
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
    const __m256i kept = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(kSmallestRounded - 1));
    const __m256i top = _mm256_and_si256(kept, _mm256_set1_epi32(static_cast<int>(0xffff0000)));
    return _mm256_castsi256_ps(_mm256_and_si256(up, top));
  }
  static Vector AlongDepth(const float* from) {
    return _mm256_permute_ps(Rounded(from), 0xb1);
  }
  static Vector AlongLines(const float* from, int64_t depth_stride, int64_t unit) {
    return Rounded(from + (unit ^ 1) * depth_stride);
  }
};

}  // namespace

const MicroKernel kAvx2Kernel = MakeMicroKernel<Avx2Float>("avx2");
const MicroKernel kAvx2RoundedKernel = MakeMicroKernel<Avx2Rounded>("avx2_rounded");

}  // namespace dmuon::kernels
