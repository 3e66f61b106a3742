// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>

#include "kernels/backend.h"

namespace dmuon::kernels {

// reference.h behind the fp32 interface: every call widens its input to double, computes, and
// rounds the result once. For tests and for settling arguments; no threads, allocates as
// it likes.
std::unique_ptr<Backend> MakeReferenceBackend();

}  // namespace dmuon::kernels
