// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What device code uses of the language, for a compiler of C++.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "cuda_runtime_api.h"

#define __device__
#define __global__
// Blocks run one after the other on the calling thread.
#define __shared__ static thread_local

struct dim3 {
  dim3(unsigned x_ = 1, unsigned y_ = 1) : x(x_), y(y_) {}  // NOLINT(google-explicit-constructor)
  unsigned x, y;
};
namespace dmuon::emulated {
struct Position {
  dim3 thread, block, threads, blocks;
};
DMUON_EMULATED Position& Here();
}  // namespace dmuon::emulated
#define threadIdx (::dmuon::emulated::Here().thread)
#define blockIdx (::dmuon::emulated::Here().block)
#define blockDim (::dmuon::emulated::Here().threads)
#define gridDim (::dmuon::emulated::Here().blocks)

// Returns once all threads of the block are here or have ended.
DMUON_EMULATED void __syncthreads();

inline float __uint_as_float(uint32_t bits) {
  float value = 0.0F;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
inline uint32_t __float_as_uint(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
