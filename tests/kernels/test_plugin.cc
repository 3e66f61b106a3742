// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Small plug-ins for plugin_test.cc, one a value of DMUON_TEST_PLUGIN.
#include "absl/status/status.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/plugin.h"

namespace {

enum Kind { kSound, kOtherVersion, kWithoutDevice };
constexpr Kind kKind = DMUON_TEST_PLUGIN;

}  // namespace

DMUON_PLUGIN_EXPORT const char* dmuon_plugin_version() {
  return kKind == kOtherVersion ? "0.0.9 (fedcba987654, GNU 1.0)" : dmuon::kernels::PluginVersion();
}

DMUON_PLUGIN_EXPORT dmuon::kernels::Backend* dmuon_plugin_make(absl::Status* status) {
  if (kKind != kWithoutDevice) return dmuon::kernels::MakeCpuBackend().release();
  *status = absl::UnavailableError("no device");
  return nullptr;
}
