// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Casts, sums, and what Newton-Schulz needs beside products. Each function launches on `stream` and returns the
// launch's error; all pointers are device memory, bf16 numbers are their 16 bits. Element-wise results are
// computed in double (sums of two in fp32) and rounded once, to nearest even, without fused multiply-add.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace dmuon::kernels::cuda {

// What a pass over fp32 numbers finds. `largest`: the bits of the largest magnitude, of which those of infinity
// and NaN are the greatest.
struct DeviceStats {
  double sum_squares;
  uint32_t largest;
};
inline constexpr size_t kPartialStats = 1024;  // room that Measure needs for partial results

cudaError_t CastToFloat(cudaStream_t stream, int64_t count, const uint16_t* from, float* to);
cudaError_t CastToBf16(cudaStream_t stream, int64_t count, const float* from, uint16_t* to);
// to += from.
cudaError_t Add(cudaStream_t stream, int64_t count, const float* from, float* to);
cudaError_t Add(cudaStream_t stream, int64_t count, const uint16_t* from, float* to);
// to += factor * from.
cudaError_t AddMultiple(cudaStream_t stream, int64_t count, double factor, const float* from, float* to);
// to = factor * from; the two may be the same.
cudaError_t Multiply(cudaStream_t stream, int64_t count, double factor, const float* from, float* to);

cudaError_t Measure(cudaStream_t stream, int64_t count, const float* values, DeviceStats* partials, DeviceStats* result);
cudaError_t SumSquares(cudaStream_t stream, int64_t count, const double* values, double* partials, double* result);

// A matrix inside a larger one of zeros, both row-major.
struct Padding {
  int64_t rows, cols;
  int64_t padded_rows, padded_cols;
};
// to = factor * from, with zeros around it; and back, without the factor.
cudaError_t Pad(cudaStream_t stream, const Padding& padding, double factor, const float* from, float* to);
cudaError_t Unpad(cudaStream_t stream, const Padding& padding, const float* from, float* to);

// Of a square matrix whose rows are `stride` apart: square(i, i) += value for the first `count` i.
cudaError_t AddToDiagonal(cudaStream_t stream, int64_t count, int64_t stride, double value, float* square);
// *mean = mean of square(i, i) for the first `count` i, and these -= *mean.
cudaError_t TakeMean(cudaStream_t stream, int64_t count, int64_t stride, float* square, double* partials, double* mean);
// Row-major: square(j, i) = square(i, j) for j > i.
cudaError_t MirrorUpper(cudaStream_t stream, int64_t size, float* square);

// Of a row-major rows x cols matrix x: out = x*v, and out = x^T*v.
cudaError_t TimesVector(cudaStream_t stream, int64_t rows, int64_t cols, const float* x, const double* v, double* out);
cudaError_t TransposedTimesVector(cudaStream_t stream, int64_t rows, int64_t cols, const float* x, const double* v,
                                  double* out);

}  // namespace dmuon::kernels::cuda
