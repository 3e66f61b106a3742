// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Matrix products by cuBLASLt. Operands are fp32, multiplied as such (no TF32), or bf16; sums and results are
// fp32. No algorithm is taken that splits the depth among blocks and sums up afterwards, and the algorithm is
// chosen once for each kind of product, so equal input gives equal bits as long as device and library stay. A batch
// is computed by the algorithm of one product, in one call where the library takes that, and one by one where not.
//
// cuBLAS orders by columns: a row-major p x q buffer is to it q x p, and a symmetric matrix reads both ways.
#pragma once

#include <cublasLt.h>

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "kernels/cuda/matrix_kernels.h"
#include "kernels/cuda/stream.h"
#include "kernels/precision.h"

namespace dmuon::kernels::cuda {

// What decides on the algorithm. By columns: d(rows x cols) = alpha*op(a)*op(b) + beta*c with op(a) rows x depth,
// op(b) depth x cols. Strides are from column to column, that of c is d's.
struct ProductKind {
  bool transpose_a, transpose_b;
  int64_t rows, cols, depth;
  int64_t a_stride, b_stride, d_stride;
  Precision precision;  // of a and b
  bool scalars_on_device = false;

  friend auto operator<=>(const ProductKind&, const ProductKind&) = default;
};

// All addresses are aligned to 256 bytes.
struct ProductOperands {
  const void* a;
  const void* b;
  float alpha;
  float beta;
  const float* c;  // may be null when beta is 0, and may be d
  float* d;
  const ProductScalars* scalars = nullptr;  // in device memory, of each item; in place of alpha and beta
};

// Elements from one item's operand to the next one's, multiples of 128; those of c are d's.
struct ProductBatch {
  int64_t items = 1;
  int64_t a = 0, b = 0, d = 0;

  friend auto operator<=>(const ProductBatch&, const ProductBatch&) = default;
};

// The address of an element.
const void* Element(const void* values, int64_t at, Precision precision);

// The calling thread's products; use with its Stream.
class Products {
 public:
  static Products& OfThread();

  // Errors go to `stream`. With scalars on the device a batch is computed one by one: a call reads one pair.
  void Compute(Stream& stream, const ProductKind& kind, const ProductOperands& operands,
               const ProductBatch& batch = {});

 private:
  template <auto destroy>
  struct Destroy {
    template <typename T>
    void operator()(T* object) const {
      destroy(object);
    }
  };
  using Handle = std::unique_ptr<cublasLtContext, Destroy<cublasLtDestroy>>;
  using Layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Destroy<cublasLtMatrixLayoutDestroy>>;
  using Descriptor = std::unique_ptr<cublasLtMatmulDescOpaque_t, Destroy<cublasLtMatmulDescDestroy>>;
  using Preference = std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, Destroy<cublasLtMatmulPreferenceDestroy>>;
  struct Layouts {
    Layout a, b, d;
  };
  struct Plan {
    Descriptor descriptor;
    Layouts one;
    cublasLtMatmulAlgo_t algorithm;
    std::map<ProductBatch, std::optional<Layouts>> batches;  // none: the library does not take it
  };

  static Layouts MakeLayouts(Stream& stream, const ProductKind& kind, const ProductBatch& batch);
  static Descriptor MakeDescriptor(Stream& stream, const ProductKind& kind);
  void ChooseAlgorithm(Stream& stream, Plan& plan);
  // Null after an error.
  Plan* PlanOf(Stream& stream, const ProductKind& kind);
  // Null when the batch is not to be computed in one call.
  const Layouts* Together(Stream& stream, const ProductKind& kind, const ProductBatch& batch, Plan& plan);
  void Call(Stream& stream, const ProductKind& kind, const Plan& plan, const Layouts& layouts,
            const ProductOperands& operands);

  Handle handle_;
  std::map<ProductKind, Plan> plans_;
};

}  // namespace dmuon::kernels::cuda
