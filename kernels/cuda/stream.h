// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A thread's way to the device: one stream, memory that is kept and reused, and the first error.
//
// Calls follow one another on the stream; after an error no further one is made until the next Begin, so code
// that issues calls does not look at each result. The device runs behind the caller, so a fault of a kernel
// may be reported by a later call than the one that launched it, at the latest by Finish.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cuda/graphs.h"

namespace dmuon::kernels::cuda {

// Every call of this backend goes to this one, the first of CUDA_VISIBLE_DEVICES.
inline constexpr int kDevice = 0;

// "cudaErrorMemoryAllocation (out of memory)".
std::string Describe(cudaError_t error);

// What device memory is kept for. Those of one name share it, one after the other.
enum class Slot : size_t {
  // These may be in graphs:
  kMatrix, kOtherMatrix, kRoundedMatrix,              // of Newton-Schulz
  kSquares, kRoundedLeft = kSquares + 4, kRoundedRight,
  kWorkspace, kScalars,                               // of cuBLASLt
  kMeans, kMeanPartials,                              // of diagonals
  // These are not:
  kPartials, kResult,                                 // of sums
  kRowVector, kColumnVector, kLines,
  kBlock, kSpan, kImage, kProducts, kLeft, kShort, kLong, kPolished,  // of top-k
  kStaged,  // and all that follow: copies of what lies in host memory
};

class Stream {
 public:
  // The calling thread's; freed when the thread ends.
  static Stream& OfThread();

  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Forgets the last error. `what` is named by errors: an operation and a shape.
  void Begin(std::string what);
  // Waits for the device. The first error since Begin: UNAVAILABLE when there is no memory or no device,
  // INTERNAL otherwise; it names `what`, the call and CUDA's own name of the error.
  absl::Status Finish();

  // Makes one call, `call(stream)`, unless there was an error before.
  template <typename Call>
  void Do(std::string_view name, Call call) {
    if (status_.ok()) Note(name, call(stream_));
  }
  [[nodiscard]] bool ok() const { return status_.ok(); }
  void Note(std::string_view name, cudaError_t error);
  void Note(std::string_view name, cublasStatus_t status);

  // Makes the calls that `issue` makes, all of which `key` decides: it reads nothing back, uploads nothing and takes
  // memory by Get alone, of slots that may be in graphs. The first time they are made as they come, the second time
  // they are captured, and from then on they are one launch of a graph. `issue` may be called twice, and is not called
  // for a launch, so it must leave nothing behind on the host that is needed later. Where no graph can be made, which
  // a line on standard error says, or with DMUON_CUDA_GRAPHS=off in the environment, they are made as they come each
  // time. A launch that fails is an error.
  void Repeat(const GraphKey& key, const std::function<void()>& issue);

  // `count` elements of device memory, uninitialised, aligned to 256 bytes. Null after an error.
  template <typename T>
  T* Get(Slot slot, size_t count) {
    return static_cast<T*>(GetBytes(static_cast<size_t>(slot), count * sizeof(T)));
  }
  void* GetBytes(size_t slot, size_t bytes);

  // Between any two memories. Host memory must live until the next wait: pageable memory, too, may be read late.
  void Copy(void* to, const void* from, size_t bytes);
  // The same from host memory that need not live longer than the call.
  template <typename T>
  void Upload(T* to, const T* from, size_t count) {
    Copy(to, from, count * sizeof(T));
    Wait();
  }
  template <typename T>
  void Upload(T* to, const std::vector<T>& from) {
    Upload(to, from.data(), from.size());
  }
  // `count` values from the device, once all calls so far are done; what lies at `to` stays after an error.
  template <typename T>
  void Download(T* to, const T* from, size_t count) {
    Copy(to, from, count * sizeof(T));
    Wait();
  }
  // The same; zeros after an error.
  template <typename T>
  std::vector<T> Read(const T* from, size_t count) {
    std::vector<T> values(count);
    Download(values.data(), from, count);
    return values;
  }

 private:
  struct Buffer {
    void* data = nullptr;
    size_t bytes = 0;
  };

  Stream();
  void Wait();
  // Null, after a line on standard error, when they cannot be captured.
  Graph Capture(const std::function<void()>& issue);

  cudaStream_t stream_ = nullptr;
  std::vector<Buffer> buffers_;  // by slot
  const bool use_graphs_;
  Graphs graphs_;  // of addresses in buffers_
  std::string what_;
  absl::Status status_;
};

}  // namespace dmuon::kernels::cuda
