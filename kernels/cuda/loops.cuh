// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Loops and sums on the device. A sum's order depends on the number of its terms alone, not on the device: blocks
// of fixed size, each a tree of fixed shape, and no atomics. In a batch each array is summed as if it were alone: its
// number is blockIdx.y, and what a body or term is called with first.
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

// A body or term of one array, as that of a batch of one.
template <typename Body>
struct OfOne {
  Body body;
  template <typename... At>
  __device__ auto operator()(int64_t /*item*/, At... at) const {
    return body(at...);
  }
};

template <typename Body>
__global__ void LoopKernel(int64_t count, Body body) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const int64_t item = blockIdx.y;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) body(item, i);
}

// body(item, i) for each of `items` and i in [0, count), in any order.
template <typename Body>
cudaError_t BatchLoop(cudaStream_t stream, int64_t items, int64_t count, Body body) {
  if (count <= 0 || items <= 0) return cudaSuccess;
  const dim3 blocks(Blocks(count, kThreads, kLoopBlocks), static_cast<unsigned>(items));
  return Launch(stream, blocks, kThreads, LoopKernel<Body>, count, body);
}

template <typename Body>
cudaError_t Loop(cudaStream_t stream, int64_t count, Body body) {
  return BatchLoop(stream, 1, count, OfOne<Body>{body});
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
  const int64_t item = blockIdx.y;
  Value sum{};
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    sum = sum + term(item, i);
  }
  sum = BlockSum(sum);
  if (threadIdx.x == 0) sums[item * gridDim.x + blockIdx.x] = sum;
}

// results[item] = sum of term(item, i) for i in [0, count). `partials`: room for kPartials of each of `items`.
template <typename Value, typename Term>
cudaError_t BatchSum(cudaStream_t stream, int64_t items, int64_t count, Term term, Value* partials, Value* results) {
  const unsigned blocks = Blocks(count, kThreads * kTermsPerThread, kPartials);
  const auto high = static_cast<unsigned>(items);
  const cudaError_t error = Launch(stream, dim3(blocks, high), kThreads, SumKernel<Value, Term>, count, term, partials);
  if (error != cudaSuccess) return error;
  const auto partial = [partials, blocks] __device__(int64_t item, int64_t i) { return partials[item * blocks + i]; };
  return Launch(stream, dim3(1, high), kThreads, SumKernel<Value, decltype(partial)>, blocks, partial, results);
}

// *result = sum of term(i) for i in [0, count).
template <typename Value, typename Term>
cudaError_t Sum(cudaStream_t stream, int64_t count, Term term, Value* partials, Value* result) {
  return BatchSum(stream, 1, count, OfOne<Term>{term}, partials, result);
}

template <typename Term>
__global__ void RowSumsKernel(int64_t rows, int64_t cols, Term term, double* sums) {
  const int64_t item = blockIdx.y;
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    double sum = 0.0;
    for (int64_t c = threadIdx.x; c < cols; c += kThreads) sum = sum + term(item, r, c);
    sum = BlockSum(sum);
    if (threadIdx.x == 0) sums[item * rows + r] = sum;
  }
}

// sums[item*rows + r] = sum over c of term(item, r, c).
template <typename Term>
cudaError_t BatchRowSums(cudaStream_t stream, int64_t items, int64_t rows, int64_t cols, Term term, double* sums) {
  const dim3 blocks(Blocks(rows, 1, kLoopBlocks), static_cast<unsigned>(items));
  return Launch(stream, blocks, kThreads, RowSumsKernel<Term>, rows, cols, term, sums);
}

template <typename Term>
cudaError_t RowSums(cudaStream_t stream, int64_t rows, int64_t cols, Term term, double* sums) {
  return BatchRowSums(stream, 1, rows, cols, OfOne<Term>{term}, sums);
}

inline constexpr int kTile = 32;
inline constexpr int kTileRows = kThreads / kTile;

template <typename Term>
__global__ void ColumnSumsKernel(int64_t rows, int64_t cols, Term term, double* sums) {
  __shared__ double parts[kTileRows][kTile];
  const int64_t item = blockIdx.y;
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kTile + threadIdx.x;
  double sum = 0.0;
  if (c < cols) {
    for (int64_t r = threadIdx.y; r < rows; r += kTileRows) sum = sum + term(item, r, c);
  }
  parts[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || c >= cols) return;
  for (int part = 1; part < kTileRows; ++part) sum = sum + parts[part][threadIdx.x];
  sums[item * cols + c] = sum;
}

// sums[item*cols + c] = sum over r of term(item, r, c).
template <typename Term>
cudaError_t BatchColumnSums(cudaStream_t stream, int64_t items, int64_t rows, int64_t cols, Term term, double* sums) {
  if (cols == 0) return cudaSuccess;
  const dim3 blocks(static_cast<unsigned>((cols + kTile - 1) / kTile), static_cast<unsigned>(items));
  return Launch(stream, blocks, dim3(kTile, kTileRows), ColumnSumsKernel<Term>, rows, cols, term, sums);
}

template <typename Term>
cudaError_t ColumnSums(cudaStream_t stream, int64_t rows, int64_t cols, Term term, double* sums) {
  return BatchColumnSums(stream, 1, rows, cols, OfOne<Term>{term}, sums);
}

}  // namespace dmuon::kernels::cuda
