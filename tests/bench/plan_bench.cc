// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// How near plans come to the lower bound: public models on 8, 64 and 256 slots beside round-robin
// and plain longest-first; how many units move when an eighth of the slots leaves or joins; and how long planning takes,
// on one core.
#include <algorithm>
#include <ctime>
#include <fstream>
#include <functional>
#include <iostream>
#include <numeric>
#include <queue>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "daemon/plan/ownership.h"
#include "daemon/plan/plan.h"
#include "tests/daemon/plan/job_builder.h"
#include "tests/support/model_shapes.h"

namespace dmuon::plan {
namespace {

struct Row {
  std::string name;
  size_t units;
  uint32_t slots;
  double makespan, lower_bound, round_robin, longest_first, efficiency;
  double seconds;  // of planning
  [[nodiscard]] double ratio() const { return makespan / lower_bound; }
};

// A plan made again for other slots.
struct Change {
  std::string name;
  size_t units;
  uint32_t before, slots;
  size_t homeless, moved;  // units whose slot is gone; those of the others that move
  double seconds;          // of planning
};

// Of this process: planning has one thread, and neighbours on the machine should not count.
double CpuSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

double RoundRobin(const std::vector<double>& costs, size_t slots) {
  std::vector<double> loads(slots, 0.0);
  for (size_t unit = 0; unit < costs.size(); ++unit) loads[unit % slots] += costs[unit];
  return *std::max_element(loads.begin(), loads.end());
}

double LongestFirst(std::vector<double> costs, size_t slots) {
  std::sort(costs.begin(), costs.end(), std::greater<>());
  std::priority_queue<double, std::vector<double>, std::greater<>> loads(
      std::greater<>(), std::vector<double>(slots, 0.0));
  double makespan = 0.0;
  for (const double cost : costs) {
    const double load = loads.top() + cost;
    loads.pop();
    loads.push(load);
    makespan = std::max(makespan, load);
  }
  return makespan;
}

Row Measure(const std::string& name, const std::vector<double>& costs, uint32_t slots) {
  const double start = CpuSeconds();
  const auto found = Assign({.costs = costs, .slots_per_node = {&slots, 1}});
  const double seconds = CpuSeconds() - start;
  const double total = std::accumulate(costs.begin(), costs.end(), 0.0);
  return {name,
          costs.size(),
          slots,
          found->makespan,
          found->lower_bound,
          RoundRobin(costs, slots),
          LongestFirst(costs, slots),
          total / (static_cast<double>(slots) * found->makespan),
          seconds};
}

Change MeasureChange(const std::string& name, const std::vector<double>& costs, uint32_t before,
                     uint32_t slots) {
  std::vector<size_t> previous =
      Assign({.costs = costs, .slots_per_node = {&before, 1}})->slot_of;
  for (size_t& slot : previous) slot = slot < slots ? slot : kNoSlot;
  const double start = CpuSeconds();
  const auto found =
      Assign({.costs = costs, .slots_per_node = {&slots, 1}, .previous = previous});
  Change change{name, costs.size(), before, slots, 0, 0, CpuSeconds() - start};
  for (size_t unit = 0; unit < costs.size(); ++unit) {
    if (previous[unit] == kNoSlot) {
      ++change.homeless;
    } else if (previous[unit] != found->slot_of[unit]) {
      ++change.moved;
    }
  }
  return change;
}

// Nearly all prices differ, up to eightfold, and a slot gets few of them: nothing comes out even.
std::vector<double> RandomMatrices(int count) {
  std::mt19937 random(1);
  const auto side = [&random] { return static_cast<int64_t>(2048 + random() % 2049); };
  ModelShapes model{"", 1, {}};
  for (int i = 0; i < count; ++i) model.layer.push_back({side(), side()});
  return MatrixSeconds(model);
}

std::string Json(const std::vector<Row>& rows, const std::vector<Change>& changes,
                 double small_seconds, double large_seconds) {
  std::vector<std::string> moves;
  for (const Change& change : changes) {
    moves.push_back(absl::StrFormat(
        R"({"model": "%s", "units": %d, "before": %d, "slots": %d, "homeless": %d, "moved": %d, )"
        R"("plan_seconds": %.6f})",
        change.name, change.units, change.before, change.slots, change.homeless, change.moved,
        change.seconds));
  }
  std::vector<std::string> items;
  double worst = 0.0;
  for (const Row& row : rows) {
    worst = std::max(worst, row.ratio());
    items.push_back(absl::StrFormat(
        R"({"model": "%s", "units": %d, "slots": %d, "makespan": %.9g, "lower_bound": %.9g, )"
        R"("ratio": %.5f, "round_robin": %.9g, "longest_first": %.9g, "efficiency": %.5f, )"
        R"("plan_seconds": %.6f})",
        row.name, row.units, row.slots, row.makespan, row.lower_bound, row.ratio(), row.round_robin,
        row.longest_first, row.efficiency, row.seconds));
  }
  return absl::StrFormat(
      R"({"rows": [%s], "changes": [%s], "summary": {"worst_ratio": %.5f, )"
      R"("plan_seconds_256x1000": %.4f, "plan_seconds_4096x20000": %.4f}})"
      "\n",
      absl::StrJoin(items, ", "), absl::StrJoin(moves, ", "), worst, small_seconds, large_seconds);
}

void Print(const Row& row) {
  std::cout << absl::StrFormat("%-18s %6d %6d %11.5f %11.5f %7.4f %9.4f %9.4f %7.3f %9.4f\n",
                               row.name, row.units, row.slots, row.makespan, row.lower_bound,
                               row.ratio(), row.round_robin / row.lower_bound,
                               row.longest_first / row.lower_bound, row.efficiency, row.seconds)
            << std::flush;
}

std::vector<Change> MeasureChanges() {
  struct Case {
    std::string name;
    std::vector<double> costs;
    std::vector<uint32_t> slots;
  };
  std::vector<Case> cases;
  for (const ModelShapes& model : PublicModels()) {
    cases.push_back({model.name, MatrixSeconds(model), {8, 64, 256}});
  }
  cases.push_back({"random 1000", RandomMatrices(1'000), {256}});
  cases.push_back({"random 20000", RandomMatrices(20'000), {4'096}});
  cases.push_back({"random 100000", RandomMatrices(100'000), {64}});
  std::cout << absl::StrFormat("\n%-18s %6s %6s %6s %8s %6s %7s %9s\n", "model", "units", "before",
                               "slots", "homeless", "moved", "share", "plan s");
  std::vector<Change> changes;
  for (const auto& [name, costs, sizes] : cases) {
    for (const uint32_t slots : sizes) {
      const uint32_t fewer = slots / 8 * 7;
      for (const auto& [from, to] : {std::pair(slots, fewer), std::pair(fewer, slots)}) {
        changes.push_back(MeasureChange(name, costs, from, to));
        const Change& change = changes.back();
        std::cout << absl::StrFormat(
                         "%-18s %6d %6d %6d %8d %6d %6.2f%% %9.4f\n", name, change.units, from, to,
                         change.homeless, change.moved,
                         100.0 * static_cast<double>(change.moved) /
                             static_cast<double>(change.units),
                         change.seconds)
                  << std::flush;
      }
    }
  }
  return changes;
}

// Planning for a job of 100 000 tensors, cut by rows over 8 ranks: median and largest of 5.
void PrintPlanning() {
  constexpr int kTensors = 100'000;
  constexpr uint32_t kRanks = 8;
  std::cout << absl::StrFormat("\n%-18s %6s %6s %11s %11s\n", "tensors", "nodes", "units",
                               "median s", "max s");
  for (const bool matrices : {false, true}) {
    JobBuilder builder(kRanks);
    for (int i = 0; i < kTensors; ++i) {
      const std::string name = absl::StrFormat("layer.%d.weight", i);
      if (matrices) {
        builder.Matrix(name, 64, 32 + i % 64);
      } else {
        builder.Elementwise(name, {64, 2});
      }
    }
    const v1::JobSpec job = builder.Build();
    const Shards shards = FullyShard(job);
    for (const uint32_t count : {1u, 4u}) {
      std::vector<NodeSlots> nodes;
      for (uint32_t n = 0; n < count; ++n) nodes.push_back({absl::StrFormat("node-%d", n), 4});
      for (uint32_t rank = 0; rank < kRanks; ++rank) nodes[rank % count].ranks.push_back(rank);
      std::vector<double> seconds;
      int units = 0;
      for (int repeat = 0; repeat < 5; ++repeat) {
        const double start = CpuSeconds();
        units = MakePlan(job, shards, nodes, 1, "benchmark")->units_size();
        seconds.push_back(CpuSeconds() - start);
      }
      std::sort(seconds.begin(), seconds.end());
      std::cout << absl::StrFormat("%-18s %6d %6d %11.3f %11.3f\n",
                                   matrices ? "matrices" : "element-wise", count, units, seconds[2],
                                   seconds.back())
                << std::flush;
    }
  }
}

int Main(int argc, char** argv) {
  CLI::App app("Makespans of plans against the lower bound, and the time that planning takes");
  std::string json;
  app.add_option("--json", json, "write rows and summary to this file");
  CLI11_PARSE(app, argc, argv);

  std::cout << absl::StrFormat("%-18s %6s %6s %11s %11s %7s %9s %9s %7s %9s\n", "model", "units",
                               "slots", "makespan s", "bound s", "ratio", "r-robin", "longest",
                               "effic.", "plan s");
  std::vector<Row> rows;
  for (const ModelShapes& model : PublicModels()) {
    for (const uint32_t slots : {8u, 64u, 256u}) {
      rows.push_back(Measure(model.name, MatrixSeconds(model), slots));
      Print(rows.back());
    }
  }
  rows.push_back(Measure("random 1000", RandomMatrices(1'000), 256));
  Print(rows.back());
  const double small_seconds = rows.back().seconds;
  rows.push_back(Measure("random 20000", RandomMatrices(20'000), 4'096));
  Print(rows.back());
  const double large_seconds = rows.back().seconds;
  const std::vector<Change> changes = MeasureChanges();
  PrintPlanning();
  if (json.empty()) return 0;
  std::ofstream file(json);
  file << Json(rows, changes, small_seconds, large_seconds);
  file.close();
  if (file) return 0;
  std::cerr << "cannot write " << json << "\n";
  return 1;
}

}  // namespace
}  // namespace dmuon::plan

int main(int argc, char** argv) { return dmuon::plan::Main(argc, argv); }
