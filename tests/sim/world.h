// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Virtual time, one source of chance, and processes that may crash and freeze. Everything that happens in a schedule
// is an event here; events at one time run in the order in which they were asked for, so a seed is a schedule.
#pragma once

#include <algorithm>
#include <coroutine>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace dmuon::sim {

// Mixes numbers into one: what stands for bytes in a schedule are such digests.
uint64_t Mix(uint64_t a, uint64_t b);
template <typename... Rest>
uint64_t Mix(uint64_t a, uint64_t b, uint64_t c, Rest... rest) {
  return Mix(Mix(a, b), c, rest...);
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next();
  // 0..bound-1.
  uint64_t Below(uint64_t bound) { return Next() % bound; }
  bool Chance(double probability) { return Unit() < probability; }
  // Between the two, all orders of magnitude alike.
  absl::Duration Spread(absl::Duration least, absl::Duration most);
  absl::Duration Between(absl::Duration least, absl::Duration most) { return least + Unit() * (most - least); }

 private:
  double Unit() { return static_cast<double>(Next() >> 11U) * 0x1.0p-53; }
  uint64_t state_;
};

// Something that runs, or not. Its events are dropped when it has crashed since they were asked for, and wait while it
// is frozen.
struct Process {
  std::string name;
  bool up = false;
  uint64_t life = 0;    // grows with every start
  bool silent = false;  // its host is off: nobody is told that its connections have ended
  absl::Time frozen_until = absl::InfinitePast();
};

class World {
 public:
  World(uint64_t seed, bool trace) : random(seed), tracing_(trace) {}
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  [[nodiscard]] absl::Time now() const { return now_; }
  // Null process: what happens from outside, always.
  void After(absl::Duration delay, const Process* process, std::function<void()> run);
  // Runs events until there is none before `until`, or `done` says so. False: `until` came first.
  bool RunUntil(absl::Time until, const std::function<bool()>& done);
  [[nodiscard]] uint64_t events() const { return next_; }
  // Nothing happens any more: what waits is dropped, while all that it refers to is still there.
  void End();

  template <typename... Parts>
  void Trace(absl::string_view who, const Parts&... parts) {
    if (tracing_) Print(who, absl::StrCat(parts...));
  }
  [[nodiscard]] bool tracing() const { return tracing_; }

  Random random;

 private:
  struct Event {
    absl::Time at;
    uint64_t number = 0;
    const Process* process = nullptr;
    uint64_t life = 0;
    std::function<void()> run;
  };
  static bool Later(const Event& a, const Event& b) { return a.at != b.at ? a.at > b.at : a.number > b.number; }
  void Push(Event event);
  void Print(absl::string_view who, const std::string& what) const;

  const bool tracing_;
  bool over_ = false;
  absl::Time now_ = absl::UnixEpoch();
  uint64_t next_ = 0;
  std::vector<Event> queue_;  // a heap
};

// Where tasks of one process wait. Awaiting gives true when Notify came, false when the time was over.
class Signal {
 public:
  Signal(World* world, const Process* process) : world_(world), process_(process) {}

  class Wait {
   public:
    Wait(Signal* signal, absl::Time until) : signal_(signal), until_(until) {}
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;
    ~Wait() {
      if (slot_ != nullptr) slot_->waiting = nullptr;
    }
    [[nodiscard]] bool await_ready() const noexcept { return false; }
    void await_suspend(std::coroutine_handle<> waiting);
    bool await_resume() const noexcept { return slot_->notified; }

   private:
    friend class Signal;
    struct Slot {
      std::coroutine_handle<> waiting;
      bool notified = false;
    };
    static void Resume(Slot& slot);

    Signal* const signal_;
    const absl::Time until_;
    std::shared_ptr<Slot> slot_;
  };

  Wait Until(absl::Time until) { return {this, until}; }
  Wait For(absl::Duration duration) { return {this, world_->now() + duration}; }
  void Notify();

 private:
  World* const world_;
  const Process* const process_;
  std::vector<std::shared_ptr<Wait::Slot>> slots_;
};

}  // namespace dmuon::sim
