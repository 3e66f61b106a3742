// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "tests/sim/faults.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace dmuon::sim {
namespace {

constexpr uint64_t kMostFaults = 5;
// From far shorter than any timeout to longer than the lease and than a step's patience.
constexpr absl::Duration kShortest = absl::Milliseconds(5);
constexpr absl::Duration kLongest = absl::Seconds(12);

absl::string_view NameOf(FaultKind kind) {
  constexpr std::array<absl::string_view, 11> kNames = {
      "coordinator crash", "node crash", "power loss", "worker crash", "coordinator freeze", "node freeze",
      "worker freeze", "partition", "one-way partition", "connection reset", "slow disk"};
  return kNames[static_cast<size_t>(kind)];
}

std::vector<FaultKind> Kinds(const FaultMenu& menu) {
  std::vector<FaultKind> kinds;
  const auto add = [&](bool on, std::initializer_list<FaultKind> more) {
    if (on) kinds.insert(kinds.end(), more);
  };
  add(menu.crash, {FaultKind::kCoordinatorCrash, FaultKind::kNodeCrash, FaultKind::kPowerLoss, FaultKind::kWorkerCrash,
                   FaultKind::kWorkerCrash});
  add(menu.freeze, {FaultKind::kCoordinatorFreeze, FaultKind::kNodeFreeze, FaultKind::kNodeFreeze,
                    FaultKind::kWorkerFreeze});
  add(menu.partition, {FaultKind::kPartition, FaultKind::kOneWay, FaultKind::kReset, FaultKind::kReset});
  add(menu.disk, {FaultKind::kSlowDisk});
  return kinds;
}

}  // namespace

std::string Fault::Describe() const {
  std::string text = absl::StrCat(absl::FormatDuration(at), " ", NameOf(kind));
  const bool pair = kind == FaultKind::kPartition || kind == FaultKind::kOneWay;
  if (pair) absl::StrAppend(&text, " of ", a, " and ", b);
  if (!pair && kind != FaultKind::kSlowDisk && kind != FaultKind::kCoordinatorCrash) absl::StrAppend(&text, " of ", a);
  return absl::StrCat(text, " for ", absl::FormatDuration(lasts));
}

absl::StatusOr<FaultMenu> FaultMenu::Parse(absl::string_view text) {
  FaultMenu menu;
  if (text == "all") return menu;
  menu = {false, false, false, false, false, false, false, false};
  if (text == "none") return menu;
  const std::array<std::pair<absl::string_view, bool*>, 8> words = {{{"loss", &menu.loss},
                                                                     {"delay", &menu.delay},
                                                                     {"crash", &menu.crash},
                                                                     {"freeze", &menu.freeze},
                                                                     {"partition", &menu.partition},
                                                                     {"disk", &menu.disk},
                                                                     {"drain", &menu.drain},
                                                                     {"mistakes", &menu.mistakes}}};
  for (const absl::string_view word : absl::StrSplit(text, ',')) {
    const auto found = std::find_if(words.begin(), words.end(), [&](const auto& known) { return known.first == word; });
    if (found == words.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--faults: \"", word, "\" is none of loss, delay, crash, freeze, partition, disk, drain, mistakes"));
    }
    *found->second = true;
  }
  return menu;
}

FaultPlan DrawFaults(const FaultMenu& menu, uint32_t nodes, uint32_t workers, absl::Duration activity, Random& random) {
  FaultPlan plan;
  const uint64_t weather = random.Below(3);  // fair, changeable, foul
  if (menu.loss && weather > 0) plan.network.loss = weather == 1 ? 0.01 : 0.05;
  if (menu.loss && random.Chance(0.5)) plan.network.duplication = 0.05;
  if (menu.delay && weather > 0) plan.network.delay = weather == 1 ? 0.02 : 0.1;
  if (menu.mistakes && random.Chance(0.2)) plan.mistakes = 0.2;
  const std::vector<FaultKind> kinds = Kinds(menu);
  const uint64_t count = kinds.empty() ? 0 : random.Below(kMostFaults);
  plan.calm = activity;
  for (uint64_t i = 0; i < count; ++i) {
    Fault fault;
    fault.kind = kinds[random.Below(kinds.size())];
    fault.at = random.Between(absl::ZeroDuration(), activity);
    fault.lasts = random.Spread(kShortest, kLongest);
    const bool of_worker = fault.kind == FaultKind::kWorkerCrash || fault.kind == FaultKind::kWorkerFreeze;
    fault.a = static_cast<uint32_t>(random.Below(of_worker ? workers : nodes));
    fault.b = static_cast<uint32_t>((fault.a + 1 + random.Below(nodes)) % (nodes + 1));
    if (random.Chance(0.5)) std::swap(fault.a, fault.b);
    if (fault.kind != FaultKind::kPartition && fault.kind != FaultKind::kOneWay) fault.a %= of_worker ? workers : nodes;
    plan.calm = std::max(plan.calm, fault.at + fault.lasts);
    plan.faults.push_back(fault);
  }
  return plan;
}

void AddNodeCrashes(const FaultMenu& menu, uint32_t nodes, absl::Duration activity, Random& random, FaultPlan& plan) {
  const uint64_t count = menu.crash ? random.Below(3) : 0;
  absl::Duration at = random.Between(absl::ZeroDuration(), activity);
  for (uint64_t i = 0; i < count; ++i) {
    Fault fault;
    fault.kind = random.Chance(0.5) ? FaultKind::kNodeCrash : FaultKind::kPowerLoss;
    fault.at = at;
    fault.lasts = random.Spread(kShortest, absl::Seconds(3));
    fault.a = static_cast<uint32_t>(random.Below(nodes));
    plan.calm = std::max(plan.calm, fault.at + fault.lasts);
    plan.faults.push_back(fault);
    // Into the recovery from the one before, or after it.
    at += random.Spread(absl::Milliseconds(1), absl::Seconds(3));
  }
}

void AddDrains(const FaultMenu& menu, uint32_t nodes, absl::Duration activity, Random& random, FaultPlan& plan) {
  if (!menu.drain || nodes < 2 || !random.Chance(0.25)) return;
  if (random.Chance(0.3)) plan.no_memory = 0.3;
  const uint64_t count = 1 + random.Below(4);
  std::set<uint32_t> drained;
  for (uint64_t i = 0; i < count; ++i) {
    DrainCall call;
    call.at = random.Between(absl::ZeroDuration(), activity);
    plan.drains.push_back(call);
  }
  std::sort(plan.drains.begin(), plan.drains.end(), [](const DrainCall& a, const DrainCall& b) { return a.at < b.at; });
  for (DrainCall& call : plan.drains) {
    call.node = static_cast<uint32_t>(random.Below(nodes));
    call.undo = drained.contains(call.node) || drained.size() + 1 == nodes;
    if (call.undo && !drained.contains(call.node)) call.node = *drained.begin();
    call.undo ? static_cast<void>(drained.erase(call.node)) : static_cast<void>(drained.insert(call.node));
  }
}

}  // namespace dmuon::sim
