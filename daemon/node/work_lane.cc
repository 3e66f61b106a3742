// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/work_lane.h"

#include <utility>

namespace dmuon::node {

WorkLane::WorkLane(size_t most) : most_(most), thread_([this] { Run(); }) {}

WorkLane::~WorkLane() { Stop(); }

bool WorkLane::Add(std::function<void()> work) {
  const wire::MutexLock lock(mu_);
  if (stopping_ || waiting_.size() + (running_ ? 1 : 0) >= most_) return false;
  waiting_.push_back(std::move(work));
  changed_.NotifyOne();
  return true;
}

void WorkLane::Stop() {
  std::deque<std::function<void()>> dropped;
  {
    const wire::MutexLock lock(mu_);
    stopping_ = true;
    dropped.swap(waiting_);
    changed_.NotifyOne();
  }
  dropped.clear();  // without the lock, and at once: who waits for it may be told by that
  if (thread_.joinable()) thread_.join();
}

void WorkLane::Run() {
  while (true) {
    std::function<void()> work;
    {
      const wire::MutexLock lock(mu_);
      running_ = false;
      while (waiting_.empty() && !stopping_) changed_.Wait(mu_);
      if (stopping_) return;
      work = std::move(waiting_.front());
      waiting_.pop_front();
      running_ = true;
    }
    work();
  }
}

}  // namespace dmuon::node
