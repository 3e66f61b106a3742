// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A block's threads are fibers of the calling thread. A fiber runs one thread after the other until one waits at
// a barrier; then another fiber goes on, so kernels without barriers need one.
#include <ucontext.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda_runtime.h"
#include "kernels/cuda/launch.cuh"

namespace dmuon::emulated {
namespace {

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

void __syncthreads() {
  auto& s = dmuon::emulated::OfThread();
  swapcontext(&s.current->context, &s.own);
}

const char* cudaGetErrorName(cudaError_t error) {
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
  *stream = reinterpret_cast<cudaStream_t>(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t /*stream*/) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t /*stream*/) { return cudaSuccess; }

cudaError_t cudaMalloc(void** data, size_t bytes) {
  constexpr size_t kAlignment = 256;
  if (bytes > dmuon::emulated::kMemoryBytes) return cudaErrorMemoryAllocation;
  *data = std::aligned_alloc(kAlignment, (bytes / kAlignment + 1) * kAlignment);
  if (*data == nullptr) return cudaErrorMemoryAllocation;
  std::memset(*data, 0xff, bytes);  // NaN: what is read before it is written shows
  const std::scoped_lock lock(DeviceMemory().mutex);
  DeviceMemory().allocations[static_cast<const char*>(*data)] = bytes;
  return cudaSuccess;
}

cudaError_t cudaFree(void* data) {
  if (data == nullptr) return cudaSuccess;
  const std::scoped_lock lock(DeviceMemory().mutex);
  if (DeviceMemory().allocations.erase(static_cast<const char*>(data)) == 0) return cudaErrorInvalidValue;
  std::free(data);
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* at) {
  const std::scoped_lock lock(DeviceMemory().mutex);
  const auto& allocations = DeviceMemory().allocations;
  auto next = allocations.upper_bound(static_cast<const char*>(at));
  const bool inside = next != allocations.begin() && [&] {
    --next;
    return static_cast<const char*>(at) < next->first + next->second;
  }();
  *attributes = {inside ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered, 0, nullptr};
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind /*kind*/) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t /*stream*/) {
  return cudaMemcpy(to, from, bytes, kind);
}
