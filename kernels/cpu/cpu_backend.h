// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>

#include "kernels/backend.h"

namespace dmuon::kernels {

// The supported CPU path: products of our own (products.h), element-wise work in loops that the compiler
// vectorises (stages.h, elementwise.h). Its results do not depend on the number of threads that BindThread
// grants. Holds no state.
std::unique_ptr<Backend> MakeCpuBackend();

}  // namespace dmuon::kernels
