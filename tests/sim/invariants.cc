// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "tests/sim/invariants.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/ledger.h"
#include "tests/sim/training.h"
#include "wire/error.h"

namespace dmuon::sim {
namespace {

using Key = std::pair<uint64_t, uint64_t>;  // generation, step

class Checker : Violations {
 public:
  Checker(const History& history, const v1::JobSpec& job, uint32_t nodes)
      : history_(history),
        job_(job),
        nodes_(nodes),
        is_replicated_(job.replication() == v1::REPLICATION_SYNC || job.replication() == v1::REPLICATION_ASYNC),
        is_async_(job.replication() == v1::REPLICATION_ASYNC) {}

  // Of generations as they are.
  std::vector<Violation> RunByGeneration() {
    Fencing();
    OneOwner();
    return Take();
  }

  std::vector<Violation> Run() {
    OneCommit();
    NoGaps();
    SameWeights();
    AcknowledgedSurvives();
    AbortedChangesNothing();
    OutcomesResolve();
    Checkpoints();
    Baseline();
    Oracle();
    return Take();
  }

 private:
  // What comes after the step of a recovery has not been.
  template <typename Value>
  static void ForgetAfter(const Event& recovered, std::map<Key, Value>& by_step) {
    by_step.erase(by_step.upper_bound({recovered.generation, recovered.step}),
                  by_step.lower_bound({recovered.generation + 1, 0}));
  }

  // I1: in one generation a node applies a step once, and all agree on whether it is skipped.
  void OneCommit() {
    std::set<std::tuple<uint64_t, uint64_t, std::string>> applied;
    std::map<Key, bool> skipped;
    for (const Event& event : history_) {
      if (event.what == What::kRecovered) {
        std::erase_if(applied, [&](const auto& of) {
          const auto& [generation, step, who] = of;
          return generation == event.generation && step > event.step && who == event.who;
        });
        ForgetAfter(event, skipped);
      }
      if (event.what != What::kApplied) continue;
      Expect(applied.emplace(event.generation, event.step, event.who).second, "I1", event, "applies step ", event.step,
             " of generation ", event.generation, " once more");
      const auto first = skipped.try_emplace({event.generation, event.step}, event.skipped).first;
      Expect(first->second == event.skipped, "I1", event, "step ", event.step, " is skipped on one node, not on another");
    }
  }

  // I2: of a node's state, and of what a worker is told.
  void NoGaps() {
    std::map<std::pair<std::string, uint64_t>, uint64_t> reached;  // by who and generation, or life
    for (const Event& event : history_) {
      if (event.what == What::kLoaded) reached[{event.who, event.generation}] = 0;
      if (event.what == What::kRecovered || event.what == What::kReadmitted) reached[{event.who, event.generation}] = event.step;
      if (event.what == What::kApplied) Follows(event, reached[{event.who, event.generation}], "applies");
      if (event.what == What::kBegun && !event.must) reached[{event.who, event.life}] = event.step;
      if (event.what == What::kAcked) Follows(event, reached[{event.who, event.life}], "is told");
    }
  }
  void Follows(const Event& event, uint64_t& last, const char* verb) {
    Expect(event.step == last + 1, "I2", event, verb, " step ", event.step, " after ", last);
    last = event.step;
  }

  // I3: generations are new, calls of former processes are refused, and an old generation has no effect after a new
  // one of the same job has state.
  void Fencing() {
    std::set<uint64_t> planned;
    std::map<std::string, uint64_t> latest;  // generation with state, by job
    for (const Event& event : history_) {
      if (event.what == What::kPlanned) {
        Expect(planned.insert(event.generation).second, "I3", event, "gives out generation ", event.generation, " again");
      }
      if (event.what == What::kAccepted) {
        Expect(event.life == event.number, "I3", event, "a call of life ", event.life, " is taken, ", event.number,
               " has joined");
      }
      Expect(event.what != What::kMistaken, "I3", event, "takes ", event.text);
      if (event.what == What::kLoaded) latest[event.job] = std::max(latest[event.job], event.generation);
      if (event.what == What::kLoaded || event.what == What::kApplied || event.what == What::kAcked) {
        Expect(event.generation >= latest[event.job], "I3", event, "generation ", event.generation,
               " has an effect, though generation ", latest[event.job], " has begun");
      }
    }
  }

