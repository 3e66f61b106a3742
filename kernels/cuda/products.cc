// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda/products.h"

#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace dmuon::kernels::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;  // what NVIDIA advises for Hopper

std::string Name(const char* call, const ProductKind& kind) {
  return absl::StrCat(call, " of ", kind.rows, " x ", kind.depth, " and ", kind.depth, " x ", kind.cols, " in ",
                      kind.precision == Precision::kBFloat16 ? "bf16" : "fp32");
}

}  // namespace

Products& Products::OfThread() {
  static thread_local Products products;
  return products;
}

Products::Plan Products::MakePlan(Stream& stream, const ProductKind& kind) {
  Plan plan{};
  const auto layout = [&](cudaDataType type, int64_t rows, int64_t cols, int64_t stride) {
    cublasLtMatrixLayout_t made = nullptr;
    stream.Do(Name("cublasLtMatrixLayoutCreate", kind), [&](cudaStream_t) {
      return cublasLtMatrixLayoutCreate(&made, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(cols), stride);
    });
    return Layout(made);
  };
  const cudaDataType type = kind.precision == Precision::kBFloat16 ? CUDA_R_16BF : CUDA_R_32F;
  // As they lie in memory, before op().
  plan.a = kind.transpose_a ? layout(type, kind.depth, kind.rows, kind.a_stride)
                            : layout(type, kind.rows, kind.depth, kind.a_stride);
  plan.b = kind.transpose_b ? layout(type, kind.cols, kind.depth, kind.b_stride)
                            : layout(type, kind.depth, kind.cols, kind.b_stride);
  plan.d = layout(CUDA_R_32F, kind.rows, kind.cols, kind.d_stride);
  cublasLtMatmulDesc_t descriptor = nullptr;
  stream.Do(Name("cublasLtMatmulDescCreate", kind), [&](cudaStream_t) {
    return cublasLtMatmulDescCreate(&descriptor, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  });
  plan.descriptor.reset(descriptor);
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, bool transpose) {
    const cublasOperation_t operation = transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
    stream.Do(Name("cublasLtMatmulDescSetAttribute", kind), [&](cudaStream_t) {
      return cublasLtMatmulDescSetAttribute(descriptor, attribute, &operation, sizeof(operation));
    });
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, kind.transpose_a);
  set(CUBLASLT_MATMUL_DESC_TRANSB, kind.transpose_b);
  ChooseAlgorithm(stream, plan);
  return plan;
}

void Products::ChooseAlgorithm(Stream& stream, Plan& plan) {
  cublasLtMatmulPreference_t made = nullptr;
  stream.Do("cublasLtMatmulPreferenceCreate", [&](cudaStream_t) { return cublasLtMatmulPreferenceCreate(&made); });
  const Preference preference(made);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    stream.Do("cublasLtMatmulPreferenceSetAttribute", [&](cudaStream_t) {
      return cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value));
    });
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE));
  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  stream.Do("cublasLtMatmulAlgoGetHeuristic", [&](cudaStream_t) {
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle_.get(), plan.descriptor.get(), plan.a.get(), plan.b.get(), plan.d.get(),
                                       plan.d.get(), preference.get(), 1, &best, &found);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    return found == 0 ? CUBLAS_STATUS_NOT_SUPPORTED : best.state;
  });
  plan.algorithm = best.algo;
}

void Products::Compute(Stream& stream, const ProductKind& kind, const ProductOperands& operands) {
  if (handle_ == nullptr) {
    cublasLtHandle_t made = nullptr;
    stream.Do("cublasLtCreate", [&](cudaStream_t) { return cublasLtCreate(&made); });
    handle_.reset(made);
  }
  auto plan = plans_.find(kind);
  if (plan == plans_.end()) {
    Plan made = MakePlan(stream, kind);
    if (!stream.ok()) return;  // a plan that is not whole is not kept
    plan = plans_.emplace(kind, std::move(made)).first;
  }
  void* workspace = stream.Get<std::byte>(Slot::kWorkspace, kWorkspaceBytes);
  stream.Do(Name("cublasLtMatmul", kind), [&](cudaStream_t on) {
    const Plan& p = plan->second;
    const float* c = operands.c == nullptr ? operands.d : operands.c;
    return cublasLtMatmul(handle_.get(), p.descriptor.get(), &operands.alpha, operands.a, p.a.get(), operands.b,
                          p.b.get(), &operands.beta, c, p.d.get(), operands.d, p.d.get(), &p.algorithm, workspace,
                          kWorkspaceBytes, on);
  });
}

}  // namespace dmuon::kernels::cuda
