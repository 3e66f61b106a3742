// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A block's threads are fibers of the calling thread. A fiber runs one thread after the other until one waits at
// a barrier; then another fiber goes on, so kernels without barriers need one. A graph is a list of calls.
#include <ucontext.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda_runtime.h"
#include "kernels/cuda/launch.cuh"

struct CUgraph_st {
  std::vector<std::function<cudaError_t()>> calls;
};
struct CUgraphExec_st {
  std::vector<std::function<cudaError_t()>> calls;
};
struct CUstream_st {
  std::unique_ptr<CUgraph_st> captured;  // null when no capture goes on
};

namespace dmuon::emulated {
namespace {

thread_local bool capturing = false;
thread_local bool capture_failed = false;
// For what a capture does not allow.
cudaError_t FailCapture() {
  capture_failed = true;
  return cudaErrorStreamCaptureUnsupported;
}

std::atomic<int64_t> graphs_made = 0, graphs_launched = 0, graphs_held = 0;
std::atomic<GraphFault> graph_fault = GraphFault::kNone;
std::atomic<int64_t> allocations_made = 0;
constexpr size_t kSpoiledCall = 4;

constexpr size_t kStackBytes = size_t{256} << 10;
constexpr size_t kMemoryBytes = size_t{1} << 30;

struct Fiber {
  ucontext_t context{};
  std::unique_ptr<char[]> stack = std::make_unique<char[]>(kStackBytes);
  dim3 thread;
  bool done = false;
};

// Of one OS thread.
struct Scheduler {
  void RunBlock(unsigned threads) {
    next = 0;
    total = threads;
    size_t used = 0;
    while (next < total) {
      if (fibers.size() == used) fibers.push_back(std::make_unique<Fiber>());
      Fiber& fiber = *fibers[used++];
      fiber.done = false;
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.get();
      fiber.context.uc_stack.ss_size = kStackBytes;
      fiber.context.uc_link = &own;
      makecontext(&fiber.context, &Scheduler::Enter, 0);
      Resume(fiber);
    }
    for (bool waiting = true; waiting;) {
      waiting = false;
      for (size_t i = 0; i < used; ++i) {
        if (fibers[i]->done) continue;
        Resume(*fibers[i]);
        waiting = true;
      }
    }
  }

  void Resume(Fiber& fiber) {
    current = &fiber;
    position.thread = fiber.thread;
    swapcontext(&own, &fiber.context);
  }

  static void Enter();

  ucontext_t own{};
  std::vector<std::unique_ptr<Fiber>> fibers;
  Fiber* current = nullptr;
  unsigned next = 0, total = 0;
  const std::function<void()>* body = nullptr;
  Position position;
};

Scheduler& OfThread() {
  static thread_local Scheduler scheduler;
  return scheduler;
}

void Scheduler::Enter() {
  Scheduler& s = OfThread();
  Fiber& fiber = *s.current;
  while (s.next < s.total) {
    const unsigned i = s.next++;
    fiber.thread = {i % s.position.threads.x, i / s.position.threads.x};
    s.position.thread = fiber.thread;
    (*s.body)();
  }
  fiber.done = true;
}

struct Memory {
  std::mutex mutex;
  std::map<const char*, size_t> allocations;
};
Memory& DeviceMemory() {
  static auto* memory = new Memory;  // freed by no one: threads may end after it would be
  return *memory;
}

}  // namespace

cudaError_t Issue(cudaStream_t stream, std::function<cudaError_t()> call) {
  if (stream->captured == nullptr) return call();
  if (graph_fault == GraphFault::kCall && stream->captured->calls.size() == kSpoiledCall) return FailCapture();
  stream->captured->calls.push_back(std::move(call));
  return cudaSuccess;
}

GraphCounts CountGraphs() { return {graphs_made, graphs_launched, graphs_held}; }
void FailGraphs(GraphFault fault) { graph_fault = fault; }
int64_t Allocations() { return allocations_made; }

bool IsDeviceMemory(const void* at, size_t bytes) {
  const std::scoped_lock lock(DeviceMemory().mutex);
  const auto& allocations = DeviceMemory().allocations;
  const auto* first = static_cast<const char*>(at);
  auto next = allocations.upper_bound(first);
  if (next == allocations.begin()) return false;
  --next;
  return first + bytes <= next->first + next->second;
}

Position& Here() { return OfThread().position; }

void Run(dim3 blocks, dim3 threads, const std::function<void()>& body) {
  Scheduler& s = OfThread();
  s.body = &body;
  s.position.blocks = blocks;
  s.position.threads = threads;
  for (unsigned y = 0; y < blocks.y; ++y) {
    for (unsigned x = 0; x < blocks.x; ++x) {
      s.position.block = {x, y};
      s.RunBlock(threads.x * threads.y);
    }
  }
}

}  // namespace dmuon::emulated

