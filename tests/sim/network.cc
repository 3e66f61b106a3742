// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "tests/sim/network.h"

#include <algorithm>

namespace dmuon::sim {
namespace {

constexpr absl::Duration kRetransmission = absl::Milliseconds(200);

}  // namespace

void Network::Cut(const Process& from, const Process& to, absl::Duration duration) {
  absl::Time& until = cut_until_.try_emplace({&from, &to}, absl::InfinitePast()).first->second;
  until = std::max(until, world_->now() + duration);
}

bool Network::IsCut(const Process& from, const Process& to) const {
  const auto cut = cut_until_.find({&from, &to});
  return cut != cut_until_.end() && cut->second > world_->now();
}

absl::Duration Network::Delay() {
  Random& random = world_->random;
  if (random.Chance(options_.delay)) return random.Spread(absl::Milliseconds(5), options_.longest_delay);
  return random.Between(absl::Microseconds(100), absl::Milliseconds(1));
}

void Network::Stream(const Process& from, const Process& to, absl::Time& last, std::function<void()> deliver) {
  absl::Duration delay = Delay();
  if (world_->random.Chance(options_.loss)) delay += kRetransmission;
  last = std::max(last, world_->now() + delay);
  world_->After(last - world_->now(), &to,
                [this, &from, &to, deliver = std::move(deliver)]() mutable { Redeliver(from, to, std::move(deliver)); });
}

// What a partition holds up comes when it has healed.
void Network::Redeliver(const Process& from, const Process& to, std::function<void()> deliver) {
  if (!IsCut(from, to)) return deliver();
  world_->After(cut_until_.at({&from, &to}) - world_->now(), &to, std::move(deliver));
}

uint64_t Network::OnCrash(const Process& of, Hook hook) {
  hooks_[&of].emplace(next_hook_, std::move(hook));
  return next_hook_++;
}

void Network::Crashed(const Process& of) {
  for (auto& [number, hook] : std::exchange(hooks_[&of], {})) hook();
}

}  // namespace dmuon::sim
