// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda/loops.cuh"
#include "kernels/cuda/matrix_kernels.h"

namespace dmuon::kernels::cuda {

// What Sum joins two of them with.
__device__ DeviceStats operator+(const DeviceStats& a, const DeviceStats& b) {
  return {a.sum_squares + b.sum_squares, a.largest > b.largest ? a.largest : b.largest};
}

namespace {

static_assert(kPartialStats >= kPartials);

constexpr uint32_t kMagnitude = 0x7fffffff;  // all but the sign
constexpr uint32_t kInfinity = 0x7f800000;   // magnitudes from here on are not finite

__device__ float Widen(uint16_t bits) { return __uint_as_float(static_cast<uint32_t>(bits) << 16); }

// Ties to even; a carry into the exponent gives the next binade or infinity, and NaN stays a quiet NaN.
__device__ uint16_t Round(float value) {
  const uint32_t bits = __float_as_uint(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x40;
  return static_cast<uint16_t>((bits & kMagnitude) > kInfinity ? quiet_nan : rounded);
}

__global__ void MirrorKernel(int64_t size, float* square) {
  // One column more, so that reading by columns meets different banks.
  __shared__ float tile[kTile][kTile + 1];
  if (blockIdx.x < blockIdx.y) return;  // below the diagonal
  const int64_t row = static_cast<int64_t>(blockIdx.y) * kTile;
  const int64_t col = static_cast<int64_t>(blockIdx.x) * kTile;
  for (int r = threadIdx.y; r < kTile; r += kTileRows) {
    if (row + r < size && col + threadIdx.x < size) tile[r][threadIdx.x] = square[(row + r) * size + col + threadIdx.x];
  }
  __syncthreads();
  for (int r = threadIdx.y; r < kTile; r += kTileRows) {
    const int64_t to_row = col + r;
    const int64_t to_col = row + threadIdx.x;
    if (to_row < size && to_col < to_row) square[to_row * size + to_col] = tile[threadIdx.x][r];
  }
}

}  // namespace

cudaError_t CastToFloat(cudaStream_t stream, int64_t count, const uint16_t* from, float* to) {
  return Loop(stream, count, [=] __device__(int64_t i) { to[i] = Widen(from[i]); });
}

cudaError_t CastToBf16(cudaStream_t stream, int64_t count, const float* from, uint16_t* to) {
  return Loop(stream, count, [=] __device__(int64_t i) { to[i] = Round(from[i]); });
}

cudaError_t Add(cudaStream_t stream, int64_t count, const float* from, float* to) {
  return Loop(stream, count, [=] __device__(int64_t i) { to[i] += from[i]; });
}

cudaError_t Add(cudaStream_t stream, int64_t count, const uint16_t* from, float* to) {
  return Loop(stream, count, [=] __device__(int64_t i) { to[i] += Widen(from[i]); });
}

cudaError_t AddMultiple(cudaStream_t stream, int64_t count, double factor, const float* from, float* to) {
  return Loop(stream, count, [=] __device__(int64_t i) { to[i] = static_cast<float>(to[i] + factor * from[i]); });
}

cudaError_t Multiply(cudaStream_t stream, int64_t count, double factor, const float* from, float* to) {
  return Loop(stream, count, [=] __device__(int64_t i) { to[i] = static_cast<float>(factor * from[i]); });
}

cudaError_t Measure(cudaStream_t stream, int64_t count, const float* values, DeviceStats* partials,
                    DeviceStats* result) {
  const auto term = [=] __device__(int64_t i) {
    const double value = values[i];
    return DeviceStats{value * value, __float_as_uint(values[i]) & kMagnitude};
  };
  return Sum(stream, count, term, partials, result);
}

cudaError_t SumSquares(cudaStream_t stream, int64_t count, const double* values, double* partials, double* result) {
  return Sum(stream, count, [=] __device__(int64_t i) { return values[i] * values[i]; }, partials, result);
}

cudaError_t Pad(cudaStream_t stream, const Padding& padding, double factor, const float* from, float* to) {
  const Padding p = padding;
  return Loop(stream, p.padded_rows * p.padded_cols, [=] __device__(int64_t i) {
    const int64_t r = i / p.padded_cols;
    const int64_t c = i % p.padded_cols;
    to[i] = r < p.rows && c < p.cols ? static_cast<float>(factor * from[r * p.cols + c]) : 0.0F;
  });
}

cudaError_t Unpad(cudaStream_t stream, const Padding& padding, const float* from, float* to) {
  const Padding p = padding;
  return Loop(stream, p.rows * p.cols, [=] __device__(int64_t i) {
    to[i] = from[i / p.cols * p.padded_cols + i % p.cols];
  });
}

cudaError_t AddToDiagonal(cudaStream_t stream, int64_t count, int64_t stride, double value, float* square) {
  return Loop(stream, count, [=] __device__(int64_t i) { square[i * (stride + 1)] += static_cast<float>(value); });
}

cudaError_t TakeMean(cudaStream_t stream, int64_t count, int64_t stride, float* square, double* partials, double* mean) {
  const auto term = [=] __device__(int64_t i) { return static_cast<double>(square[i * (stride + 1)]); };
  if (const cudaError_t error = Sum(stream, count, term, partials, mean); error != cudaSuccess) return error;
  const auto divide = [=] __device__(int64_t) { *mean = *mean / static_cast<double>(count); };
  if (const cudaError_t error = Loop(stream, 1, divide); error != cudaSuccess) return error;
  return Loop(stream, count, [=] __device__(int64_t i) { square[i * (stride + 1)] += static_cast<float>(-*mean); });
}

cudaError_t MirrorUpper(cudaStream_t stream, int64_t size, float* square) {
  const auto tiles = static_cast<unsigned>((size + kTile - 1) / kTile);
  return Launch(stream, dim3(tiles, tiles), dim3(kTile, kTileRows), MirrorKernel, size, square);
}

cudaError_t TimesVector(cudaStream_t stream, int64_t rows, int64_t cols, const float* x, const double* v, double* out) {
  return RowSums(stream, rows, cols, [=] __device__(int64_t r, int64_t c) { return x[r * cols + c] * v[c]; }, out);
}

cudaError_t TransposedTimesVector(cudaStream_t stream, int64_t rows, int64_t cols, const float* x, const double* v,
                                  double* out) {
  return ColumnSums(stream, rows, cols, [=] __device__(int64_t r, int64_t c) { return x[r * cols + c] * v[r]; }, out);
}

}  // namespace dmuon::kernels::cuda
