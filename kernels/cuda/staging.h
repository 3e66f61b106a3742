// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The spans of one call, wherever they lie. Memory that the device can address (its own, managed, pinned) is used
// as it lies; anything else is copied to the device, and back by Finish where the call writes.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/cuda/stream.h"

namespace dmuon::kernels::cuda {

// Empty spans need no address; the device address of one is null.
class Staging {
 public:
  explicit Staging(Stream& stream) : stream_(stream) {}

  // Device addresses of a span's elements: to be read, read and written, or only written.
  template <typename T>
  const T* Read(std::span<const T> span) {
    return static_cast<const T*>(Place(const_cast<std::remove_const_t<T>*>(span.data()), span.size_bytes(), true, false));
  }
  template <typename T>
  T* Update(std::span<T> span) {
    return static_cast<T*>(Place(span.data(), span.size_bytes(), true, true));
  }
  template <typename T>
  T* Write(std::span<T> span) {
    return static_cast<T*>(Place(span.data(), span.size_bytes(), false, true));
  }
  // To be read and then used up: what is written to it need not reach the span.
  template <typename T>
  T* Consume(std::span<T> span) {
    return static_cast<T*>(Place(span.data(), span.size_bytes(), true, false));
  }

  // A copy of matrices of one shape, one behind the other, wherever they lie; and one of them copied back, by Finish.
  float* Gather(std::span<const MatrixView> matrices);
  void Return(MatrixView matrix, const float* copy);

  // Copies back and waits. After `keep` false what lies in host memory stays as it was.
  absl::Status Finish(bool keep = true);

 private:
  struct CopyBack {
    void* host;
    const void* device;
    size_t bytes;
  };

  void* Place(void* data, size_t bytes, bool read, bool written);
  bool Addressable(const void* at);

  Stream& stream_;
  size_t next_slot_ = static_cast<size_t>(Slot::kStaged);
  std::vector<CopyBack> back_;
};

}  // namespace dmuon::kernels::cuda