  // I4.
  void SameWeights() {
    std::map<Key, Digest> weights;
    for (const Event& event : history_) {
      if (event.what == What::kRecovered) ForgetAfter(event, weights);
      if (event.skipped || (event.what != What::kAcked && !(event.what == What::kBegun && event.flag))) continue;
      const auto first = weights.try_emplace({event.generation, event.step}, event.digest).first;
      Expect(first->second == event.digest, "I4", event, "has other weights at step ", event.step, " than another worker");
    }
  }

  // I5: a worker that begins again finds what was acknowledged; state is only lost with a node's process, and then
  // nobody goes on from other values.
  void AcknowledgedSurvives() {
    std::map<uint64_t, uint64_t> acked;                                  // last step, by generation
    std::map<std::string, uint64_t> of_life;                             // generation of a worker's process
    std::set<std::pair<std::string, uint64_t>> crashed;                  // processes
    std::map<uint64_t, std::set<std::pair<std::string, uint64_t>>> holders;  // nodes' processes, by generation
    std::set<std::pair<std::string, uint64_t>> begun;                    // workers' processes that have trained
    bool out_of_turn = false;  // a known limitation: the coordinator takes the present process for a new one without state
    for (const Event& event : history_) {
      out_of_turn = out_of_turn || event.what == What::kOutOfTurn;
      if (event.what == What::kCrashed) crashed.emplace(event.who, event.life);
      if (event.what == What::kAdopted) holders[event.generation].emplace(event.who, event.life);
      if (event.what == What::kStarted) of_life.erase(event.who);
      if (event.what == What::kRecovered && is_async_) {
        acked[event.generation] = std::min(acked[event.generation], event.step);  // I16 speaks of the rest
      }
      if (event.what == What::kBegun) {
        Expect(event.flag || !begun.contains({event.who, event.life}), "I5", event, "begins again, without state");
        Expect(!event.flag || event.skipped || event.step >= acked[event.generation], "I5", event, "begins again at step ", event.step,
               ", acknowledged was ", acked[event.generation]);
        Expect(!event.must || event.flag, "I5", event, "counts on state, and begins without");
        if (!event.must) of_life[event.who] = event.generation;
      }
      if (event.what == What::kAcked) {
        begun.emplace(event.who, event.life);
        if (!event.skipped) acked[event.generation] = std::max(acked[event.generation], event.step);
        Expect(of_life[event.who] == event.generation, "I5", event, "goes on in generation ", event.generation,
               ", its parameters are of ", of_life[event.who]);
      }
      if (event.what != What::kTold || !event.flag) continue;
      bool cause = out_of_turn || acked[of_life[event.who]] == 0;  // a job may end before its first step
      for (const uint64_t generation : {event.generation, of_life[event.who]}) {  // registered, and begun
        for (const auto& holder : holders[generation]) cause = cause || crashed.contains(holder);
      }
      Expect(cause, "I5", event, "is told of lost state, and no node that had it has crashed: ",
             event.status.ToString());
    }
  }

  // I6: what is answered as "nothing changed" has changed nothing, and neither has a skipped step.
  void AbortedChangesNothing() {
    for (const Event& event : history_) {
      if (event.what == What::kApplied && event.skipped) {
        Expect(event.before == event.digest, "I6", event, "step ", event.step, " is skipped and changes masters");
      }
      if (event.what != What::kRan || event.status.ok()) continue;
      // Whatever broke the round: masters move with `reached`, or not at all.
      if (event.number != 0) continue;
      Expect(event.before == event.digest, "I6", event, "step ", event.step, " ends with ", event.status.ToString(),
             " and changes masters");
    }
  }

