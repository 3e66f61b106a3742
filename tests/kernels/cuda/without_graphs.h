// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdlib>
#include <thread>

#include "gtest/gtest.h"

namespace dmuon::kernels {

// Runs `work` by a thread, and so a stream of the cuda backend, that makes no graphs. No other thread may read the
// environment meanwhile.
template <typename Work>
void WithoutGraphs(const Work& work) {
  ASSERT_EQ(setenv("DMUON_CUDA_GRAPHS", "off", 1), 0);
  std::thread(work).join();
  unsetenv("DMUON_CUDA_GRAPHS");
}

}  // namespace dmuon::kernels
