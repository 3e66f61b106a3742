// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The part of CUDA's runtime that kernels/cuda uses, on the CPU: "device memory" is memory that cudaMalloc gave, and
// everything is done when a call returns. For tests on machines without a GPU.
#pragma once

#include <cstddef>

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInsufficientDriver = 35,
  cudaErrorDevicesUnavailable = 46,
  cudaErrorNoDevice = 100,
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDefault = 4 };
enum cudaMemoryType { cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeDevice, cudaMemoryTypeManaged };
inline constexpr unsigned cudaStreamNonBlocking = 1;

struct CUstream_st;
using cudaStream_t = CUstream_st*;
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
