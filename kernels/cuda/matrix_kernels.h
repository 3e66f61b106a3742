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
// to = factor * from; the two may be the same.
cudaError_t Multiply(cudaStream_t stream, int64_t count, double factor, const float* from, float* to);

// Arrays of one size, each `stride` elements behind the one before.
struct Batch {
  int64_t items;
  int64_t stride;
};
inline constexpr size_t kLargestBatch = 32;
// A factor for each; zero for those that stay as they are.
struct BatchFactors {
  double of[kLargestBatch];
};

// results: one of each array, of its first `count` elements; `partials`: kPartialStats for each.
cudaError_t Measure(cudaStream_t stream, const Batch& batch, int64_t count, const float* values, DeviceStats* partials,
                    DeviceStats* results);
cudaError_t SumSquares(cudaStream_t stream, const Batch& batch, int64_t count, const double* values, double* partials,
                       double* results);

// A matrix inside a larger one of zeros, both row-major.
struct Padding {
  int64_t rows, cols;
  int64_t padded_rows, padded_cols;
};
// to = factor * from, with zeros around it; and back, without the factor. The padded ones are the batch, the others
// lie one behind the other. Where the factor is zero, the padded one is zero, and nothing is put back.
cudaError_t Pad(cudaStream_t stream, const Padding& padding, const Batch& batch, const BatchFactors& factors,
                const float* from, float* to);
cudaError_t Unpad(cudaStream_t stream, const Padding& padding, const Batch& batch, const BatchFactors& factors,
                  const float* from, float* to);

// The first `count` elements of the diagonal of each of a batch of square matrices, whose rows are `row_stride` apart.
struct Diagonals {
  Batch batch;
  int64_t count, row_stride;
};
// What a product takes from device memory.
struct ProductScalars {
  float alpha, beta;
};
// The multiple of the identity that belongs to each of a batch of squares: in device memory, or the same for all.
struct Shift {
  double of_all;
  const ProductScalars* of_each;  // the beta; null: of_all
};
// element += shift.
cudaError_t AddToDiagonal(cudaStream_t stream, const Diagonals& diagonals, const Shift& shift, float* squares);
// The mean of each diagonal, rounded, goes over into the shift: after = 1 and before + mean; element -= mean.
// `sums`: one for each square; `before` may lie at `after`.
cudaError_t TakeMeans(cudaStream_t stream, const Diagonals& diagonals, float* squares, double* partials, double* sums,
                      const Shift& before, ProductScalars* after);
// Of squares with shifts, (left + l*I) * (right + r*I), what a product of left and right lacks: out += l*right + r*left
// + l*r*I.
cudaError_t AddShifts(cudaStream_t stream, const Diagonals& diagonals, const float* left, const Shift& left_shift,
                      const float* right, const Shift& right_shift, float* out);
// The same for a*I + b*(gram + m*I) + c*(gram + m*I)^2, where b*gram + c*gram^2 is there: out += 2*c*m*gram, and
// shifts = 1 and a + b*m + c*m^2.
cudaError_t AddPolyShifts(cudaStream_t stream, const Diagonals& diagonals, double a, double b, double c,
                          const float* grams, const Shift& gram_shift, float* out, ProductScalars* shifts);
// Row-major: square(j, i) = square(i, j) for j > i.
cudaError_t MirrorUpper(cudaStream_t stream, int64_t size, float* square);

// Of each row-major rows x cols matrix x, and its vector: out = x*v, and out = x^T*v. All lie one behind the other.
cudaError_t TimesVectors(cudaStream_t stream, int64_t items, int64_t rows, int64_t cols, const float* x, const double* v,
                         double* out);
cudaError_t TransposedTimesVectors(cudaStream_t stream, int64_t items, int64_t rows, int64_t cols, const float* x,
                                   const double* v, double* out);

// Vectors of fp32.
struct Lines {
  int64_t count, length;
  int64_t line_stride, element_stride;
};
// The inner product of each with each, count x count; each the sum of its terms from the first on.
cudaError_t InnerProducts(cudaStream_t stream, const Lines& lines, const float* values, double* products);

}  // namespace dmuon::kernels::cuda
