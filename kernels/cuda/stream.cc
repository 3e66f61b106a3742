// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda/stream.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"

namespace dmuon::kernels::cuda {
namespace {

bool MayPass(cudaError_t error) {
  return error == cudaErrorMemoryAllocation || error == cudaErrorDevicesUnavailable ||
         error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver;
}

bool GraphsAreWanted() {
  const char* wanted = std::getenv("DMUON_CUDA_GRAPHS");
  return wanted == nullptr || std::string_view(wanted) != "off";
}

}  // namespace

std::string Describe(cudaError_t error) {
  return absl::StrCat(cudaGetErrorName(error), " (", cudaGetErrorString(error), ")");
}

Stream& Stream::OfThread() {
  static thread_local Stream stream;
  return stream;
}

Stream::Stream() : use_graphs_(GraphsAreWanted()) {}

// Errors are of no use here: at the end of a process the driver may be gone already.
Stream::~Stream() {
  graphs_.Clear();
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

void Stream::Repeat(const GraphKey& key, const std::function<void()>& issue) {
  if (!use_graphs_) return issue();
  const Graphs::Entry* entry = graphs_.Find(key);
  if (entry == nullptr) {
    issue();  // which also takes all memory and chooses all algorithms: a capture must not
    if (ok()) graphs_.Keep(key, nullptr, false);
    return;
  }
  if (entry->graph == nullptr && !entry->refused && ok()) {
    Graph graph = Capture(issue);
    const bool refused = graph == nullptr;
    graphs_.Keep(key, std::move(graph), refused);
    entry = graphs_.Find(key);
  }
  if (entry->graph == nullptr) return issue();
  Do("cudaGraphLaunch", [&](cudaStream_t stream) { return cudaGraphLaunch(entry->graph.get(), stream); });
}

Graph Stream::Capture(const std::function<void()>& issue) {
  Do("cudaStreamBeginCapture",
     [](cudaStream_t stream) { return cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal); });
  const bool begun = ok();
  issue();
  cudaGraph_t captured = nullptr;
  cudaGraphExec_t executable = nullptr;
  if (begun) {
    // After an error, too: the stream is of no use before.
    const cudaError_t error = cudaStreamEndCapture(stream_, &captured);
    if (ok()) Note("cudaStreamEndCapture", error);
  }
  Do("cudaGraphInstantiate", [&](cudaStream_t) { return cudaGraphInstantiate(&executable, captured, 0); });
  if (captured != nullptr) cudaGraphDestroy(captured);
  if (ok()) return Graph(executable);
  // Nothing of it has run. An error that has another reason comes again.
  cudaGetLastError();
  std::fprintf(stderr, "warning: no CUDA graph, calls are made one by one: %s\n", status_.ToString().c_str());
  status_ = absl::OkStatus();
  return nullptr;
}

void* Stream::GetBytes(size_t slot, size_t bytes) {
  if (buffers_.size() <= slot) buffers_.resize(slot + 1);
  Buffer& buffer = buffers_[slot];
  if (buffer.bytes < bytes) {
    if (slot < static_cast<size_t>(Slot::kPartials)) graphs_.Clear();  // they hold its address
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
