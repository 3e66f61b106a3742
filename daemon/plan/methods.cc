// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/plan/methods.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "daemon/plan/optimizers.h"
#include "kernels/coefficients.h"

namespace dmuon::plan {

kernels::MatrixShape OrthogonalizedShape(const kernels::Optimizer& optimizer, const kernels::MatrixShape& matrix) {
  kernels::MatrixShape shape = matrix;
  int64_t& shorter = shape.rows <= shape.cols ? shape.rows : shape.cols;
  const double selected = std::ceil(optimizer.selected * static_cast<double>(shorter));
  shorter = std::max<int64_t>(1, static_cast<int64_t>(selected));
  return shape;
}

int64_t LargestRank(const kernels::Optimizer& optimizer, const kernels::MatrixShape& matrix) {
  const kernels::TopK& top_k = optimizer.top_k;
  const int64_t s = std::min(matrix.rows, matrix.cols);
  return std::max(kernels::RankAt(top_k, 0, s), kernels::RankAt(top_k, top_k.rank_steps, s));
}

std::vector<kernels::Method> AllowedMethods(const v1::Group& group) {
  const kernels::Optimizer optimizer = ToOptimizer(group);
  if (optimizer.orthogonalizer != kernels::Orthogonalizer::kNewtonSchulz) return {kernels::Method()};
  std::vector<kernels::Method> methods;
  for (int i = 0; i < kernels::kMethods; ++i) {
    const kernels::Method method = kernels::MethodAt(i);
    if (!kernels::IsProven(optimizer.newton_schulz, method)) continue;
    const bool bf16 = group.muon().precision() == v1::PRECISION_BF16;
    const bool any = group.muon().precision() == v1::PRECISION_AUTO;
    if (any || bf16 == (method.precision == kernels::Precision::kBFloat16)) methods.push_back(method);
  }
  return methods;
}

kernels::Method ChooseMethod(const v1::Group& group, const kernels::MatrixShape& matrix) {
  constexpr double kWorthIt = 0.95;
  const kernels::Optimizer optimizer = ToOptimizer(group);
  const auto [rows, cols] = OrthogonalizedShape(optimizer, matrix);
  const int iterations = optimizer.newton_schulz.iterations;
  const kernels::Precision precision = group.muon().precision() == v1::PRECISION_BF16 ? kernels::Precision::kBFloat16
                                                                                      : kernels::Precision::kFloat32;
  const kernels::Method gram{kernels::Form::kGram, precision};
  const kernels::Method standard{kernels::Form::kStandard, precision};
  if (!kernels::IsProven(optimizer.newton_schulz, gram)) return standard;
  const double gram_work = kernels::NewtonSchulzWork(gram, rows, cols, iterations);
  return gram_work < kWorthIt * kernels::NewtonSchulzWork(standard, rows, cols, iterations) ? gram : standard;
}

v1::Method ToProto(const kernels::Method& method) {
  v1::Method out;
  out.set_form(method.form == kernels::Form::kGram ? v1::FORM_GRAM : v1::FORM_STANDARD);
  out.set_precision(method.precision == kernels::Precision::kBFloat16 ? v1::PRECISION_BF16 : v1::PRECISION_FP32);
  return out;
}

kernels::Method FromProto(const v1::Method& method) {
  return {method.form() == v1::FORM_GRAM ? kernels::Form::kGram : kernels::Form::kStandard,
          method.precision() == v1::PRECISION_BF16 ? kernels::Precision::kBFloat16 : kernels::Precision::kFloat32};
}

}  // namespace dmuon::plan
