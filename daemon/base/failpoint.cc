// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/base/failpoint.h"

#include <google/protobuf/descriptor.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "daemon/base/log.h"
#include "wire/error.h"
#include "wire/mutex.h"

namespace dmuon {
namespace {

constexpr bool InOrder() {
  for (size_t i = 0; i < kFailpoints.size(); ++i) {
    if (kFailpoints[i].point != static_cast<Failpoint>(i)) return false;
  }
  return true;
}
static_assert(InOrder(), "kFailpoints must have the order of Failpoint");

enum class Action : uint8_t { kExit, kLose };

struct Armed {
  Armed(std::string of, Action what, uint64_t when) : name(std::move(of)), action(what), nth(when) {}
  const std::string name;
  const Action action;
  const uint64_t nth;
  uint64_t reached = 0;
};

struct AllArmed {
  wire::Mutex mu;  // before the log's only
  std::deque<Armed> entries ABSL_GUARDED_BY(mu);
};

// Never destroyed: threads may reach a failpoint while the process ends.
AllArmed& All() {
  static auto* const all = new AllArmed();
  return *all;
}

bool IsAnswer(absl::string_view name) { return absl::StrContains(name, '/'); }

absl::Status Wrong(absl::string_view what) {
  return wire::InvalidField(absl::StrCat(kFailpointsVariable, ": ", what));
}

std::vector<std::string> KnownNames(std::span<const absl::string_view> services) {
  std::vector<std::string> names;
  for (const FailpointInfo& info : kFailpoints) names.emplace_back(info.name);
  for (const absl::string_view name : services) {
    const auto* const pool = google::protobuf::DescriptorPool::generated_pool();
    const auto* const service = pool->FindServiceByName(std::string(name));
    for (int i = 0; service != nullptr && i < service->method_count(); ++i) {
      names.push_back(absl::StrCat(std::string(service->name()), "/", std::string(service->method(i)->name())));
    }
  }
  return names;
}

struct Entry {
  std::string name;
  Action action;
  uint64_t nth;
};

absl::StatusOr<Entry> Parse(absl::string_view text, const std::vector<std::string>& known) {
  const std::pair<absl::string_view, absl::string_view> halves = absl::StrSplit(text, absl::MaxSplits('=', 1));
  const std::pair<absl::string_view, absl::string_view> when = absl::StrSplit(halves.second, absl::MaxSplits('@', 1));
  if (std::find(known.begin(), known.end(), halves.first) == known.end()) {
    return Wrong(absl::StrCat("'", halves.first, "' is no failpoint; there are: ", absl::StrJoin(known, ", ")));
  }
  Entry entry{std::string(halves.first), Action::kExit, 1};
  if (when.first == "lose") {
    entry.action = Action::kLose;
  } else if (when.first != "exit") {
    return Wrong(absl::StrCat("'", when.first, "' of ", entry.name,
                              " is no action; there are: exit, lose (answers of RPCs only)"));
  }
  if (entry.action == Action::kLose && !IsAnswer(entry.name)) {
    return Wrong(absl::StrCat(entry.name, " has no answer to lose; only Service/Method has"));
  }
  if (absl::StrContains(halves.second, '@') && (!absl::SimpleAtoi(when.second, &entry.nth) || entry.nth == 0)) {
    return Wrong(absl::StrCat("'", when.second, "' of ", entry.name, " is no number from 1 on"));
  }
  return entry;
}

absl::string_view TextOf(Action action) { return action == Action::kExit ? "exit" : "lose"; }

}  // namespace

absl::Status ArmFailpoints(const char* list, std::span<const absl::string_view> services) {
  internal::failpoints_armed.store(false, std::memory_order_relaxed);
  AllArmed& all = All();
  wire::MutexLock lock(all.mu);
  all.entries.clear();
  if (list == nullptr || *list == '\0') return absl::OkStatus();
  const std::vector<std::string> known = KnownNames(services);
  std::vector<Entry> entries;
  for (const absl::string_view text : absl::StrSplit(list, ',')) {
    absl::StatusOr<Entry> entry = Parse(text, known);
    if (!entry.ok()) return entry.status();
    entries.push_back(*std::move(entry));
  }
  for (Entry& entry : entries) {
    LogWarning("failpoint ", entry.name, " is armed: ", TextOf(entry.action), " at time ", entry.nth);
    all.entries.emplace_back(std::move(entry.name), entry.action, entry.nth);
  }
  internal::failpoints_armed.store(true, std::memory_order_relaxed);
  return absl::OkStatus();
}

bool internal::Strike(std::string_view name) {
  bool loses = false;
  AllArmed& all = All();
  wire::MutexLock lock(all.mu);
  for (Armed& armed : all.entries) {
    if (armed.name != name || ++armed.reached != armed.nth) continue;
    LogWarning("failpoint ", armed.name, " strikes: ", TextOf(armed.action), " at time ", armed.nth);
    if (armed.action == Action::kExit) ::kill(::getpid(), SIGKILL);
    loses = loses || armed.action == Action::kLose;
  }
  return loses;
}

}  // namespace dmuon
