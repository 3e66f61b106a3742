// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The threads of a job's slots: run one function on all slots and wait for all. The caller's thread
// serves slot 0, so a node with one slot has no other thread. A step is a few such rounds with
// microseconds between them, so everybody looks for the next one before going to sleep.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "wire/mutex.h"

namespace dmuon::node {

class SlotThreads {
 public:
  // `bind` is called once on each slot's thread, but on the caller's for slot 0 at the first Run.
  SlotThreads(size_t slots, std::function<void()> bind);
  ~SlotThreads();
  SlotThreads(const SlotThreads&) = delete;
  SlotThreads& operator=(const SlotThreads&) = delete;

  [[nodiscard]] size_t size() const { return slots_; }

  // Calls work(slot) for every slot, each on its own thread, and returns when all have returned.
  // One caller at a time, always the same thread. `work` must not throw.
  void Run(const std::function<void(size_t slot)>& work);

 private:
  void Loop(size_t slot);
  // Returns when `ready` says so: looks for a moment, then sleeps until it is notified.
  template <typename Ready>
  void Await(const Ready& ready);
  void Notify();

  const size_t slots_;
  const std::function<void()> bind_;
  bool bound_ = false;  // of the caller's thread
  // Changed by the caller's thread between rounds; the change of round_ publishes work_.
  const std::function<void(size_t)>* work_ = nullptr;
  std::atomic<uint64_t> round_ = 0;
  std::atomic<size_t> busy_ = 0;  // threads that have not ended this round
  std::atomic<bool> stopping_ = false;

  wire::Mutex mu_;  // of those who sleep
  wire::CondVar changed_;
  std::vector<std::thread> threads_;  // last: joined before the rest goes
};

}  // namespace dmuon::node
