// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The backend "cuda": products by cuBLASLt, all else in kernels of our own, one stream a thread. It lives in a
// plug-in (plugin.h), so that a process that does not ask for it maps none of CUDA's libraries.
//
// Spans may lie in host or in device memory (staging.h); calls return when their results are there. A unit's
// spans need not lie in the same memory.
//
// Errors of the device: Orthogonalize returns UNAVAILABLE (no memory left, no device) or INTERNAL. All other
// calls of the interface return no status, because on a CPU they cannot fail; and a step that is half done must
// not go on, since state in device memory would hold neither the old nor the new values. So they end the process, after a
// line on standard error that names the call, its shape and CUDA's error. What a process's optimizer state was is
// then lost, as it is when it dies of anything else.
//
// Bits: Element-wise results are those of the cpu backend (double, rounded once, no fused multiply-add). Sums over
// a matrix take another order, but a fixed one; products are those of cuBLASLt. So results that depend on a norm,
// a row's or column's sum or Newton-Schulz agree to rounding, and are the same on every run on the same kind of
// device with the same libraries.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace dmuon::kernels::cuda {

// UNAVAILABLE, with CUDA's name of the error, without a driver or a device; FAILED_PRECONDITION when the device is
// older than compute capability 8.0, which has no bf16.
absl::StatusOr<std::unique_ptr<Backend>> MakeCudaBackend();

}  // namespace dmuon::kernels::cuda
