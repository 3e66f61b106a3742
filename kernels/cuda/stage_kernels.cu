// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda/loops.cuh"
#include "kernels/cuda/stage_kernels.h"

namespace dmuon::kernels::cuda {
namespace {

__device__ double Wide(float value) { return static_cast<double>(value); }
__device__ float Narrow(double value) { return static_cast<float>(value); }
__device__ double Square(double value) { return value * value; }

__device__ double NextMoment(double beta2, double moment, double square) {
  return beta2 * moment + (1.0 - beta2) * square;
}

__device__ float Sign(float u) { return u > 0.0F ? 1.0F : (u < 0.0F ? -1.0F : 0.0F); }

__device__ float MovedWeight(const CommitArgs& a, float weight, float update) {
  const double wide = Wide(weight);
  const double step = Wide(update);
  return Narrow((!a.cautious || wide * step >= 0.0 ? a.decay : 1.0) * wide - a.rate * step);
}

// A block takes a row: its sum, its moment, its elements.
__global__ void NormalizeRowsKernel(NormalizeArgs a) {
  for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
    float* row = a.update + r * a.cols;
    double sum = 0.0;
    for (int64_t c = threadIdx.x; c < a.cols; c += kThreads) sum = sum + Square(Wide(row[c]));
    const double norm = sqrt(BlockSum(sum));
    const double next =
        NextMoment(a.beta2, Wide(a.second_moment[r]), norm * norm / static_cast<double>(a.cols));
    __syncthreads();  // all have read the moment
    if (threadIdx.x == 0) a.second_moment[r] = Narrow(next);
    const double divisor = sqrt(next) + a.eps;
    for (int64_t c = threadIdx.x; c < a.cols; c += kThreads) row[c] = Narrow(Wide(row[c]) / divisor);
  }
}

}  // namespace

cudaError_t Direction(cudaStream_t stream, const DirectionArgs& args) {
  const DirectionArgs a = args;
  return Loop(stream, a.count, [=] __device__(int64_t i) {
    double u = a.of_gradient * Wide(a.gradient[i]) + a.of_momentum * Wide(a.momentum[i]);
    if (a.slow_gradient != nullptr) u = Wide(Narrow(u)) + a.of_slow * Wide(a.slow_gradient[i]);
    if (a.second_moment != nullptr) {
      const double moment = NextMoment(a.beta2, Wide(a.second_moment[i]), Square(a.clip * Wide(a.gradient[i])));
      u /= sqrt(moment) + a.eps;
    }
    a.update[i] = a.sign ? Sign(Narrow(u)) : Narrow(u);
  });
}

cudaError_t NextFactors(cudaStream_t stream, const FactoredArgs& args) {
  const FactoredArgs a = args;
  const double factor = a.clip * a.clip;
  const auto square = [=] __device__(int64_t r, int64_t c) { return factor * Square(Wide(a.gradient[r * a.cols + c])); };
  if (const cudaError_t error = RowSums(stream, a.rows, a.cols, square, a.next); error != cudaSuccess) return error;
  if (const cudaError_t error = ColumnSums(stream, a.rows, a.cols, square, a.next + a.rows); error != cudaSuccess) {
    return error;
  }
  return Loop(stream, a.rows + a.cols, [=] __device__(int64_t i) {
    const float moment = i < a.rows ? a.row_moment[i] : a.column_moment[i - a.rows];
    a.next[i] = NextMoment(a.beta2, Wide(moment), a.next[i]);
  });
}

cudaError_t DivideByFactors(cudaStream_t stream, const FactoredArgs& args, bool sign, double* partials, double* total,
                            float* update) {
  const FactoredArgs a = args;
  const double* columns = a.next + a.rows;
  if (const cudaError_t error =
          Sum(stream, a.cols, [=] __device__(int64_t i) { return columns[i]; }, partials, total);
      error != cudaSuccess) {
    return error;
  }
  const auto invert = [=] __device__(int64_t) { *total = 1.0 / fmax(*total, a.eps); };
  if (const cudaError_t error = Loop(stream, 1, invert); error != cudaSuccess) return error;
  return Loop(stream, a.rows * a.cols, [=] __device__(int64_t i) {
    const double row = a.next[i / a.cols] * *total;
    const float u = Narrow(Wide(update[i]) / (sqrt(row * columns[i % a.cols]) + a.eps));
    update[i] = sign ? Sign(u) : u;
  });
}

cudaError_t CommitFactors(cudaStream_t stream, int64_t rows, int64_t cols, const double* next, float* row_moment,
                          float* column_moment) {
  return Loop(stream, rows + cols, [=] __device__(int64_t i) {
    (i < rows ? row_moment[i] : column_moment[i - rows]) = Narrow(next[i]);
  });
}

