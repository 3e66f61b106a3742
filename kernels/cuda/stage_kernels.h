// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The stages of optimizers on the device, one struct of factors and addresses a kernel. The formulas, and where
// they round to fp32, are those of cpu/stages.cc; `clip` is Backend's. Each function launches on `stream` and
// returns the launch's error; all pointers are device memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/matrix_kernels.h"

namespace dmuon::kernels::cuda {

// All stages before Newton-Schulz, for element `i` of `count`:
//   u = of_gradient*g + of_momentum*m, then + of_slow*e, then / (sqrt(next second moment) + eps), then its sign
struct DirectionArgs {
  int64_t count;
  double of_gradient, of_momentum, of_slow;
  double clip, beta2, eps;  // of the second moment
  bool sign;
  const float* gradient;
  const float* momentum;
  const float* slow_gradient;  // null: no such stage
  const float* second_moment;  // element-wise, of the gradient; null: no such stage
  float* update;
};
cudaError_t Direction(cudaStream_t stream, const DirectionArgs& args);

// Factored second moments. next: rows numbers, then cols: beta2*moment + (1-beta2)*sum of (clip*g)^2 of the line.
struct FactoredArgs {
  int64_t rows, cols;
  double clip, beta2, eps;
  const float* gradient;
  const float* row_moment;
  const float* column_moment;
  double* next;
};
cudaError_t NextFactors(cudaStream_t stream, const FactoredArgs& args);
// u /= sqrt(row*column / max(sum of columns, eps)) + eps, then its sign. *total: room for one number.
cudaError_t DivideByFactors(cudaStream_t stream, const FactoredArgs& args, bool sign, double* partials, double* total,
                            float* update);
// Rounds `next` to the moments.
cudaError_t CommitFactors(cudaStream_t stream, int64_t rows, int64_t cols, const double* next, float* row_moment,
                          float* column_moment);

// The second moment of the update: v <- beta2*v + (1-beta2)*square, u /= sqrt(v) + eps. By rows: one v a row, of
// the mean of its squares.
struct NormalizeArgs {
  int64_t rows, cols;
  double beta2, eps;
  float* second_moment;
  float* update;
};
cudaError_t NormalizeElements(cudaStream_t stream, const NormalizeArgs& args);
cudaError_t NormalizeRows(cudaStream_t stream, const NormalizeArgs& args);

// Dion2. sums[line] = sum of |m + clip*g|: of rows, or of columns.
cudaError_t LineSums(cudaStream_t stream, int64_t rows, int64_t cols, bool of_rows, double clip, const float* gradient,
                     const float* momentum, double* sums);
// The selected lines of a unit. The matrix of them alone has `selected` rows (columns). lines[k] is the k-th
// one's number; positions[line] is k, or -1.
struct SelectionArgs {
  int64_t rows, cols;
  bool of_rows;
  int64_t selected;
  const int64_t* lines;
  const int64_t* positions;
};
// update = m + clip*g of them.
cudaError_t SelectDirection(cudaStream_t stream, const SelectionArgs& selection, double clip, const float* gradient,
                            const float* momentum, float* update);

// All state but the factored and the update's second moment, and the weight:
//   v <- beta2*v + (1-beta2)*(clip*g)^2
//   m <- keep*m + of_gradient*g, then + of_slow*e;  e <- slow_keep*e + slow_take*g
//   w <- (cautious where w*u < 0 ? 1 : decay)*w - rate*u
struct CommitArgs {
  int64_t count;
  double clip, beta2;
  double keep, of_gradient, of_slow;
  double slow_keep, slow_take;
  double decay, rate;
  bool cautious;
  const float* gradient;
  const float* update;
  float* second_moment;  // null: no such stage
  float* momentum;
  float* slow_gradient;  // null: no such stage
  float* weight;
};
cudaError_t Commit(cudaStream_t stream, const CommitArgs& args);
// The same where lines are selected: u is zero where they are not, and where they are m is then multiplied by
// `momentum_decay`.
cudaError_t CommitSelected(cudaStream_t stream, const CommitArgs& args, const SelectionArgs& selection,
                           double momentum_decay);

// AdamW, as Backend::Apply. Factors as AdamFactors.
struct AdamArgs {
  int64_t count;
  double clip, beta1, beta2, decay, rate, inverse_root, eps;
  bool cautious;
  const float* gradient;
  float* momentum;
  float* second_moment;
  float* weight;
};
cudaError_t Adam(cudaStream_t stream, const AdamArgs& args);

}  // namespace dmuon::kernels::cuda
