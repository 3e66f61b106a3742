// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// `dmuon_sim`: runs schedules, or replays one.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "daemon/base/log.h"
#include "tests/sim/simulation.h"
#include "wire/mutex.h"

namespace dmuon::sim {
namespace {

constexpr uint64_t kFixedSeed = 1;
constexpr size_t kShown = 5;  // failing seeds

struct Arguments {
  uint64_t seed = kFixedSeed;
  uint64_t schedules = 1;
  bool fresh = false;
  bool trace = false;
  std::string faults = "all";
  std::string plant;
  unsigned threads = std::max(1U, std::thread::hardware_concurrency());
};

struct Totals {
  std::vector<SimResult> failed;  // the first few, by seed
  uint64_t failures = 0;
  uint64_t events = 0;
  uint64_t lost = 0;  // schedules in which a job lost its state and was started anew
  uint64_t replicated = 0;  // schedules
  uint64_t recovered = 0;   // of these, with a recovery
  uint64_t untold = 0;
  uint64_t kept = 0;
  uint64_t behind = 0;
};

std::string Replay(const Arguments& arguments, uint64_t seed) {
  std::string command = absl::StrCat("dmuon_sim --seed ", seed, " --trace");
  if (arguments.faults != "all") absl::StrAppend(&command, " --faults ", arguments.faults);
  if (!arguments.plant.empty()) absl::StrAppend(&command, " --plant ", arguments.plant);
  return command;
}

// Each schedule is one thread's; threads only share the count of what is left.
Totals RunAll(const Arguments& arguments, const SimOptions& options) {
  Totals totals;
  wire::Mutex mu;
  std::atomic<uint64_t> next{0};
  const auto work = [&] {
    for (uint64_t i = next++; i < arguments.schedules; i = next++) {
      SimResult result = RunSchedule(arguments.seed + i, options);
      wire::MutexLock lock(mu);
      totals.events += result.events;
      if (result.starts > 1) ++totals.lost;
      totals.replicated += result.replicated ? 1 : 0;
      totals.recovered += result.recoveries > 0 ? 1 : 0;
      totals.untold += result.untold;
      totals.kept += result.kept;
      totals.behind += result.behind;
      if (result.violations.empty()) continue;
      ++totals.failures;
      totals.failed.push_back(std::move(result));
      std::sort(totals.failed.begin(), totals.failed.end(),
                [](const SimResult& a, const SimResult& b) { return a.seed < b.seed; });
      if (totals.failed.size() > kShown) totals.failed.pop_back();
    }
  };
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < arguments.threads; ++t) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  return totals;
}

int Run(const Arguments& arguments) {
  SimOptions options;
  const auto menu = FaultMenu::Parse(arguments.faults);
  if (!menu.ok()) {
    std::fprintf(stderr, "%s\n", std::string(menu.status().message()).c_str());
    return 2;
  }
  options.menu = *menu;
  options.trace = arguments.trace;
  if (!arguments.plant.empty()) {
    const auto plant = PlantNamed(arguments.plant);
    if (!plant.has_value()) {
      std::fprintf(stderr, "--plant: \"%s\" is none of those in --help\n", arguments.plant.c_str());
      return 2;
    }
    options.plant = *plant;
  }
  const auto begin = std::chrono::steady_clock::now();
  const Totals totals = RunAll(arguments, options);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  for (const SimResult& result : totals.failed) {
    std::printf("%s\n", absl::StrCat("seed ", result.seed, ":").c_str());
    for (const Violation& violation : result.violations) {
      std::printf("  %s  %s\n", violation.invariant.c_str(), violation.what.c_str());
    }
    std::printf("  replay: %s\n", Replay(arguments, result.seed).c_str());
  }
  std::printf("%s\n", absl::StrCat(arguments.schedules, " schedules from seed ", arguments.seed, ": ", totals.failures,
                                   " violate an invariant; ", totals.events / arguments.schedules, " events each, ",
                                   std::round(seconds * 10) / 10, " s").c_str());
  std::printf("%s\n", absl::StrCat("state lost in ", totals.lost, "; replicated: ", totals.replicated, ", ", totals.recovered,
                                   " with a recovery; known limitations: ", totals.untold,
                                   " workers not told so in time, ", totals.kept, " jobs kept by the coordinator, ",
                                   totals.behind, " workers back after all others' end").c_str());
  return totals.failures == 0 ? 0 : 1;
}

std::string Footer() {
  std::string text = "Faults of the program that --plant builds in, and the invariant that catches each:\n";
  for (const PlantInfo& info : Plants()) {
    absl::StrAppend(&text, "  ", info.name, std::string(20 - info.name.size(), ' '), info.invariant, "  ", info.what,
                    "\n");
  }
  absl::StrAppend(&text, "\nExamples:\n  dmuon_sim --schedules 20000            seeds 1 to 20000\n"
                         "  dmuon_sim --schedules 2000 --fresh     from a seed that nobody has tried\n"
                         "  dmuon_sim --seed 42 --trace            what happens in the schedule of seed 42\n"
                         "Ends with 1 when an invariant does not hold. tests/sim/README.md has the model.");
  return text;
}

}  // namespace
}  // namespace dmuon::sim

int main(int argc, char** argv) {
  dmuon::sim::Arguments arguments;
  CLI::App app{
      "Simulates a cluster under faults, in virtual time: the cores of coordinator and node, with models of the rest. A "
      "seed is a schedule of messages and faults; the same seed gives the same schedule."};
  app.add_option("--seed", arguments.seed, "The first seed")->capture_default_str();
  app.add_option("--schedules", arguments.schedules, "How many, of consecutive seeds")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_flag("--fresh", arguments.fresh, "Begin at a random seed, which is printed");
  app.add_flag("--trace", arguments.trace, "Print what happens, by virtual time; for one schedule");
  app.add_option("--faults", arguments.faults,
                 "all, none, or some of loss,delay,crash,freeze,partition,disk,mistakes, separated by commas")
      ->capture_default_str();
  app.add_option("--plant", arguments.plant, "Build a fault into the program, to see it caught");
  app.add_option("--threads", arguments.threads, "Schedules that run at a time")
      ->capture_default_str()
      ->check(CLI::Range(1, 256));
  app.footer(dmuon::sim::Footer());
  CLI11_PARSE(app, argc, argv);
  if (arguments.fresh) arguments.seed = std::random_device()() * uint64_t{1'000'000};
  if (arguments.trace) arguments.threads = 1;
  return dmuon::sim::Run(arguments);
}
