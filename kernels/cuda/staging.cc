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

float* Staging::Gather(std::span<const MatrixView> matrices) {
  const auto elements = static_cast<size_t>(matrices[0].rows) * static_cast<size_t>(matrices[0].cols);
  auto* copy = static_cast<float*>(stream_.GetBytes(next_slot_++, matrices.size() * elements * sizeof(float)));
  for (size_t i = 0; i < matrices.size() && stream_.ok(); ++i) {
    stream_.Copy(copy + i * elements, matrices[i].data, elements * sizeof(float));
  }
  return copy;
}

void Staging::Return(MatrixView matrix, const float* copy) {
  const auto elements = static_cast<size_t>(matrix.rows) * static_cast<size_t>(matrix.cols);
  back_.push_back({matrix.data, copy, elements * sizeof(float)});
}

absl::Status Staging::Finish(bool keep) {
  // An error of the calls so far must not leave half of the results behind.
  if (absl::Status status = stream_.Finish(); !status.ok() || !keep) return status;
  for (const CopyBack& copy : back_) stream_.Copy(copy.host, copy.device, copy.bytes);
  return back_.empty() ? absl::OkStatus() : stream_.Finish();
}

}  // namespace dmuon::kernels::cuda
