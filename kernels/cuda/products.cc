// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda/products.h"

#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace dmuon::kernels::cuda {
namespace {

// Then all are forgotten, and chosen again as they were. Top-k has products of new sizes whenever its rank changes.
constexpr size_t kMostPlans = 4096;
constexpr size_t kWorkspaceBytes = size_t{32} << 20;  // what NVIDIA advises for Hopper

std::string Name(const char* call, const ProductKind& kind) {
  return absl::StrCat(call, " of ", kind.rows, " x ", kind.depth, " and ", kind.depth, " x ", kind.cols, " in ",
                      kind.precision == Precision::kBFloat16 ? "bf16" : "fp32");
}

}  // namespace

const void* Element(const void* values, int64_t at, Precision precision) {
  return static_cast<const std::byte*>(values) + at * (precision == Precision::kBFloat16 ? 2 : 4);
}

Products& Products::OfThread() {
  static thread_local Products products;
  return products;
}

Products::Layouts Products::MakeLayouts(Stream& stream, const ProductKind& kind, const ProductBatch& batch) {
  const auto layout = [&](cudaDataType type, int64_t rows, int64_t cols, int64_t stride, int64_t next) {
    cublasLtMatrixLayout_t made = nullptr;
    stream.Do(Name("cublasLtMatrixLayoutCreate", kind), [&](cudaStream_t) {
      return cublasLtMatrixLayoutCreate(&made, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(cols), stride);
    });
    const auto set = [&](cublasLtMatrixLayoutAttribute_t attribute, const auto& value) {
      stream.Do(Name("cublasLtMatrixLayoutSetAttribute", kind), [&](cudaStream_t) {
        return cublasLtMatrixLayoutSetAttribute(made, attribute, &value, sizeof(value));
      });
    };
    if (batch.items > 1) {
      set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<int32_t>(batch.items));
      set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, next);
    }
    return Layout(made);
  };
  const cudaDataType type = kind.precision == Precision::kBFloat16 ? CUDA_R_16BF : CUDA_R_32F;
  // As they lie in memory, before op().
  Layouts made;
  made.a = kind.transpose_a ? layout(type, kind.depth, kind.rows, kind.a_stride, batch.a)
                            : layout(type, kind.rows, kind.depth, kind.a_stride, batch.a);
  made.b = kind.transpose_b ? layout(type, kind.cols, kind.depth, kind.b_stride, batch.b)
                            : layout(type, kind.depth, kind.cols, kind.b_stride, batch.b);
  made.d = layout(CUDA_R_32F, kind.rows, kind.cols, kind.d_stride, batch.d);
  return made;
}

Products::Descriptor Products::MakeDescriptor(Stream& stream, const ProductKind& kind) {
  cublasLtMatmulDesc_t made = nullptr;
  stream.Do(Name("cublasLtMatmulDescCreate", kind),
            [&](cudaStream_t) { return cublasLtMatmulDescCreate(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F); });
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    stream.Do(Name("cublasLtMatmulDescSetAttribute", kind), [&](cudaStream_t) {
      return cublasLtMatmulDescSetAttribute(made, attribute, &value, sizeof(value));
    });
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, kind.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_TRANSB, kind.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (kind.scalars_on_device) set(CUBLASLT_MATMUL_DESC_POINTER_MODE, CUBLASLT_POINTER_MODE_DEVICE);
  return Descriptor(made);
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
        cublasLtMatmulAlgoGetHeuristic(handle_.get(), plan.descriptor.get(), plan.one.a.get(), plan.one.b.get(),
                                       plan.one.d.get(), plan.one.d.get(), preference.get(), 1, &best, &found);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    return found == 0 ? CUBLAS_STATUS_NOT_SUPPORTED : best.state;
  });
  plan.algorithm = best.algo;
}

Products::Plan* Products::PlanOf(Stream& stream, const ProductKind& kind) {
  if (handle_ == nullptr) {
    cublasLtHandle_t made = nullptr;
    stream.Do("cublasLtCreate", [&](cudaStream_t) { return cublasLtCreate(&made); });
    handle_.reset(made);
  }
  auto plan = plans_.find(kind);
  if (plan == plans_.end()) {
    Plan made{};
    made.descriptor = MakeDescriptor(stream, kind);
    made.one = MakeLayouts(stream, kind, {});
    ChooseAlgorithm(stream, made);
    if (plans_.size() >= kMostPlans) plans_.clear();
    if (!stream.ok()) return nullptr;  // a plan that is not whole is not kept
    plan = plans_.emplace(kind, std::move(made)).first;
  }
  return &plan->second;
}

const Products::Layouts* Products::Together(Stream& stream, const ProductKind& kind, const ProductBatch& batch,
                                            Plan& plan) {
  if (kind.scalars_on_device) return nullptr;
  auto found = plan.batches.find(batch);
  if (found == plan.batches.end()) {
    std::optional<Layouts> made = MakeLayouts(stream, kind, batch);
    if (!stream.ok()) return nullptr;
    // Not the heuristic's choice for the batch: how many are worked on together depends on who owns them, and bits
    // must not.
    cublasLtMatmulHeuristicResult_t result{};
    const cublasStatus_t status =
        cublasLtMatmulAlgoCheck(handle_.get(), plan.descriptor.get(), made->a.get(), made->b.get(), made->d.get(),
                                made->d.get(), &plan.algorithm, &result);
    if (status != CUBLAS_STATUS_SUCCESS || result.workspaceSize > kWorkspaceBytes) made.reset();
    found = plan.batches.emplace(batch, std::move(made)).first;
  }
  return found->second ? &*found->second : nullptr;
}

void Products::Call(Stream& stream, const ProductKind& kind, const Plan& plan, const Layouts& layouts,
                    const ProductOperands& operands) {
  void* workspace = stream.Get<std::byte>(Slot::kWorkspace, kWorkspaceBytes);
  stream.Do(Name("cublasLtMatmul", kind), [&](cudaStream_t on) {
    const float* c = operands.c == nullptr ? operands.d : operands.c;
    const float* alpha = kind.scalars_on_device ? &operands.scalars->alpha : &operands.alpha;
    const float* beta = kind.scalars_on_device ? &operands.scalars->beta : &operands.beta;
    return cublasLtMatmul(handle_.get(), plan.descriptor.get(), alpha, operands.a, layouts.a.get(), operands.b,
                          layouts.b.get(), beta, c, layouts.d.get(), operands.d, layouts.d.get(), &plan.algorithm,
                          workspace, kWorkspaceBytes, on);
  });
}

void Products::Compute(Stream& stream, const ProductKind& kind, const ProductOperands& operands,
                       const ProductBatch& batch) {
  Plan* plan = PlanOf(stream, kind);
  if (plan == nullptr) return;
  if (batch.items > 1) {
    if (const Layouts* together = Together(stream, kind, batch, *plan)) {
      return Call(stream, kind, *plan, *together, operands);
    }
  }
  for (int64_t item = 0; item < batch.items; ++item) {
    ProductOperands one = operands;
    one.a = Element(operands.a, item * batch.a, kind.precision);
    one.b = Element(operands.b, item * batch.b, kind.precision);
    if (operands.c != nullptr) one.c = operands.c + item * batch.d;
    one.d = operands.d + item * batch.d;
    if (operands.scalars != nullptr) one.scalars = operands.scalars + item;
    Call(stream, kind, *plan, plan->one, one);
  }
}

}  // namespace dmuon::kernels::cuda
