// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/plugin.h"

#include <utility>

#include "kernels/cuda/cuda_backend.h"

DMUON_PLUGIN_EXPORT const char* dmuon_plugin_version() { return dmuon::kernels::PluginVersion(); }

DMUON_PLUGIN_EXPORT dmuon::kernels::Backend* dmuon_plugin_make(absl::Status* status) {
  auto backend = dmuon::kernels::cuda::MakeCudaBackend();
  *status = backend.status();
  return backend.ok() ? std::move(backend)->release() : nullptr;
}
