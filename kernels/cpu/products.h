// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Matrix products for Newton-Schulz: out = alpha * left * right^T + beta * base.
//
// Depth is cut into stretches of one length. An element is a chain of fused multiply-adds within a
// stretch (micro_kernels.h); beta * base and alpha * each stretch are added up in order. So its bits depend on
// the operands and the precision alone: not on the CPU, the number of threads, or where in the matrix it lies.
// Of a symmetric result only tiles that touch the upper triangle are computed; the rest is mirrored.
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cpu/micro_kernels.h"

namespace dmuon::kernels {

struct Product {
  int64_t rows, cols, depth;  // at least 1 each
  Operand left;   // rows lines of `depth`
  Operand right;  // cols lines of `depth`
  float* out;     // rows x cols, row-major; overlaps nothing below
  float alpha = 1.0F;
  const float* base = nullptr;  // laid out as `out`
  float beta = 0.0F;
  bool symmetric = false;  // the result is known to be
};

// By the calling thread's team (team.h). The operands' panels lie in two buffers of `scratch`, from `first_buffer` on.
void Compute(const Product& product, const MicroKernel& kernel, Scratch& scratch, size_t first_buffer);

}  // namespace dmuon::kernels
