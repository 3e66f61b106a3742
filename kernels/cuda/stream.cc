// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda/stream.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace dmuon::kernels::cuda {
namespace {

bool MayPass(cudaError_t error) {
  return error == cudaErrorMemoryAllocation || error == cudaErrorDevicesUnavailable ||
         error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver;
}

}  // namespace

std::string Describe(cudaError_t error) {
  return absl::StrCat(cudaGetErrorName(error), " (", cudaGetErrorString(error), ")");
}

Stream& Stream::OfThread() {
  static thread_local Stream stream;
  return stream;
}

// Errors are of no use here: at the end of a process the driver may be gone already.
Stream::~Stream() {
  for (const Buffer& buffer : buffers_) cudaFree(buffer.data);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

void Stream::Begin(std::string what) {
  what_ = std::move(what);
  status_ = absl::OkStatus();
  Do("cudaSetDevice", [](cudaStream_t) { return cudaSetDevice(kDevice); });
  if (stream_ != nullptr) return;
  Do("cudaStreamCreateWithFlags",
     [this](cudaStream_t) { return cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking); });
}

void Stream::Wait() { Do("cudaStreamSynchronize", cudaStreamSynchronize); }

absl::Status Stream::Finish() {
  Wait();
  return std::exchange(status_, absl::OkStatus());
}

void Stream::Note(std::string_view name, cudaError_t error) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // an error that can pass would otherwise be reported again by an innocent call
  const std::string message = absl::StrCat("cuda: ", what_, ": ", std::string(name), ": ", Describe(error));
  status_ = MayPass(error) ? absl::UnavailableError(message) : absl::InternalError(message);
}

void Stream::Note(std::string_view name, cublasStatus_t status) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const std::string message = absl::StrCat("cuda: ", what_, ": ", std::string(name), ": ", cublasLtGetStatusName(status),
                                           " (", cublasLtGetStatusString(status), ")");
  status_ = status == CUBLAS_STATUS_ALLOC_FAILED ? absl::UnavailableError(message) : absl::InternalError(message);
}

void* Stream::GetBytes(size_t slot, size_t bytes) {
  if (buffers_.size() <= slot) buffers_.resize(slot + 1);
  Buffer& buffer = buffers_[slot];
  if (buffer.bytes < bytes) {
    // cudaFree waits for what still uses it; first, so that both need not fit at one time.
    Do("cudaFree", [&](cudaStream_t) { return cudaFree(buffer.data); });
    buffer = {};
    Do(absl::StrCat("cudaMalloc of ", bytes, " bytes"),
       [&](cudaStream_t) { return cudaMalloc(&buffer.data, bytes); });
    if (status_.ok()) buffer.bytes = bytes;
  }
  return status_.ok() ? buffer.data : nullptr;
}

void Stream::Copy(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  Do("cudaMemcpyAsync",
     [&](cudaStream_t stream) { return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream); });
}

}  // namespace dmuon::kernels::cuda
