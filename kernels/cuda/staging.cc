// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda/staging.h"

namespace dmuon::kernels::cuda {

bool Staging::Addressable(const void* at) {
  cudaPointerAttributes attributes{};
  stream_.Do("cudaPointerGetAttributes",
             [&](cudaStream_t) { return cudaPointerGetAttributes(&attributes, at); });
  if (attributes.type == cudaMemoryTypeDevice) return attributes.device == kDevice;
  return attributes.type == cudaMemoryTypeManaged ||
         (attributes.type == cudaMemoryTypeHost && attributes.devicePointer == at);
}

void* Staging::Place(void* data, size_t bytes, bool read, bool written) {
  if (bytes == 0) return nullptr;
  // Pinned memory may end inside a span.
  if (Addressable(data) && Addressable(static_cast<const std::byte*>(data) + bytes - 1)) return data;
  void* device = stream_.GetBytes(next_slot_++, bytes);
  if (read) stream_.Copy(device, data, bytes);
  if (written) back_.push_back({data, device, bytes});
  return device;
}

absl::Status Staging::Finish(bool keep) {
  // An error of the calls so far must not leave half of the results behind.
  if (absl::Status status = stream_.Finish(); !status.ok() || !keep) return status;
  for (const CopyBack& copy : back_) stream_.Copy(copy.host, copy.device, copy.bytes);
  return back_.empty() ? absl::OkStatus() : stream_.Finish();
}

}  // namespace dmuon::kernels::cuda
