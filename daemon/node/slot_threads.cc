// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/slot_threads.h"

#include <chrono>
#include <utility>

namespace dmuon::node {
namespace {

// How long to look before going to sleep: about what waking up a sleeping core takes.
constexpr std::chrono::microseconds kLook{50};

}  // namespace

SlotThreads::SlotThreads(size_t slots, std::function<void()> bind)
    : slots_(slots), bind_(std::move(bind)) {
  for (size_t slot = 1; slot < slots; ++slot) {
    threads_.emplace_back([this, slot] { Loop(slot); });
  }
}

SlotThreads::~SlotThreads() {
  stopping_ = true;
  Notify();
  for (std::thread& thread : threads_) thread.join();
}

template <typename Ready>
void SlotThreads::Await(const Ready& ready) {
  const auto until = std::chrono::steady_clock::now() + kLook;
  do {
    if (ready()) return;
    std::this_thread::yield();  // to a trainer, if one wants the core
  } while (std::chrono::steady_clock::now() < until);
  wire::MutexLock lock(mu_);
  while (!ready()) changed_.Wait(mu_);
}

void SlotThreads::Notify() {
  // Under the lock: whoever has just found nothing to do is asleep before it is notified.
  wire::MutexLock lock(mu_);
  changed_.NotifyAll();
}

void SlotThreads::Run(const std::function<void(size_t)>& work) {
  if (!std::exchange(bound_, true)) bind_();
  if (slots_ > 1) {
    work_ = &work;
    busy_ = slots_ - 1;
    ++round_;
    Notify();
  }
  work(0);
  if (slots_ > 1) Await([this] { return busy_ == 0; });
}

void SlotThreads::Loop(size_t slot) {
  bind_();
  uint64_t seen = 0;
  while (true) {
    Await([&] { return round_ != seen || stopping_; });
    if (stopping_) return;
    seen = round_;
    (*work_)(slot);
    if (--busy_ == 0) Notify();
  }
}

}  // namespace dmuon::node
