// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// I20 to I22: jobs that go over to other owners while they run.

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/invariants.h"
#include "tests/sim/training.h"

namespace dmuon::sim {
namespace {

// How many steps a job may take under a plan that is not the wanted one, once nothing fails any more and all nodes have joined.
constexpr uint64_t kStepsToHear = 5;
constexpr absl::Duration kTimeToHear = absl::Seconds(4);

class HandoverChecker : Violations {
 public:
  HandoverChecker(const History& history, uint32_t nodes) : history_(history), nodes_(nodes) {}

  std::vector<Violation> Run() {
    OnePlanAStep();
    SameState();
    DrainsEnd();
    return Take();
  }

 private:
  // I20: no step is done under two plans, by whatever nodes.
  void OnePlanAStep() {
    std::map<std::string, std::map<uint64_t, uint64_t>> plans;  // by job and step
    for (const Event& event : history_) {
      std::map<uint64_t, uint64_t>& of_job = plans[event.job];
      if (event.what == What::kRecovered) of_job.erase(of_job.upper_bound(event.step), of_job.end());
      if (event.what == What::kLoaded) of_job.clear();
      if (event.what != What::kApplied) continue;
      const auto first = of_job.try_emplace(event.step, event.generation).first;
      Expect(first->second == event.generation, "I20", event, "does step ", event.step, " under generation ", event.generation,
             ", another node under ", first->second);
    }
  }

  // I21: what a new owner has is what the old one had after the last step: nothing is lost, nothing applied twice.
  void SameState() {
    std::map<std::pair<std::string, uint64_t>, Values> states;  // by job and step
    for (const Event& event : history_) {
      const bool has = event.what == What::kLoaded || event.what == What::kApplied || event.what == What::kRecovered;
      if (event.what == What::kLoaded) {  // perhaps again
        std::erase_if(states, [&](const auto& state) { return state.first.first == event.job && state.first.second > 0; });
      }
      if (!has && event.what != What::kHandedOver) continue;
      Values& state = states[{event.job, event.step}];
      state.resize(event.digests.size());
      for (size_t unit = 0; unit < event.digests.size(); ++unit) {
        if (event.digests[unit] == 0) continue;
        if (has) state[unit] = event.digests[unit];
        Expect(state[unit] == event.digests[unit], "I21", event, "has another master of unit ", unit, " at step ", event.step,
               " than its former owner");
      }
    }
  }

  // I22: once nothing fails any more, a drained node owns nothing.
  void DrainsEnd() {
    bool calm = false;
    absl::Time from = absl::InfinitePast();  // the last time that they changed their minds
    std::map<std::string, bool> wanted;                             // node -> drained, as heard since then
    std::map<std::string, std::pair<uint64_t, std::vector<Digest>>> plans;  // by job: generation, owners
    std::string job;
    uint64_t since = 0;  // steps of `job`
    for (const Event& event : history_) {
      calm = calm || event.what == What::kCalm;
      if (event.what == What::kAdopted && event.generation >= plans[event.job].first) {
        plans[event.job] = {event.generation, event.digests};
      }
      if (event.what == What::kDrained && calm && event.status.ok()) {
        const bool drained = !event.flag;
        if (!wanted.contains(event.who) || wanted[event.who] != drained) {
          since = 0;
          from = event.at;
        }
        wanted[event.who] = drained;
      }
      if (event.what != What::kAcked || event.who != "rank-0") continue;
      since = event.job == job ? since + 1 : 0;
      job = event.job;
      if (wanted.size() < nodes_ || since <= kStepsToHear || event.at < from + kTimeToHear) continue;
      for (const Digest owner : plans[job].second) {
        const std::string node = absl::StrCat("node-", owner - 1);
        Expect(!wanted[node], "I22", event, node, " is drained, and owns something ", since, " steps later, under generation ",
               plans[job].first);
      }
    }
  }

  const History& history_;
  const uint32_t nodes_;
};

}  // namespace

std::vector<Violation> CheckHandover(const History& history, uint32_t nodes) { return HandoverChecker(history, nodes).Run(); }

History AsOneGeneration(const History& history) {
  std::map<uint64_t, uint64_t> first;  // of a generation that a job has gone over to
  for (const Event& event : history) {
    if (event.what != What::kHandedOver) continue;
    const auto before = first.find(event.before);
    first[event.generation] = before == first.end() ? event.before : before->second;
  }
  History result;
  for (const Event& event : history) {
    const auto found = first.find(event.generation);
    if (found != first.end() && event.what == What::kPlanned) continue;
    result.push_back(event);
    if (found != first.end()) result.back().generation = found->second;
  }
  return result;
}

}  // namespace dmuon::sim
