// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "wire/step_word.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <climits>
#include <ctime>

namespace dmuon::wire {
namespace {

// The kernel compares 32 bits: the lower half, which changes with every step and state.
static_assert(std::endian::native == std::endian::little);

long Futex(std::atomic<uint64_t>* word, int operation, uint32_t value, const timespec* timeout) {
  return ::syscall(SYS_futex, word, operation, value, timeout, nullptr, 0);
}

}  // namespace

// Sequential consistency: either the storing side sees the sleeper, or the sleeper the new value.
void WaitableWord::Store(uint64_t value) {
  value_.store(value, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
  sleepers_.store(0, std::memory_order_seq_cst);
  Futex(&value_, FUTEX_WAKE, INT_MAX, nullptr);
}

void WaitableWord::Sleep(uint64_t seen, std::chrono::nanoseconds limit) {
  if (limit.count() <= 0) return;
  sleepers_.store(1, std::memory_order_seq_cst);
  if (value_.load(std::memory_order_seq_cst) != seen) return;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
  timespec timeout{};
  timeout.tv_sec = seconds.count();
  timeout.tv_nsec = (limit - seconds).count();
  Futex(&value_, FUTEX_WAIT, static_cast<uint32_t>(seen), &timeout);
}

}  // namespace dmuon::wire