using dmuon::emulated::DeviceMemory;
using dmuon::emulated::GraphFault;

void __syncthreads() {
  auto& s = dmuon::emulated::OfThread();
  swapcontext(&s.current->context, &s.own);
}

const char* cudaGetErrorName(cudaError_t error) {
  if (error == cudaErrorStreamCaptureUnsupported) return "cudaErrorStreamCaptureUnsupported";
  if (error == cudaErrorNotSupported) return "cudaErrorNotSupported";
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorInvalidValue";
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "invalid argument";
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int /*device*/) {
  *properties = {"emulated", 9, 0};
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidValue; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return stream->captured == nullptr ? cudaSuccess : dmuon::emulated::FailCapture();
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode /*mode*/) {
  if (stream->captured != nullptr) return cudaErrorInvalidValue;
  if (dmuon::emulated::graph_fault == GraphFault::kBegin) return cudaErrorNotSupported;
  stream->captured = std::make_unique<CUgraph_st>();
  dmuon::emulated::capturing = true;
  dmuon::emulated::capture_failed = false;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  if (stream->captured == nullptr) return cudaErrorInvalidValue;
  dmuon::emulated::capturing = false;
  const bool fails = dmuon::emulated::capture_failed || dmuon::emulated::graph_fault == GraphFault::kEnd;
  *graph = fails ? nullptr : stream->captured.release();
  stream->captured = nullptr;
  return *graph == nullptr ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long /*flags*/) {
  if (dmuon::emulated::graph_fault == GraphFault::kInstantiate) return cudaErrorNotSupported;
  ++dmuon::emulated::graphs_made;
  ++dmuon::emulated::graphs_held;
  *executable = new CUgraphExec_st{graph->calls};
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  --dmuon::emulated::graphs_held;
  delete executable;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t /*stream*/) {
  if (dmuon::emulated::graph_fault == GraphFault::kLaunch) return cudaErrorNotSupported;
  ++dmuon::emulated::graphs_launched;
  for (const auto& call : executable->calls) {
    if (const cudaError_t error = call(); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** data, size_t bytes) {
  constexpr size_t kAlignment = 256;
  if (dmuon::emulated::capturing) return dmuon::emulated::FailCapture();
  if (bytes > dmuon::emulated::kMemoryBytes) return cudaErrorMemoryAllocation;
  *data = std::aligned_alloc(kAlignment, (bytes / kAlignment + 1) * kAlignment);
  if (*data == nullptr) return cudaErrorMemoryAllocation;
  std::memset(*data, 0xff, bytes);  // NaN: what is read before it is written shows
  const std::scoped_lock lock(DeviceMemory().mutex);
  DeviceMemory().allocations[static_cast<const char*>(*data)] = bytes;
  ++dmuon::emulated::allocations_made;
  return cudaSuccess;
}

cudaError_t cudaFree(void* data) {
  if (dmuon::emulated::capturing) return dmuon::emulated::FailCapture();
  if (data == nullptr) return cudaSuccess;
  const std::scoped_lock lock(DeviceMemory().mutex);
  if (DeviceMemory().allocations.erase(static_cast<const char*>(data)) == 0) return cudaErrorInvalidValue;
  std::free(data);
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* at) {
  const bool inside = dmuon::emulated::IsDeviceMemory(at, 1);
  *attributes = {inside ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered, 0, nullptr};
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind /*kind*/) {
  if (dmuon::emulated::capturing) return dmuon::emulated::FailCapture();
  if (bytes > 0) std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (stream->captured != nullptr) {
    // Host memory need not be there any more when the graph is launched.
    for (const void* at : {static_cast<const void*>(to), from}) {
      cudaPointerAttributes attributes{};
      cudaPointerGetAttributes(&attributes, at);
      if (attributes.type != cudaMemoryTypeDevice) return dmuon::emulated::FailCapture();
    }
  }
  return dmuon::emulated::Issue(stream, [=] { return cudaMemcpy(to, from, bytes, kind); });
}
