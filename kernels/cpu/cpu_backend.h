// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>

#include "kernels/backend.h"

namespace dmuon::kernels {

// The supported CPU path: matrix products by OpenBLAS (products.h), element-wise work in loops that
// the compiler vectorises (elementwise.h). Its results do not depend on the number of threads that
// BindThread grants. Holds no state; the first call in a process prepares the BLAS library.
std::unique_ptr<Backend> MakeCpuBackend();

}  // namespace dmuon::kernels
