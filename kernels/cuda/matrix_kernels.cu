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

__device__ double Of(const Shift& shift, int64_t item) {
  return shift.of_each == nullptr ? shift.of_all : shift.of_each[item].beta;
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

cudaError_t Multiply(cudaStream_t stream, int64_t count, double factor, const float* from, float* to) {
  return Loop(stream, count, [=] __device__(int64_t i) { to[i] = static_cast<float>(factor * from[i]); });
}

cudaError_t Measure(cudaStream_t stream, const Batch& batch, int64_t count, const float* values, DeviceStats* partials,
                    DeviceStats* results) {
  const int64_t stride = batch.stride;
  const auto term = [=] __device__(int64_t item, int64_t i) {
    const float element = values[item * stride + i];
    const double value = element;
    return DeviceStats{value * value, __float_as_uint(element) & kMagnitude};
  };
  return BatchSum(stream, batch.items, count, term, partials, results);
}

cudaError_t SumSquares(cudaStream_t stream, const Batch& batch, int64_t count, const double* values, double* partials,
                       double* results) {
  const int64_t stride = batch.stride;
  const auto term = [=] __device__(int64_t item, int64_t i) {
    const double value = values[item * stride + i];
    return value * value;
  };
  return BatchSum(stream, batch.items, count, term, partials, results);
}

cudaError_t Pad(cudaStream_t stream, const Padding& padding, const Batch& batch, const BatchFactors& factors,
                const float* from, float* to) {
  const Padding p = padding;
  const BatchFactors f = factors;
  const int64_t stride = batch.stride;
  return BatchLoop(stream, batch.items, p.padded_rows * p.padded_cols, [=] __device__(int64_t item, int64_t i) {
    const int64_t r = i / p.padded_cols;
    const int64_t c = i % p.padded_cols;
    const double factor = f.of[item];
    const bool inside = factor != 0.0 && r < p.rows && c < p.cols;
    to[item * stride + i] = inside ? static_cast<float>(factor * from[(item * p.rows + r) * p.cols + c]) : 0.0F;
  });
}

cudaError_t Unpad(cudaStream_t stream, const Padding& padding, const Batch& batch, const BatchFactors& factors,
                  const float* from, float* to) {
  const Padding p = padding;
  const BatchFactors f = factors;
  const int64_t stride = batch.stride;
  return BatchLoop(stream, batch.items, p.rows * p.cols, [=] __device__(int64_t item, int64_t i) {
    if (f.of[item] == 0.0) return;
    to[item * p.rows * p.cols + i] = from[item * stride + i / p.cols * p.padded_cols + i % p.cols];
  });
}

cudaError_t AddToDiagonal(cudaStream_t stream, const Diagonals& diagonals, const Shift& shift, float* squares) {
  const Diagonals d = diagonals;
  const Shift s = shift;
  return BatchLoop(stream, d.batch.items, d.count, [=] __device__(int64_t item, int64_t i) {
    squares[item * d.batch.stride + i * (d.row_stride + 1)] += static_cast<float>(Of(s, item));
  });
}

cudaError_t TakeMeans(cudaStream_t stream, const Diagonals& diagonals, float* squares, double* partials, double* sums,
                      const Shift& before, ProductScalars* after) {
  const Diagonals d = diagonals;
  const Shift s = before;
  const auto term = [=] __device__(int64_t item, int64_t i) {
    return static_cast<double>(squares[item * d.batch.stride + i * (d.row_stride + 1)]);
  };
  const cudaError_t error = BatchSum(stream, d.batch.items, d.count, term, partials, sums);
  if (error != cudaSuccess) return error;
  return BatchLoop(stream, d.batch.items, d.count, [=] __device__(int64_t item, int64_t i) {
    const auto mean = static_cast<float>(sums[item] / static_cast<double>(d.count));
    squares[item * d.batch.stride + i * (d.row_stride + 1)] -= mean;
    if (i == 0) after[item] = {1.0F, static_cast<float>(Of(s, item) + mean)};
  });
}

cudaError_t AddShifts(cudaStream_t stream, const Diagonals& diagonals, const float* left, const Shift& left_shift,
                      const float* right, const Shift& right_shift, float* out) {
  const Diagonals d = diagonals;
  const Shift l = left_shift;
  const Shift r = right_shift;
  return BatchLoop(stream, d.batch.items, d.row_stride * d.row_stride, [=] __device__(int64_t item, int64_t i) {
    const double of_left = Of(l, item);
    const double of_right = Of(r, item);
    const int64_t at = item * d.batch.stride + i;
    double sum = out[at] + of_left * right[at];
    if (of_right != 0.0) {
      sum = sum + of_right * left[at];
      if (i % (d.row_stride + 1) == 0 && i / (d.row_stride + 1) < d.count) sum = sum + of_left * of_right;
    }
    out[at] = static_cast<float>(sum);
  });
}

cudaError_t AddPolyShifts(cudaStream_t stream, const Diagonals& diagonals, double a, double b, double c,
                          const float* grams, const Shift& gram_shift, float* out, ProductScalars* shifts) {
  const Diagonals d = diagonals;
  const Shift s = gram_shift;
  return BatchLoop(stream, d.batch.items, d.row_stride * d.row_stride, [=] __device__(int64_t item, int64_t i) {
    const double m = Of(s, item);
    const int64_t at = item * d.batch.stride + i;
    out[at] = static_cast<float>(out[at] + 2.0 * c * m * grams[at]);
    if (i == 0) shifts[item] = {1.0F, static_cast<float>(a + m * (b + c * m))};
  });
}

cudaError_t MirrorUpper(cudaStream_t stream, int64_t size, float* square) {
  const auto tiles = static_cast<unsigned>((size + kTile - 1) / kTile);
  return Launch(stream, dim3(tiles, tiles), dim3(kTile, kTileRows), MirrorKernel, size, square);
}

cudaError_t TimesVectors(cudaStream_t stream, int64_t items, int64_t rows, int64_t cols, const float* x, const double* v,
                         double* out) {
  const auto term = [=] __device__(int64_t item, int64_t r, int64_t c) {
    return x[(item * rows + r) * cols + c] * v[item * cols + c];
  };
  return BatchRowSums(stream, items, rows, cols, term, out);
}

cudaError_t TransposedTimesVectors(cudaStream_t stream, int64_t items, int64_t rows, int64_t cols, const float* x,
                                   const double* v, double* out) {
  const auto term = [=] __device__(int64_t item, int64_t r, int64_t c) {
    return x[(item * rows + r) * cols + c] * v[item * rows + r];
  };
  return BatchColumnSums(stream, items, rows, cols, term, out);
}

// A thread a product: there are many, and those of a warp read the same vector and neighbouring ones.
cudaError_t InnerProducts(cudaStream_t stream, const Lines& lines, const float* values, double* products) {
  const Lines v = lines;
  return Loop(stream, v.count * v.count, [=] __device__(int64_t at) {
    const int64_t i = at / v.count;
    const int64_t j = at % v.count;
    if (i > j) return;
    const float* left = values + i * v.line_stride;
    const float* right = values + j * v.line_stride;
    double sum = 0.0;
    for (int64_t k = 0; k < v.length; ++k) {
      const double element = left[k * v.element_stride];
      sum = sum + element * right[k * v.element_stride];
    }
    products[i * v.count + j] = sum;
    products[j * v.count + i] = sum;
  });
}

}  // namespace dmuon::kernels::cuda
