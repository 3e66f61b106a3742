// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include <atomic>
#include <cstring>
#include <vector>

#include "cublasLt.h"

namespace {

float Element(const void* data, cudaDataType type, size_t at) {
  if (type == CUDA_R_32F) return static_cast<const float*>(data)[at];
  const uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t*>(data)[at]) << 16;
  float value = 0.0F;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// op(matrix), rows x cols by columns without gaps.
std::vector<float> Operand(const void* data, const cublasLtMatrixLayoutOpaque_t& layout, cublasOperation_t operation,
                           size_t rows, size_t cols) {
  std::vector<float> out(rows * cols);
  const auto stride = static_cast<size_t>(layout.stride);
  for (size_t c = 0; c < cols; ++c) {
    for (size_t r = 0; r < rows; ++r) {
      out[c * rows + r] = Element(data, layout.type, operation == CUBLAS_OP_T ? r * stride + c : c * stride + r);
    }
  }
  return out;
}

// sums += scale * column. Both are copies made here, and this is where the time goes.
__attribute__((no_sanitize("address", "undefined"))) void AddColumn(size_t count, float scale, const float* column,
                                                                    float* sums) {
  for (size_t i = 0; i < count; ++i) sums[i] += scale * column[i];
}

bool Aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 256 == 0; }

const void* Item(const void* data, const cublasLtMatrixLayoutOpaque_t& layout, int32_t item) {
  return static_cast<const char*>(data) + item * layout.next * (layout.type == CUDA_R_32F ? 4 : 2);
}

// Of by columns rows x cols, without what lies behind the last column.
bool OnDevice(const void* data, const cublasLtMatrixLayoutOpaque_t& layout) {
  const auto elements = static_cast<size_t>(layout.stride) * (layout.cols - 1) + layout.rows;
  return dmuon::emulated::IsDeviceMemory(data, elements * (layout.type == CUDA_R_32F ? 4 : 2));
}

struct Product {
  cublasLtMatmulDescOpaque_t descriptor;
  const void* a;
  cublasLtMatrixLayoutOpaque_t a_layout;
  const void* b;
  cublasLtMatrixLayoutOpaque_t b_layout;
  const float* c;
  cublasLtMatrixLayoutOpaque_t c_layout;
  float* d;
  cublasLtMatrixLayoutOpaque_t d_layout;
};

// Memory may have been given back since the call, where it is a graph's.
bool IsThere(const Product& p) {
  return OnDevice(p.a, p.a_layout) && OnDevice(p.b, p.b_layout) && OnDevice(p.c, p.c_layout) &&
         OnDevice(p.d, p.d_layout);
}

void Multiply(const Product& p, float alpha, float beta) {
  const size_t rows = p.d_layout.rows;
  const size_t depth = p.descriptor.a == CUBLAS_OP_T ? p.a_layout.rows : p.a_layout.cols;
  const std::vector<float> left = Operand(p.a, p.a_layout, p.descriptor.a, rows, depth);
  const std::vector<float> right = Operand(p.b, p.b_layout, p.descriptor.b, depth, p.d_layout.cols);
  std::vector<float> sums(rows);
  for (size_t j = 0; j < p.d_layout.cols; ++j) {
    sums.assign(rows, 0.0F);
    for (size_t k = 0; k < depth; ++k) {
      AddColumn(rows, right[j * depth + k], left.data() + k * rows, sums.data());
    }
    const float* base = p.c + j * static_cast<size_t>(p.c_layout.stride);
    float* out = p.d + j * static_cast<size_t>(p.d_layout.stride);
    for (size_t i = 0; i < rows; ++i) out[i] = alpha * sums[i] + (beta == 0.0F ? 0.0F : beta * base[i]);
  }
}

std::atomic<bool> batches_are_taken = true;
std::atomic<int64_t> products = 0;

