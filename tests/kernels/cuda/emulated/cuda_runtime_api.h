// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The part of CUDA's runtime that kernels/cuda uses, on the CPU: "device memory" is memory that cudaMalloc gave, and
// everything is done when a call returns; but for what is captured, which is done when its graph is launched. For
// tests on machines without a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInsufficientDriver = 35,
  cudaErrorDevicesUnavailable = 46,
  cudaErrorNoDevice = 100,
  cudaErrorNotSupported = 801,
  cudaErrorStreamCaptureUnsupported = 900,
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDefault = 4 };
enum cudaMemoryType { cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeDevice, cudaMemoryTypeManaged };
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal };
inline constexpr unsigned cudaStreamNonBlocking = 1;

struct CUstream_st;
struct CUgraph_st;
struct CUgraphExec_st;
using cudaStream_t = CUstream_st*;
using cudaGraph_t = CUgraph_st*;
using cudaGraphExec_t = CUgraphExec_st*;
struct cudaPointerAttributes {
  cudaMemoryType type;
  int device;
  void* devicePointer;
};
struct cudaDeviceProp {
  char name[256];
  int major, minor;
};

#define DMUON_EMULATED __attribute__((visibility("default")))
DMUON_EMULATED const char* cudaGetErrorName(cudaError_t error);
DMUON_EMULATED const char* cudaGetErrorString(cudaError_t error);
DMUON_EMULATED cudaError_t cudaGetLastError();
DMUON_EMULATED cudaError_t cudaGetDeviceCount(int* count);
DMUON_EMULATED cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
DMUON_EMULATED cudaError_t cudaSetDevice(int device);
DMUON_EMULATED cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
DMUON_EMULATED cudaError_t cudaStreamDestroy(cudaStream_t stream);
DMUON_EMULATED cudaError_t cudaStreamSynchronize(cudaStream_t stream);
// Refuses more than 1 GiB.
DMUON_EMULATED cudaError_t cudaMalloc(void** data, size_t bytes);
DMUON_EMULATED cudaError_t cudaFree(void* data);
DMUON_EMULATED cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* at);
DMUON_EMULATED cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);
DMUON_EMULATED cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                                           cudaStream_t stream);
// Between the first two, calls on the stream are kept; those that cannot be, and any cudaMalloc, cudaFree or
// cudaMemcpy by the thread, fail with cudaErrorStreamCaptureUnsupported, and so does cudaStreamEndCapture then.
DMUON_EMULATED cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
DMUON_EMULATED cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
DMUON_EMULATED cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                                unsigned long long flags);
DMUON_EMULATED cudaError_t cudaGraphDestroy(cudaGraph_t graph);
DMUON_EMULATED cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable);
DMUON_EMULATED cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream);

namespace dmuon::emulated {
// Does it, or keeps it where the stream is captured.
DMUON_EMULATED cudaError_t Issue(cudaStream_t stream, std::function<cudaError_t()> call);

// Of all threads: graphs instantiated and launched so far, and those that have not been destroyed.
struct GraphCounts {
  int64_t made, launched, held;
};
DMUON_EMULATED GraphCounts CountGraphs();
// What fails from now on, of all threads: the beginning or the end of a capture, the fifth call within one (which
// spoils the capture), making a graph that can be launched, or launching it, of which nothing is done then.
enum class GraphFault { kNone, kBegin, kCall, kEnd, kInstantiate, kLaunch };
DMUON_EMULATED void FailGraphs(GraphFault fault);
// Of all threads: successful calls of cudaMalloc so far.
DMUON_EMULATED int64_t Allocations();
// Whether all of it lies within what one cudaMalloc gave, and no cudaFree has taken back.
DMUON_EMULATED bool IsDeviceMemory(const void* at, size_t bytes);
}  // namespace dmuon::emulated
