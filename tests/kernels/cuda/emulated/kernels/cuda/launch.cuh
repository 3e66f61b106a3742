// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Takes the place of kernels/cuda/launch.cuh: runs a kernel's threads on the CPU before it returns, or whenever the
// graph is launched that it is captured for.
#pragma once

#include <functional>

#include "cuda_runtime.h"

namespace dmuon::emulated {
DMUON_EMULATED void Run(dim3 blocks, dim3 threads, const std::function<void()>& body);
}  // namespace dmuon::emulated

namespace dmuon::kernels::cuda {

template <typename... Parameters, typename... Arguments>
cudaError_t Launch(cudaStream_t stream, dim3 blocks, dim3 threads, void (*kernel)(Parameters...),
                   const Arguments&... arguments) {
  if (blocks.x == 0 || blocks.y == 0) return cudaErrorInvalidValue;
  return emulated::Issue(stream, [=] {
    emulated::Run(blocks, threads, [&] { kernel(arguments...); });
    return cudaSuccess;
  });
}

}  // namespace dmuon::kernels::cuda
