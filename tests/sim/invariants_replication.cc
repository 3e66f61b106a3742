// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What must hold of jobs whose nodes keep copies of each other's state.

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/invariants.h"
#include "tests/sim/ledger.h"
#include "wire/error.h"

namespace dmuon::sim {
namespace {

class ReplicationChecker : Violations {
 public:
  ReplicationChecker(const History& history, bool sync, uint32_t nodes)
      : history_(history), sync_(sync), nodes_(nodes) {}

  std::vector<Violation> Run() {
    UndoneStepsAreTold();
    OneStepForAll();
    LostTogether();
    return Take();
  }

 private:
  // A worker's process.
  struct Told {
    uint64_t generation = 0;
    uint64_t step = 0;    // that it was told of
    bool undone = false;  // and has not heard of it
  };
  using Who = std::pair<std::string, uint64_t>;

  // I15, sync: no step that a worker was told of is undone. I16, async: one at most, and a worker that was told of it is
  // told that it is undone before it goes on.
  void UndoneStepsAreTold() {
    std::map<Who, Told> workers;
    std::map<uint64_t, uint64_t> reached;  // last step that is not undone, by generation
    for (const Event& event : history_) {
      if (event.what == What::kApplied) reached[event.generation] = std::max(reached[event.generation], event.step);
      if (event.what == What::kRecovered) {
        reached[event.generation] = event.step;
        for (auto& [who, told] : workers) {
          if (told.generation == event.generation) Undo(event, who.first, event.step, told);
        }
      }
      if (event.what == What::kCrashed || event.what == What::kLeft) workers.erase({event.who, event.life});
      if (event.what == What::kBegun && !event.must) {
        Told& told = workers[{event.who, event.life}];
        told = {event.generation, event.step, told.undone};
      }
      if (event.what == What::kTold && wire::ReasonOf(event.status) == v1::ERROR_REASON_ROLLED_BACK) {
        Expect(!sync_, "I15", event, "is told that steps are undone: ", event.status.message());
        workers[{event.who, event.life}] = {event.generation, 0, false};  // until it has begun again
      }
      if (event.what != What::kAcked) continue;
      Told& told = workers[{event.who, event.life}];
      Expect(!told.undone, "I16", event, "goes on with step ", event.step, " and was not told that step ", told.step,
             " is undone");
      told = {event.generation, event.step, false};
      // It was undone while the answer was on its way.
      Undo(event, event.who, reached[event.generation], told);
    }
  }
  void Undo(const Event& event, const std::string& who, uint64_t step, Told& told) {
    if (told.step <= step) return;
    Expect(!sync_, "I15", event, "step ", told.step, ", which ", who, " was told of, is undone; the job is at ", step);
    Expect(sync_ || told.step == step + 1, "I16", event, "steps ", step + 1, " to ", told.step, ", which ", who,
           " was told of, are undone");
    told.undone = true;
  }

  // I17: all nodes go to one step in one recovery.
  void OneStepForAll() {
    std::map<std::pair<uint64_t, uint64_t>, uint64_t> steps;  // by generation and recovery
    for (const Event& event : history_) {
      if (event.what != What::kRecovered) continue;
      const auto first = steps.try_emplace({event.generation, event.number}, event.step).first;
      Expect(first->second == event.step, "I17", event, "is at step ", event.step, " after recovery ", event.number,
             ", another node at ", first->second);
    }
  }

  // I18: state is lost only with a node and its buddy, and then nobody goes on from what is left.
  void LostTogether() {
    StateLedger ledger(nodes_);
    std::map<std::string, uint64_t> of_life;   // generation of a worker's process
    std::map<uint64_t, uint64_t> acked;
    std::set<uint64_t> loaded;
    bool out_of_turn = false;  // see AcknowledgedSurvives
    for (const Event& event : history_) {
      ledger.See(event);
      out_of_turn = out_of_turn || event.what == What::kOutOfTurn;
      if (event.what == What::kStarted) of_life.erase(event.who);
      if (event.what == What::kBegun) of_life[event.who] = event.generation;
      if (event.what == What::kAcked) acked[event.generation] = event.step;
      if (event.what == What::kLoaded) loaded.insert(event.generation);
      if (event.what == What::kRecovered) {
        Expect(loaded.contains(event.generation), "I18", event, "goes to step ", event.step,
               " of a generation that has never had state");
      }
      if (event.what == What::kRecovered || event.what == What::kApplied || event.what == What::kLoaded) {
        Expect(!ledger.CameAfterTheLoss(event.generation, event.who), "I18", event,
               "goes on in a generation of which the state is lost");
      }
      if (event.what != What::kTold || !event.flag || out_of_turn) continue;
      const uint64_t generation = of_life[event.who];
      Expect(acked[generation] == 0 || ledger.MayBeLost(generation), "I18", event,
             "is told of lost state, which others have copies of: ", event.status.ToString());
    }
  }

  const History& history_;
  const bool sync_;
  const uint32_t nodes_;
};

}  // namespace

std::vector<Violation> CheckReplication(const History& history, const v1::JobSpec& job, uint32_t nodes) {
  const bool sync = job.replication() == v1::REPLICATION_SYNC;
  if (!sync && job.replication() != v1::REPLICATION_ASYNC) return {};
  return ReplicationChecker(history, sync, nodes).Run();
}

}  // namespace dmuon::sim