template <typename T>
cublasStatus_t Set(T& to, const void* value, size_t bytes) {
  if (bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  to = *static_cast<const T*>(value);
  return CUBLAS_STATUS_SUCCESS;
}

template <typename T>
cublasStatus_t Delete(T* object) {
  delete object;
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

void dmuon::emulated::BatchesAreTaken(bool taken) { batches_are_taken = taken; }
int64_t dmuon::emulated::Products() { return products; }

const char* cublasLtGetStatusName(cublasStatus_t /*status*/) { return "CUBLAS_STATUS"; }
const char* cublasLtGetStatusString(cublasStatus_t /*status*/) { return "emulated"; }
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return Delete(handle); }
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows,
                                          uint64_t cols, int64_t stride) {
  if (rows == 0 || cols == 0 || stride < static_cast<int64_t>(rows)) return CUBLAS_STATUS_INVALID_VALUE;
  *layout = new cublasLtMatrixLayoutOpaque_t{type, rows, cols, stride};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                size_t bytes) {
  return attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT ? Set(layout->batch, value, bytes)
                                                         : Set(layout->next, value, bytes);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return Delete(layout); }
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* descriptor, cublasComputeType_t /*compute*/,
                                        cudaDataType /*scale*/) {
  *descriptor = new cublasLtMatmulDescOpaque_t;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t descriptor) { return Delete(descriptor); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t descriptor,
                                              cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              size_t bytes) {
  if (attribute == CUBLASLT_MATMUL_DESC_POINTER_MODE) return Set(descriptor->scalars, value, bytes);
  return Set(attribute == CUBLASLT_MATMUL_DESC_TRANSA ? descriptor->a : descriptor->b, value, bytes);
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new cublasLtMatmulPreferenceOpaque_t;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) { return Delete(preference); }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t /*preference*/,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* /*value*/, size_t bytes) {
  const size_t expected = attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES ? sizeof(size_t) : sizeof(uint32_t);
  return bytes == expected ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t descriptor,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t /*c*/, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t /*preference*/, int /*wanted*/,
                                              cublasLtMatmulHeuristicResult_t* results, int* found) {
  // As the library, which finds nothing for shapes that do not fit together.
  const bool ta = descriptor->a == CUBLAS_OP_T;
  const bool tb = descriptor->b == CUBLAS_OP_T;
  const bool fits = (ta ? a->cols : a->rows) == d->rows && (tb ? b->rows : b->cols) == d->cols &&
                    (ta ? a->rows : a->cols) == (tb ? b->cols : b->rows);
  *found = fits ? 1 : 0;
  results[0] = {{7}, 0, CUBLAS_STATUS_SUCCESS};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t /*descriptor*/,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                       cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  const bool one_batch = a->batch == d->batch && b->batch == d->batch && c->batch == d->batch;
  if (algorithm->id != 7 || !one_batch) return CUBLAS_STATUS_INVALID_VALUE;
  *result = {*algorithm, 0, CUBLAS_STATUS_SUCCESS};
  return batches_are_taken || d->batch == 1 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t descriptor, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t /*workspace_bytes*/,
                              cudaStream_t stream) {
  ++products;
  if (algorithm->id != 7 || !Aligned(workspace)) return CUBLAS_STATUS_INVALID_VALUE;
  std::vector<Product> items;
  for (int32_t item = 0; item < d_layout->batch; ++item) {
    const Product product{*descriptor,
                          Item(a, *a_layout, item),
                          *a_layout,
                          Item(b, *b_layout, item),
                          *b_layout,
                          static_cast<const float*>(Item(c, *c_layout, item)),
                          *c_layout,
                          static_cast<float*>(const_cast<void*>(Item(d, *d_layout, item))),
                          *d_layout};
    if (!Aligned(product.a) || !Aligned(product.b) || !Aligned(product.c) || !Aligned(product.d)) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
    items.push_back(product);
  }
  // The host's scalars are read now, the device's when it is done.
  const bool on_device = descriptor->scalars == CUBLASLT_POINTER_MODE_DEVICE;
  const auto* alphas = static_cast<const float*>(alpha);
  const auto* betas = static_cast<const float*>(beta);
  const float now[] = {on_device ? 0.0F : *alphas, on_device ? 0.0F : *betas};
  const cudaError_t error = dmuon::emulated::Issue(stream, [=, factor = now[0], share = now[1]] {
    for (const Product& product : items) {
      if (!IsThere(product)) return cudaErrorInvalidValue;
      Multiply(product, on_device ? *alphas : factor, on_device ? *betas : share);
    }
    return cudaSuccess;
  });
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}