  // I8.
  void OneOwner() {
    int64_t elements = 0;
    for (const v1::Tensor& tensor : job_.tensors()) {
      int64_t of_tensor = 1;
      for (const int64_t length : tensor.shape()) of_tensor *= length;
      elements += of_tensor;
    }
    std::map<uint64_t, std::vector<Digest>> owners;  // by generation
    for (const Event& event : history_) {
      if (event.what != What::kPlanned && event.what != What::kAdopted) continue;
      const auto first = owners.try_emplace(event.generation, event.digests).first;
      Expect(first->second == event.digests, "I8", event, "has other owners of generation ", event.generation);
      Expect(!std::count(event.digests.begin(), event.digests.end(), 0), "I8", event, "a unit has not one owner");
      if (event.what != What::kPlanned) continue;
      Expect(event.number == static_cast<uint64_t>(elements), "I8", event, event.number, " elements are owned, there are ",
             elements);
    }
  }

  // I9: a call that was made is answered, or its worker dies, within a time from the last fault.
  void OutcomesResolve() {
    std::optional<absl::Time> calm;
    std::map<std::string, Event> open;
    std::set<std::string> lost;  // jobs: a node that had state has crashed
    StateLedger ledger(nodes_);
    std::map<std::string, std::set<uint64_t>> generations;  // by job
    std::set<std::string> acked;                            // jobs
    std::set<std::string> left_out;                         // jobs that ended without a node: see README.md
    std::map<std::pair<std::string, uint64_t>, std::vector<std::string>> held;
    for (const Event& event : history_) {
      if (event.what == What::kOutOfTurn) return;  // see AcknowledgedSurvives
      ledger.See(event);
      if (event.what == What::kAdopted) held[{event.who, event.life}].push_back(event.job);
      if (event.what == What::kAdopted) generations[event.job].insert(event.generation);
      if (event.what == What::kCrashed) {
        for (const std::string& job : held[{event.who, event.life}]) lost.insert(job);
      }
      if (event.what == What::kCalm) calm = event.at;
      if (event.what == What::kCalled) open.try_emplace(event.who, event);
      if (event.what == What::kLeftOut) left_out.insert(event.job);
      if (event.what == What::kAcked) acked.insert(event.job);
      if (event.what == What::kAcked || event.what == What::kCrashed) open.erase(event.who);
      if (event.what != What::kTold) continue;
      const auto call = open.extract(event.who);
      // Of those that may have lost state another rule speaks.
      if (left_out.contains(event.job)) continue;
      const bool excused = lost.contains(event.job) && (!is_replicated_ || !acked.contains(event.job) ||
                                                        ledger.MayBeLost(generations[event.job]));
      if (call.empty() || event.flag || !calm.has_value() || excused) continue;
      const absl::Duration took = event.at - std::max(call.mapped().at, *calm);
      Expect(took < kResolveWithin / 2, "I9", event, "does not learn of step ", event.step, " within ",
             absl::FormatDuration(took), " of calm: ", event.status.ToString());
    }
    if (!calm.has_value()) return;
    const absl::Time end = history_.back().at;
    for (const auto& [who, call] : open) {
      Expect(end - std::max(call.at, *calm) < kResolveWithin, "I9", call, "is never answered step ", call.step);
    }
  }

  // I11: a checkpoint that exists has all parts, and each is the state after its step.
  void Checkpoints() {
    std::map<std::tuple<uint64_t, uint64_t>, std::set<Digest>> masters;  // of all nodes, by generation and step
    for (const Event& event : history_) {
      // A step that nodes have applied and not ended under one plan may be ended, and saved, under the next.
      if (event.what == What::kApplied || event.what == What::kRecovered || event.what == What::kHandedOver) {
        masters[{event.generation, event.step}].insert(event.digest);
      }
      if (event.what != What::kSaved) continue;
      Expect(event.digests.size() == event.number, "I11", event, "checkpoint of step ", event.step, " has ",
             event.digests.size(), " of ", event.number, " parts");
      const std::set<Digest>& then = masters[{event.generation, event.step}];
      Expect(then.contains(event.digest), "I11", event, "saves other masters than it had at step ", event.step);
      for (const Digest part : event.digests) {
        Expect(then.contains(part), "I11", event, "checkpoint of step ", event.step, " has a part of another state");
      }
    }
  }

