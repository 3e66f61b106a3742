// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/slot_threads.h"

#include <utility>

namespace dmuon::node {

SlotThreads::SlotThreads(size_t slots, std::function<void()> bind)
    : slots_(slots), bind_(std::move(bind)) {
  for (size_t slot = 1; slot < slots; ++slot) {
    threads_.emplace_back([this, slot] { Loop(slot); });
  }
}

SlotThreads::~SlotThreads() {
  {
    wire::MutexLock lock(mu_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

void SlotThreads::Run(const std::function<void(size_t)>& work) {
  if (!std::exchange(bound_, true)) bind_();
  if (slots_ > 1) {
    wire::MutexLock lock(mu_);
    work_ = &work;
    busy_ = slots_ - 1;
    ++round_;
    changed_.NotifyAll();
  }
  work(0);
  if (slots_ > 1) {
    wire::MutexLock lock(mu_);
    while (busy_ > 0) changed_.Wait(mu_);
  }
}

void SlotThreads::Loop(size_t slot) {
  bind_();
  uint64_t seen = 0;
  while (true) {
    const std::function<void(size_t)>* work = nullptr;
    {
      wire::MutexLock lock(mu_);
      while (round_ == seen && !stopping_) changed_.Wait(mu_);
      if (stopping_) return;
      seen = round_;
      work = work_;
    }
    (*work)(slot);
    wire::MutexLock lock(mu_);
    if (--busy_ == 0) changed_.NotifyAll();
  }
}

}  // namespace dmuon::node
