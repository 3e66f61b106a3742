// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The one place that launches kernels.
#pragma once

#include <cuda_runtime.h>

namespace dmuon::kernels::cuda {

template <typename... Parameters, typename... Arguments>
cudaError_t Launch(cudaStream_t stream, dim3 blocks, dim3 threads, void (*kernel)(Parameters...),
                   const Arguments&... arguments) {
  kernel<<<blocks, threads, 0, stream>>>(arguments...);
  return cudaGetLastError();
}

}  // namespace dmuon::kernels::cuda
