// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What carries messages between simulated processes: calls (a request and its reply, either of which may be lost, late,
// overtaken or doubled) and streams (connections, on which messages come in order or not at all, because they break).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tests/sim/task.h"
#include "tests/sim/world.h"

namespace dmuon::sim {

struct NetworkOptions {
  // Per message, while faults last.
  double loss = 0.0;
  double duplication = 0.0;
  double delay = 0.0;  // a message takes up to `longest_delay` instead of about a millisecond
  absl::Duration longest_delay = absl::Milliseconds(800);
};

class Network {
 public:
  explicit Network(World* world) : world_(world) {}

  // Without options nothing is lost, doubled or late but by a partition.
  void SetWeather(NetworkOptions options) { options_ = options; }
  // One way.
  void Cut(const Process& from, const Process& to, absl::Duration duration);
  [[nodiscard]] bool IsCut(const Process& from, const Process& to) const;

  absl::Duration Delay();
  bool Loses(const Process& from, const Process& to) { return IsCut(from, to) || world_->random.Chance(options_.loss); }
  bool Doubles() { return world_->random.Chance(options_.duplication); }

  // A message on a connection: late rather than lost, and not at all when the receiver has died. `last` keeps the order
  // of a stream.
  void Stream(const Process& from, const Process& to, absl::Time& last, std::function<void()> deliver);

  // What ends when a process crashes: calls to it, streams with it. Called with the crash.
  using Hook = std::function<void()>;
  uint64_t OnCrash(const Process& of, Hook hook);
  void Forget(const Process& of, uint64_t hook) { hooks_[&of].erase(hook); }
  void Crashed(const Process& of);

  [[nodiscard]] World* world() const { return world_; }

 private:
  void Redeliver(const Process& from, const Process& to, std::function<void()> deliver);

  World* const world_;
  NetworkOptions options_;
  std::map<std::pair<const Process*, const Process*>, absl::Time> cut_until_;
  std::map<const Process*, std::map<uint64_t, Hook>> hooks_;
  uint64_t next_hook_ = 1;
};

// A call in flight.
template <typename R>
class CallState : public std::enable_shared_from_this<CallState<R>> {
 public:
  using Reply = std::function<void(absl::StatusOr<R>)>;
  using Handler = std::function<void(Reply)>;

  CallState(Network* network, Process* from, Process* to) : done(network->world(), from), net_(network), from_(from), to_(to) {}
  ~CallState() { Unhook(); }

  void Send(const Handler& handler, bool may_double) {
    World* world = net_->world();
    copies_ = may_double && net_->Doubles() ? 2 : 1;
    hook_ = net_->OnCrash(*to_, [weak = this->weak_from_this()] {
      if (auto self = weak.lock()) self->Break();
    });
    for (int copy = 0; copy < copies_; ++copy) {
      if (net_->Loses(*from_, *to_)) {
        // A lost packet is a connection that breaks, or silence.
        if (copies_ == 1 && world->random.Chance(0.5)) Break();
        continue;
      }
      if (!to_->up) {
        Break();
        continue;
      }
      world->After(net_->Delay(), to_, [self = this->shared_from_this(), handler] {
        handler([self](absl::StatusOr<R> answer) { self->Answer(std::move(answer)); });
      });
    }
  }

  std::optional<absl::StatusOr<R>> result;
  Signal done;

 private:
  void Unhook() {
    if (hook_ != 0) net_->Forget(*to_, std::exchange(hook_, 0));
  }

  void Answer(absl::StatusOr<R> answer) {
    // The copy of a request that took its place.
    if (copies_ > 1 && absl::IsCancelled(answer.status())) return;
    if (net_->Loses(*to_, *from_)) {
      if (net_->world()->random.Chance(0.5)) Break();
      return;
    }
    Deliver(net_->Delay(), std::move(answer));
  }

  void Break() {
    if (net_->IsCut(*to_, *from_)) return;
    Deliver(net_->Delay(), absl::UnavailableError("the connection broke"));
  }

  void Deliver(absl::Duration delay, absl::StatusOr<R> answer) {
    net_->world()->After(delay, from_, [self = this->shared_from_this(), answer = std::move(answer)] {
      if (self->result.has_value()) return;
      self->result = answer;
      self->done.Notify();
    });
  }

  Network* const net_;
  Process* const from_;
  Process* const to_;
  int copies_ = 1;
  uint64_t hook_ = 0;
};

// DEADLINE_EXCEEDED without a reason when nothing has come by then, UNAVAILABLE when the connection breaks; the handler
// may have run in both cases. `handler` runs in `to`, perhaps twice if it `may_double`.
template <typename R>
Task<absl::StatusOr<R>> Call(Network* network, Process* from, Process* to, absl::Time until,
                             std::function<void(std::function<void(absl::StatusOr<R>)>)> handler,
                             bool may_double = true) {
  auto state = std::make_shared<CallState<R>>(network, from, to);
  state->Send(handler, may_double);
  while (!state->result.has_value()) {
    if (network->world()->now() >= until) co_return absl::DeadlineExceededError("Deadline Exceeded");
    co_await state->done.Until(until);
  }
  co_return *state->result;
}

}  // namespace dmuon::sim
