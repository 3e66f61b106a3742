// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/team.h"

#include <algorithm>

#ifdef DMUON_THREAD_SANITIZER
#include <sanitizer/tsan_interface.h>
#endif

namespace dmuon::kernels {
namespace {

thread_local int team = 1;

// A point that threads pass in order. ThreadSanitizer cannot see the fork and join inside libgomp, which is not
// instrumented; these tell it.
class Gate {
 public:
  void Open() {
#ifdef DMUON_THREAD_SANITIZER
    __tsan_release(this);
#endif
  }
  void Pass() {
#ifdef DMUON_THREAD_SANITIZER
    __tsan_acquire(this);
#endif
  }
};

}  // namespace

void BindTeam(int threads) { team = std::max(threads, 1); }

int TeamSize() { return team; }

void RunTeam(size_t count, void (*work)(const void* context, size_t i), const void* context) {
  const int threads = static_cast<int>(std::min(count, static_cast<size_t>(team)));
  if (threads < 2) {
    for (size_t i = 0; i < count; ++i) work(context, i);
    return;
  }
  [[maybe_unused]] Gate fork;
  [[maybe_unused]] Gate join;
  fork.Open();
#pragma omp parallel num_threads(threads)
  {
    fork.Pass();
#pragma omp for schedule(dynamic)
    for (size_t i = 0; i < count; ++i) work(context, i);
    join.Open();
  }
  join.Pass();
}

}  // namespace dmuon::kernels