cudaError_t NormalizeElements(cudaStream_t stream, const NormalizeArgs& args) {
  const NormalizeArgs a = args;
  return Loop(stream, a.rows * a.cols, [=] __device__(int64_t i) {
    const double next = NextMoment(a.beta2, Wide(a.second_moment[i]), Square(Wide(a.update[i])));
    a.second_moment[i] = Narrow(next);
    a.update[i] = Narrow(Wide(a.update[i]) / (sqrt(next) + a.eps));
  });
}

cudaError_t NormalizeRows(cudaStream_t stream, const NormalizeArgs& args) {
  return Launch(stream, Blocks(args.rows, 1, kLoopBlocks), kThreads, NormalizeRowsKernel, args);
}

cudaError_t LineSums(cudaStream_t stream, int64_t rows, int64_t cols, bool of_rows, double clip, const float* gradient,
                     const float* momentum, double* sums) {
  const auto term = [=] __device__(int64_t r, int64_t c) {
    const int64_t i = r * cols + c;
    return fabs(Wide(momentum[i]) + clip * Wide(gradient[i]));
  };
  return of_rows ? RowSums(stream, rows, cols, term, sums) : ColumnSums(stream, rows, cols, term, sums);
}

cudaError_t SelectDirection(cudaStream_t stream, const SelectionArgs& selection, double clip, const float* gradient,
                            const float* momentum, float* update) {
  const SelectionArgs s = selection;
  const int64_t count = s.selected * (s.of_rows ? s.cols : s.rows);
  return Loop(stream, count, [=] __device__(int64_t i) {
    const int64_t from = s.of_rows ? s.lines[i / s.cols] * s.cols + i % s.cols
                                   : i / s.selected * s.cols + s.lines[i % s.selected];
    update[i] = Narrow(clip * Wide(gradient[from]) + Wide(momentum[from]));
  });
}

cudaError_t Commit(cudaStream_t stream, const CommitArgs& args) {
  const CommitArgs a = args;
  return Loop(stream, a.count, [=] __device__(int64_t i) {
    const double g = Wide(a.gradient[i]);
    if (a.second_moment != nullptr) {
      a.second_moment[i] = Narrow(NextMoment(a.beta2, Wide(a.second_moment[i]), Square(a.clip * g)));
    }
    float m = Narrow(a.keep * Wide(a.momentum[i]) + a.of_gradient * g);
    if (a.slow_gradient != nullptr) {
      const double e = Wide(a.slow_gradient[i]);
      m = Narrow(Wide(m) + a.of_slow * e);
      a.slow_gradient[i] = Narrow(a.slow_keep * e + a.slow_take * g);
    }
    a.momentum[i] = m;
    a.weight[i] = MovedWeight(a, a.weight[i], a.update[i]);
  });
}

cudaError_t CommitSelected(cudaStream_t stream, const CommitArgs& args, const SelectionArgs& selection,
                           double momentum_decay) {
  const CommitArgs a = args;
  const SelectionArgs s = selection;
  return Loop(stream, a.count, [=] __device__(int64_t i) {
    const int64_t r = i / s.cols;
    const int64_t c = i % s.cols;
    const int64_t position = s.positions[s.of_rows ? r : c];
    const float m = Narrow(a.keep * Wide(a.momentum[i]) + a.of_gradient * Wide(a.gradient[i]));
    float u = 0.0F;
    if (position >= 0) u = a.update[s.of_rows ? position * s.cols + c : r * s.selected + position];
    a.momentum[i] = position >= 0 ? Narrow(momentum_decay * Wide(m)) : m;
    a.weight[i] = MovedWeight(a, a.weight[i], u);
  });
}

cudaError_t Adam(cudaStream_t stream, const AdamArgs& args) {
  const AdamArgs a = args;
  return Loop(stream, a.count, [=] __device__(int64_t i) {
    const double g = a.clip * Wide(a.gradient[i]);
    const double moment = a.beta1 * Wide(a.momentum[i]) + (1.0 - a.beta1) * g;
    const double square = NextMoment(a.beta2, Wide(a.second_moment[i]), g * g);
    const double step = moment / (sqrt(square) * a.inverse_root + a.eps);
    const double weight = Wide(a.weight[i]);
    a.momentum[i] = Narrow(moment);
    a.second_moment[i] = Narrow(square);
    a.weight[i] = Narrow((a.cautious && weight * step < 0.0 ? 1.0 : a.decay) * weight - a.rate * step);
  });
}

}  // namespace dmuon::kernels::cuda
