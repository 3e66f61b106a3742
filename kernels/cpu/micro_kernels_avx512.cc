// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// For CPUs with AVX-512 F, BW and VL, and one of the kernels with AVX512_BF16.
#include <immintrin.h>

#include "kernels/cpu/micro_kernel_impl.h"
#include "kernels/cpu/micro_kernel_table.h"

namespace dmuon::kernels {
namespace {

struct Avx512 {
  using Vector = __m512i;
  using Sum = __m512;
  static constexpr int64_t kLanes = 16, kRows = 14, kVectors = 2;

  static Vector Load(const float* from) { return _mm512_load_si512(from); }
  static void Store(float* to, Vector v) { _mm512_store_si512(to, v); }
  static Vector LoadAnywhere(const float* from) { return _mm512_loadu_si512(from); }
  static void StoreAnywhere(float* to, Vector v) { _mm512_storeu_si512(to, v); }
  static Sum Scale(float factor, Sum sum) { return _mm512_mul_ps(_mm512_set1_ps(factor), sum); }
  static Sum AddScaled(float factor, const float* from, Sum sum) {
    return _mm512_fmadd_ps(_mm512_set1_ps(factor), _mm512_loadu_ps(from), sum);
  }
  static void StoreSum(float* to, Sum sum) { _mm512_storeu_ps(to, sum); }
  static Sum Zero() { return _mm512_setzero_ps(); }
  static Vector Broadcast(const float* unit) { return _mm512_castps_si512(_mm512_set1_ps(*unit)); }

  // Pairs of vectors exchange ever larger parts: 1, 2, 4 and 8 lanes.
  static void Transpose(Vector (&v)[16]) {
    Vector w[16];
    DMUON_UNROLL
    for (int i = 0; i < 16; i += 2) {
      w[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
      w[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
    }
    DMUON_UNROLL
    for (int i = 0; i < 16; i += 4) {
      v[i] = _mm512_unpacklo_epi64(w[i], w[i + 2]);
      v[i + 1] = _mm512_unpackhi_epi64(w[i], w[i + 2]);
      v[i + 2] = _mm512_unpacklo_epi64(w[i + 1], w[i + 3]);
      v[i + 3] = _mm512_unpackhi_epi64(w[i + 1], w[i + 3]);
    }
    // Now v[4*a + b] has column b of each quarter, of lines 4*a to 4*a + 3.
    DMUON_UNROLL
    for (int b = 0; b < 4; ++b) {
      w[b] = _mm512_shuffle_i32x4(v[b], v[4 + b], 0x88);
      w[4 + b] = _mm512_shuffle_i32x4(v[b], v[4 + b], 0xdd);
      w[8 + b] = _mm512_shuffle_i32x4(v[8 + b], v[12 + b], 0x88);
      w[12 + b] = _mm512_shuffle_i32x4(v[8 + b], v[12 + b], 0xdd);
    }
    DMUON_UNROLL
    for (int b = 0; b < 4; ++b) {
      v[b] = _mm512_shuffle_i32x4(w[b], w[8 + b], 0x88);
      v[8 + b] = _mm512_shuffle_i32x4(w[b], w[8 + b], 0xdd);
      v[4 + b] = _mm512_shuffle_i32x4(w[4 + b], w[12 + b], 0x88);
      v[12 + b] = _mm512_shuffle_i32x4(w[4 + b], w[12 + b], 0xdd);
    }
  }
};

struct Avx512Float : Avx512 {
  static constexpr Precision kPrecision = Precision::kFloat32;
  static constexpr int64_t kDepthsPerUnit = 1;
  static int64_t Units(int64_t depth) { return depth; }
  static Vector AlongDepth(const float* from) {
    return _mm512_castps_si512(_mm512_loadu_ps(from));
  }
  static Vector AlongLines(const float* from, int64_t depth_stride, int64_t unit) {
    return AlongDepth(from + unit * depth_stride);
  }
  static Sum MultiplyAdd(Vector a, Vector b, Sum sum) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), sum);
  }
};

// A unit is a pair: the even depth in its lower half.
struct Avx512Pairs : Avx512 {
  static constexpr Precision kPrecision = Precision::kBFloat16;
  static constexpr int64_t kDepthsPerUnit = 2;
  static int64_t Units(int64_t depth) { return (depth + 1) / 2; }

  // 16 numbers rounded to bf16 in the lower half, and 16 in the upper.
  static Vector Rounded(const float* low, const float* high) {
    const __mmask32 kept = _mm512_kunpackw(Kept(high), Kept(low));
    return (Vector)_mm512_maskz_cvtne2ps_pbh(kept, _mm512_loadu_ps(high), _mm512_loadu_ps(low));
  }
  // Those that do not become zero. Without the sign a number's bits are in order.
  static __mmask16 Kept(const float* from) {
    const Vector bits = Avx512Float::AlongDepth(from);
    return _mm512_cmpge_epu32_mask(_mm512_add_epi32(bits, bits), _mm512_set1_epi32(2 * kSmallestRounded));
  }
  static Vector AlongDepth(const float* from) { return Rounded(from, from + 16); }
  static Vector AlongLines(const float* from, int64_t depth_stride, int64_t unit) {
    const float* even = from + 2 * unit * depth_stride;
    // Lane i takes halves i and 16 + i.
    const Vector pairs = _mm512_set_epi32(0x1f000f, 0x1e000e, 0x1d000d, 0x1c000c, 0x1b000b, 0x1a000a, 0x190009, 0x180008,
                                          0x170007, 0x160006, 0x150005, 0x140004, 0x130003, 0x120002, 0x110001, 0x100000);
    return _mm512_permutexvar_epi16(pairs, Rounded(even, even + depth_stride));
  }
  static Sum MultiplyAdd(Vector a, Vector b, Sum sum) {
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
  }
};

}  // namespace

const MicroKernel kAvx512Kernel = MakeMicroKernel<Avx512Float>("avx512");
const MicroKernel kAvx512PairsKernel = MakeMicroKernel<Avx512Pairs>("avx512_bf16");

}  // namespace dmuon::kernels