  // I12.
  void Baseline() {
    for (const Event& event : history_) {
      if (event.what == What::kBaseline) Expect(event.text.empty(), "I12", event, "left over: ", event.text);
    }
  }

  // I13: masters and weights of each step are what one process would have made of the same initial parameters.
  void Oracle() {
    std::map<uint64_t, Values> initial;  // by generation
    for (const Event& event : history_) {
      if (event.what != What::kLoaded) continue;
      Values& values = initial.try_emplace(event.generation, Values(event.digests.size())).first->second;
      for (size_t unit = 0; unit < values.size(); ++unit) {
        if (event.digests[unit] != 0) values[unit] = event.digests[unit];  // the last: a start may be repeated
      }
    }
    std::map<uint64_t, Branch> branches;
    for (const auto& [generation, values] : initial) branches[generation].values = {values};
    for (const Event& event : history_) {
      Branch& branch = branches[event.generation];
      if (event.what == What::kRecovered) {
        if (branch.values.size() > event.step + 1) branch.values.resize(event.step + 1);
        branch.batches.resize(branch.values.size());
        IsOracle(event, branch, "I19", "has got back");
      } else if (event.what == What::kApplied && event.skipped && !event.flag) {
        if (branch.values.size() == event.step) branch.values.push_back(branch.values.back());  // its owners may be lost
        branch.batches.resize(branch.values.size());
      } else if (event.what == What::kApplied && event.flag) {
        if (branch.values.size() == event.step) {
          branch.values.push_back(OracleStep(job_, branch.values.back(), event.step, event.number));
          branch.batches.resize(branch.values.size());
          branch.batches.back() = event.number;
        }
        IsOracle(event, branch, "I13", "has");
      } else if (event.what == What::kAcked && !event.skipped) {
        const bool is = event.step < branch.values.size() && DigestOf(branch.values[event.step]) == event.digest;
        Expect(is, "I13", event, "has other weights at step ", event.step, " than one process");
      }
    }
  }
  // What one process would have, by step; a recovery that undoes steps begins another branch.
  struct Branch {
    std::vector<Values> values;
    std::vector<uint64_t> batches;  // that the steps' gradients are of
  };
  void IsOracle(const Event& event, const Branch& branch, const char* invariant, const char* verb) {
    if (event.step >= branch.values.size()) return Expect(false, invariant, event, verb, " a step that nobody has done");
    const Values& values = branch.values[event.step];
    for (size_t unit = 0; unit < event.digests.size(); ++unit) {
      Expect(event.digests[unit] == 0 || values[unit] == event.digests[unit], invariant, event, verb,
             " another master of unit ", unit, " at step ", event.step, " than one process");
    }
  }

  const History& history_;
  const v1::JobSpec& job_;
  const uint32_t nodes_;
  const bool is_replicated_;
  const bool is_async_;
};

}  // namespace

std::vector<Violation> Check(const History& history, const v1::JobSpec& job, uint32_t nodes) {
  const bool moved = std::any_of(history.begin(), history.end(), [](const Event& event) { return event.what == What::kHandedOver; });
  const History one = moved ? AsOneGeneration(history) : History();
  const History& of_one = moved ? one : history;
  std::vector<Violation> violations = Checker(history, job, nodes).RunByGeneration();
  const auto add = [&](std::vector<Violation> more) {
    for (Violation& violation : more) violations.push_back(std::move(violation));
  };
  add(Checker(of_one, job, nodes).Run());
  add(CheckReplication(of_one, job, nodes));
  add(CheckHandover(history, nodes));
  return violations;
}

}  // namespace dmuon::sim
