// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// How many tensors a job of very many has. Under a sanitizer, where each test of such a job would take
// half a minute, a tenth of that.
#pragma once

namespace dmuon {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr int kManyTensors = 10'000;
#else
inline constexpr int kManyTensors = 100'000;
#endif

}  // namespace dmuon
