// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "tests/sim/world.h"

#include <cmath>
#include <cstdio>
#include <utility>

namespace dmuon::sim {

// The finaliser of splitmix64.
uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15ULL + b + 0x632be59bd9b4e019ULL;
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31U);
}

uint64_t Random::Next() { return Mix(state_++, 0x5eed); }

absl::Duration Random::Spread(absl::Duration least, absl::Duration most) {
  const double from = std::log(absl::ToDoubleSeconds(least));
  const double to = std::log(absl::ToDoubleSeconds(most));
  return absl::Seconds(std::exp(from + Unit() * (to - from)));
}

void World::End() {
  over_ = true;
  const std::vector<Event> dropped = std::exchange(queue_, {});
}

void World::Push(Event event) {
  if (over_) return;
  event.number = next_++;
  queue_.push_back(std::move(event));
  std::push_heap(queue_.begin(), queue_.end(), Later);
}

void World::After(absl::Duration delay, const Process* process, std::function<void()> run) {
  Push({now_ + delay, 0, process, process == nullptr ? 0 : process->life, std::move(run)});
}

bool World::RunUntil(absl::Time until, const std::function<bool()>& done) {
  while (!done()) {
    if (queue_.empty() || queue_.front().at > until) {
      now_ = std::max(now_, until);
      return false;
    }
    std::pop_heap(queue_.begin(), queue_.end(), Later);
    Event event = std::move(queue_.back());
    queue_.pop_back();
    now_ = event.at;
    const Process* process = event.process;
    if (process != nullptr && (!process->up || process->life != event.life)) continue;
    if (process != nullptr && process->frozen_until > now_) {
      event.at = process->frozen_until;
      Push(std::move(event));
      continue;
    }
    event.run();
  }
  return true;
}

void World::Print(absl::string_view who, const std::string& what) const {
  std::printf("%12.6f  %-10.*s %s\n", absl::ToDoubleSeconds(now_ - absl::UnixEpoch()), static_cast<int>(who.size()),
              who.data(), what.c_str());
}

void Signal::Wait::Resume(Slot& slot) {
  if (!slot.waiting) return;
  std::exchange(slot.waiting, nullptr).resume();
}

void Signal::Wait::await_suspend(std::coroutine_handle<> waiting) {
  slot_ = std::make_shared<Slot>();
  slot_->waiting = waiting;
  std::erase_if(signal_->slots_, [](const auto& slot) { return !slot->waiting; });
  signal_->slots_.push_back(slot_);
  if (until_ == absl::InfiniteFuture()) return;
  const absl::Duration left = std::max(until_ - signal_->world_->now(), absl::ZeroDuration());
  signal_->world_->After(left, signal_->process_, [slot = slot_] { Resume(*slot); });
}

void Signal::Notify() {
  for (const auto& slot : std::exchange(slots_, {})) {
    if (!slot->waiting) continue;
    slot->notified = true;
    world_->After(absl::ZeroDuration(), process_, [slot] { Wait::Resume(*slot); });
  }
}

}  // namespace dmuon::sim
