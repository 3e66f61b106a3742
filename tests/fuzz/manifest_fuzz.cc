// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Any bytes are a manifest or an error, and a manifest comes back from its own JSON.

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "daemon/checkpoint/manifest.h"

using dmuon::checkpoint::Manifest;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<Manifest> manifest = dmuon::checkpoint::ParseManifest(bytes);
  if (!manifest.ok()) {
    if (!absl::IsDataLoss(manifest.status()) && !absl::IsFailedPrecondition(manifest.status())) std::abort();
    return 0;
  }
  const absl::StatusOr<Manifest> again = dmuon::checkpoint::ParseManifest(dmuon::checkpoint::ToJson(*manifest));
  if (!again.ok() || *again != *manifest) std::abort();
  return 0;
}
