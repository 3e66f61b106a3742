# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0

# Finds what kernels/cuda is built with, and enables the language. Included by the root, because a language is
# enabled for all folders below. Sets DMUON_CUDA_FOUND, and DMUON_CUDA_REPORT to what was found or is missing.
#
# Looked for in PATH (or $CUDACXX), in the usual places, and in the Python wheels nvidia-cuda-nvcc,
# nvidia-cuda-runtime and nvidia-cublas of .venv, all of which must be of one major version.
set(DMUON_CUDA AUTO CACHE STRING "Build the cuda backend: ON, OFF, or AUTO, which is where a toolkit is found")
set_property(CACHE DMUON_CUDA PROPERTY STRINGS AUTO ON OFF)

file(GLOB DMUON_CUDA_USUAL /usr/local/cuda /usr/local/cuda-* /opt/cuda /opt/cuda-*)
file(GLOB DMUON_CUDA_WHEELS ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/*)
set(DMUON_CUDA_FOUND OFF)

# Sets DMUON_CUDA_REPORT to what is missing; to nothing where all is there.
macro(dmuon_find_cuda)
  set(DMUON_CUDA_REPORT "")
  find_program(DMUON_NVCC nvcc PATHS ${DMUON_CUDA_USUAL} ${DMUON_CUDA_WHEELS} PATH_SUFFIXES bin
               DOC "CUDA compiler, where CUDACXX does not name one")
  if(DMUON_NVCC AND NOT DEFINED ENV{CUDACXX})
    set(ENV{CUDACXX} ${DMUON_NVCC})
    # In a wheel the runtime lies in lib, and nvcc looks in lib64.
    get_filename_component(DMUON_CUDA_ROOT ${DMUON_NVCC}/../.. ABSOLUTE)
    if(DMUON_CUDA_ROOT IN_LIST DMUON_CUDA_WHEELS AND NOT DEFINED ENV{CUDAFLAGS})
      list(TRANSFORM DMUON_CUDA_WHEELS REPLACE "(.+)" "-L\\1/lib" OUTPUT_VARIABLE DMUON_CUDA_LIBRARY_FLAGS)
      list(JOIN DMUON_CUDA_LIBRARY_FLAGS " " DMUON_CUDA_LIBRARY_FLAGS)
      set(ENV{CUDAFLAGS} "${DMUON_CUDA_LIBRARY_FLAGS}")
    endif()
  endif()
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    set(DMUON_CUDA_REPORT "no nvcc that works in PATH, /usr/local/cuda*, /opt/cuda* or .venv")
  else()
    # A100, H100 and H200, B200; each also as PTX, for what comes after it.
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
      set(CMAKE_CUDA_ARCHITECTURES 80 90 100)
    endif()
    if(CCACHE)
      set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
    endif()
    enable_language(CUDA)
    find_package(CUDAToolkit QUIET)
    find_path(DMUON_CUBLASLT_INCLUDE cublasLt.h HINTS ${CUDAToolkit_INCLUDE_DIRS} PATHS ${DMUON_CUDA_WHEELS}
              PATH_SUFFIXES include DOC "Folder of cublasLt.h")
    # A wheel has no file without a version.
    find_library(DMUON_CUBLASLT NAMES cublasLt libcublasLt.so.${CUDAToolkit_VERSION_MAJOR}
                 HINTS ${CUDAToolkit_LIBRARY_DIR} PATHS ${DMUON_CUDA_WHEELS} PATH_SUFFIXES lib64 lib DOC "cuBLASLt")
    if(NOT TARGET CUDA::cudart_static)
      set(DMUON_CUDA_REPORT "${CMAKE_CUDA_COMPILER} ${CMAKE_CUDA_COMPILER_VERSION}, but no libcudart_static.a")
    elseif(NOT DMUON_CUBLASLT_INCLUDE OR NOT DMUON_CUBLASLT)
      set(DMUON_CUDA_REPORT "${CMAKE_CUDA_COMPILER} ${CMAKE_CUDA_COMPILER_VERSION}, but no cublasLt.h and libcublasLt")
    endif()
  endif()
endmacro()

if(NOT DMUON_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "DMUON_CUDA is ${DMUON_CUDA}; must be AUTO, ON or OFF")
elseif(DMUON_CUDA STREQUAL "OFF")
  set(DMUON_CUDA_REPORT "DMUON_CUDA is OFF")
elseif(DMUON_SANITIZE)
  # The driver maps memory where AddressSanitizer keeps its shadow, ThreadSanitizer does not know its threads, and
  # nvcc instruments nothing. What can be checked without a device, loading a plug-in, is checked there as well.
  set(DMUON_CUDA_REPORT "not built with sanitizers")
else()
  dmuon_find_cuda()
  if(NOT DMUON_CUDA_REPORT)
    set(DMUON_CUDA_FOUND ON)
    set(DMUON_CUDA_REPORT "nvcc ${CMAKE_CUDA_COMPILER_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}, ${DMUON_CUBLASLT}")
  endif()
endif()
if(DMUON_CUDA STREQUAL "ON" AND NOT DMUON_CUDA_FOUND)
  message(FATAL_ERROR "DMUON_CUDA is ON, but the cuda backend cannot be built: ${DMUON_CUDA_REPORT}")
endif()
add_feature_info(CUDA DMUON_CUDA_FOUND "the plug-in of the cuda backend: ${DMUON_CUDA_REPORT}")
