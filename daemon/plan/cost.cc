// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include "daemon/plan/cost.h"

#include <cstdint>

#include "daemon/plan/methods.h"
#include "daemon/plan/optimizers.h"
#include "kernels/coefficients.h"

namespace dmuon::plan {
namespace {

constexpr int64_t kFloatBytes = sizeof(float);

// Elements of optimizer state beside the weight.
int64_t StateElements(const kernels::Optimizer& optimizer, const kernels::MatrixShape& matrix) {
  int64_t elements = 0;
  for (const kernels::StateTensor& tensor : kernels::StateTensors(optimizer, matrix.rows, matrix.cols)) {
    elements += tensor.rows * tensor.cols;
  }
  return elements;
}

}  // namespace

double UnitSeconds(const v1::Group& group, const std::vector<kernels::MatrixShape>& matrices, const SlotSpeed& speed) {
  const kernels::Optimizer optimizer = ToOptimizer(group);
  double seconds = speed.seconds_per_unit;
  for (const kernels::MatrixShape& matrix : matrices) {
    seconds += kernels::ElementwiseBytes(matrix.rows * matrix.cols, StateElements(optimizer, matrix)) /
               speed.bytes_per_second;
    if (optimizer.orthogonalizer == kernels::Orthogonalizer::kTopK) {
      const kernels::TopKOperations operations =
          kernels::TopKFlops(matrix.rows, matrix.cols, LargestRank(optimizer, matrix));
      seconds += operations.products / speed.flops_per_second + operations.small / speed.small_flops_per_second;
    }
    if (optimizer.orthogonalizer != kernels::Orthogonalizer::kNewtonSchulz) continue;
    const auto [rows, cols] = OrthogonalizedShape(optimizer, matrix);
    seconds += kernels::NewtonSchulzWork(ChooseMethod(group, matrix), rows, cols, optimizer.newton_schulz.iterations) /
               speed.flops_per_second;
  }
  return seconds;
}

int64_t StateBytes(const v1::Group& group, const std::vector<kernels::MatrixShape>& matrices) {
  const kernels::Optimizer optimizer = ToOptimizer(group);
  int64_t elements = 0;
  for (const kernels::MatrixShape& matrix : matrices) {
    elements += matrix.rows * matrix.cols + StateElements(optimizer, matrix);
  }
  return kFloatBytes * elements;
}

int64_t UnitBytes(const v1::Group& group, const std::vector<kernels::MatrixShape>& matrices) {
  int64_t gradient = 0;
  for (const kernels::MatrixShape& matrix : matrices) gradient += matrix.rows * matrix.cols;
  return StateBytes(group, matrices) + kFloatBytes * gradient;
}

}  // namespace dmuon::plan
