// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Loops and sums on the device. A sum's order depends on the number of its terms alone, not on the device: blocks
// of fixed size, each a tree of fixed shape, and no atomics.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/launch.cuh"

namespace dmuon::kernels::cuda {

#ifndef DMUON_CUDA_THREADS  // tests lower it
#define DMUON_CUDA_THREADS 256
#endif
inline constexpr int kThreads = DMUON_CUDA_THREADS;
inline constexpr int64_t kLoopBlocks = 1 << 16;
inline constexpr int64_t kPartials = 1024;    // at most, of a sum
inline constexpr int64_t kTermsPerThread = 16;  // at least, where there are as many

inline unsigned Blocks(int64_t items, int64_t per_block, int64_t most) {
  return static_cast<unsigned>(std::clamp<int64_t>((items + per_block - 1) / per_block, 1, most));
}

template <typename Body>
__global__ void LoopKernel(int64_t count, Body body) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) body(i);
}

// body(i) for i in [0, count), in any order.
template <typename Body>
cudaError_t Loop(cudaStream_t stream, int64_t count, Body body) {
  if (count <= 0) return cudaSuccess;
  return Launch(stream, Blocks(count, kThreads, kLoopBlocks), kThreads, LoopKernel<Body>, count, body);
}

// The sum of all threads' values, in every thread; all threads of a block call this.
template <typename Value>
__device__ Value BlockSum(Value value) {
  __shared__ Value values[kThreads];
  __syncthreads();  // an earlier call's result may still be read
  values[threadIdx.x] = value;
  __syncthreads();
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) values[threadIdx.x] = values[threadIdx.x] + values[threadIdx.x + half];
    __syncthreads();
  }
  return values[0];
}

template <typename Value, typename Term>
__global__ void SumKernel(int64_t count, Term term, Value* sums) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  Value sum{};
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) sum = sum + term(i);
  sum = BlockSum(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// *result = sum of term(i) for i in [0, count). `partials`: room for kPartials.
template <typename Value, typename Term>
cudaError_t Sum(cudaStream_t stream, int64_t count, Term term, Value* partials, Value* result) {
  const unsigned blocks = Blocks(count, kThreads * kTermsPerThread, kPartials);
  const cudaError_t error = Launch(stream, blocks, kThreads, SumKernel<Value, Term>, count, term, partials);
  if (error != cudaSuccess) return error;
  const auto partial = [partials] __device__(int64_t i) { return partials[i]; };
  return Launch(stream, 1, kThreads, SumKernel<Value, decltype(partial)>, blocks, partial, result);
}

template <typename Term>
__global__ void RowSumsKernel(int64_t rows, int64_t cols, Term term, double* sums) {
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    double sum = 0.0;
    for (int64_t c = threadIdx.x; c < cols; c += kThreads) sum = sum + term(r, c);
    sum = BlockSum(sum);
    if (threadIdx.x == 0) sums[r] = sum;
  }
}

// sums[r] = sum over c of term(r, c).
template <typename Term>
cudaError_t RowSums(cudaStream_t stream, int64_t rows, int64_t cols, Term term, double* sums) {
  return Launch(stream, Blocks(rows, 1, kLoopBlocks), kThreads, RowSumsKernel<Term>, rows, cols, term, sums);
}

inline constexpr int kTile = 32;
inline constexpr int kTileRows = kThreads / kTile;

template <typename Term>
__global__ void ColumnSumsKernel(int64_t rows, int64_t cols, Term term, double* sums) {
  __shared__ double parts[kTileRows][kTile];
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kTile + threadIdx.x;
  double sum = 0.0;
  if (c < cols) {
    for (int64_t r = threadIdx.y; r < rows; r += kTileRows) sum = sum + term(r, c);
  }
  parts[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || c >= cols) return;
  for (int part = 1; part < kTileRows; ++part) sum = sum + parts[part][threadIdx.x];
  sums[c] = sum;
}

// sums[c] = sum over r of term(r, c).
template <typename Term>
cudaError_t ColumnSums(cudaStream_t stream, int64_t rows, int64_t cols, Term term, double* sums) {
  if (cols == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>((cols + kTile - 1) / kTile);
  return Launch(stream, blocks, dim3(kTile, kTileRows), ColumnSumsKernel<Term>, rows, cols, term, sums);
}

}  // namespace dmuon::kernels::cuda
