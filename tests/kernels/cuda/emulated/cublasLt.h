// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The part of cuBLASLt that kernels/cuda uses, on the CPU in plain loops: fp32 or bf16 operands, fp32 sums.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda_runtime_api.h"

enum cublasStatus_t {
  CUBLAS_STATUS_SUCCESS = 0,
  CUBLAS_STATUS_ALLOC_FAILED = 3,
  CUBLAS_STATUS_INVALID_VALUE = 7,
  CUBLAS_STATUS_NOT_SUPPORTED = 15,
};
enum cublasOperation_t { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 };
enum cublasComputeType_t { CUBLAS_COMPUTE_32F = 68 };
enum cudaDataType { CUDA_R_32F = 0, CUDA_R_16BF = 14 };
enum cublasLtPointerMode_t { CUBLASLT_POINTER_MODE_HOST = 0, CUBLASLT_POINTER_MODE_DEVICE = 1 };
enum cublasLtMatmulDescAttributes_t {
  CUBLASLT_MATMUL_DESC_POINTER_MODE = 2,
  CUBLASLT_MATMUL_DESC_TRANSA = 3,
  CUBLASLT_MATMUL_DESC_TRANSB = 4,
};
enum cublasLtMatrixLayoutAttribute_t {
  CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT = 5,
  CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET = 6,
};
enum cublasLtMatmulPreferenceAttributes_t {
  CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1,
  CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3,
};
inline constexpr uint32_t CUBLASLT_REDUCTION_SCHEME_NONE = 0;

struct cublasLtContext {};
struct cublasLtMatrixLayoutOpaque_t {
  cudaDataType type;
  uint64_t rows, cols;
  int64_t stride;
  int32_t batch = 1;
  int64_t next = 0;
};
struct cublasLtMatmulDescOpaque_t {
  cublasOperation_t a = CUBLAS_OP_N, b = CUBLAS_OP_N;
  cublasLtPointerMode_t scalars = CUBLASLT_POINTER_MODE_HOST;
};
struct cublasLtMatmulPreferenceOpaque_t {};
struct cublasLtMatmulAlgo_t {
  int id;
};
struct cublasLtMatmulHeuristicResult_t {
  cublasLtMatmulAlgo_t algo;
  size_t workspaceSize;
  cublasStatus_t state;
};
using cublasLtHandle_t = cublasLtContext*;
using cublasLtMatrixLayout_t = cublasLtMatrixLayoutOpaque_t*;
using cublasLtMatmulDesc_t = cublasLtMatmulDescOpaque_t*;
using cublasLtMatmulPreference_t = cublasLtMatmulPreferenceOpaque_t*;

DMUON_EMULATED const char* cublasLtGetStatusName(cublasStatus_t status);
DMUON_EMULATED const char* cublasLtGetStatusString(cublasStatus_t status);
DMUON_EMULATED cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle);
DMUON_EMULATED cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle);
DMUON_EMULATED cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                                         uint64_t rows, uint64_t cols, int64_t stride);
DMUON_EMULATED cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                               cublasLtMatrixLayoutAttribute_t attribute,
                                                               const void* value, size_t bytes);
DMUON_EMULATED cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout);
DMUON_EMULATED cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* descriptor, cublasComputeType_t compute,
                                                       cudaDataType scale);
DMUON_EMULATED cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t descriptor);
DMUON_EMULATED cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t descriptor,
                                                             cublasLtMatmulDescAttributes_t attribute,
                                                             const void* value, size_t bytes);
DMUON_EMULATED cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference);
DMUON_EMULATED cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference);
DMUON_EMULATED cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                                   cublasLtMatmulPreferenceAttributes_t attribute,
                                                                   const void* value, size_t bytes);
DMUON_EMULATED cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t descriptor, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
    cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int wanted,
    cublasLtMatmulHeuristicResult_t* results, int* found);
// Takes any batch, until BatchesAreTaken(false).
DMUON_EMULATED cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t descriptor,
                                                      cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                                      cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                                      const cublasLtMatmulAlgo_t* algorithm,
                                                      cublasLtMatmulHeuristicResult_t* result);
DMUON_EMULATED cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t descriptor,
                                             const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                                             const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                                             const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                                             cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm,
                                             void* workspace, size_t workspace_bytes, cudaStream_t stream);

namespace dmuon::emulated {
DMUON_EMULATED void BatchesAreTaken(bool taken);
// Calls of cublasLtMatmul so far.
DMUON_EMULATED int64_t Products();
}  // namespace dmuon::emulated
