// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Step words: what the worker and its daemon tell each other in shared memory, and how one of them
// sleeps until the other has spoken.
//
//   word := step << 2 | state
//
// All words are stored with release and loaded with acquire order, so who reads a word sees what
// was written before it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace dmuon::wire {

enum class WordState : uint64_t { kNone = 0, kReady = 1, kMissing = 2 };

constexpr uint64_t MakeWord(uint64_t step, WordState state) {
  return step << 2 | static_cast<uint64_t>(state);
}
constexpr uint64_t WordStep(uint64_t word) { return word >> 2; }
constexpr WordState StateOf(uint64_t word) { return static_cast<WordState>(word & 3); }

// A word that somebody may sleep on, also in another process. Zero is a valid initial state.
class WaitableWord {
 public:
  [[nodiscard]] uint64_t Load() const { return value_.load(std::memory_order_acquire); }

  // Stores, and wakes who sleeps; without a system call when nobody does.
  void Store(uint64_t value);
  // Sleeps while the word is `seen`, at most for `limit`; may return early. The caller looks again.
  void Sleep(uint64_t seen, std::chrono::nanoseconds limit);

 private:
  std::atomic<uint64_t> value_ = 0;
  std::atomic<uint64_t> sleepers_ = 0;  // non-zero: somebody may sleep
};
static_assert(sizeof(WaitableWord) == 16 && std::atomic<uint64_t>::is_always_lock_free);

}  // namespace dmuon::wire
