// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// One worker of a data-parallel training run in plain C++: Muon for matrices, AdamW for biases, the
// gradients of every worker averaged by the service. Start one process a rank:
//
//   train_mlp --rank 0 --world-size 2 --job demo --steps 200 & train_mlp --rank 1 --world-size 2
//   ...
//
// A worker that is killed and started again with the same arguments goes on where the job is, and
// the job ends with the same bits; the other workers wait for it.

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dmuon/dmuon.hpp>
#include <exception>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "client/examples/mlp.h"

namespace {

constexpr int kSamplesPerStep = 32;
constexpr int32_t kPollMs = 1000;

struct Options {
  uint32_t rank = 0;
  uint32_t world_size = 1;
  std::string address;
  std::string job = "train-mlp";
  uint64_t steps = 100;
  uint64_t seed = 1;
  std::string report;
  int64_t step_ms = 0;           // pretends that the model is larger than it is
  int64_t patience_polls = 600;  // how long to wait for missing workers, in units of kPollMs
};

struct Outcome {
  uint64_t first_step = 1;
  double loss_first = 0;
  double loss_last = 0;
  uint64_t newton_schulz_calls = 0;
  uint64_t skipped = 0;
};

[[noreturn]] void Usage(const char* why) {
  std::fprintf(
      stderr,
      "train_mlp: %s\nusage: train_mlp [--rank N] [--world-size N] [--address unix:PATH] "
      "[--job ID] [--steps N] [--seed N] [--report FILE] [--step-ms N] [--patience SECONDS]\n",
      why);
  std::exit(2);
}

uint64_t Number(const char* flag, const char* text) {
  char* end = nullptr;
  const uint64_t value = std::strtoull(text, &end, 10);
  if (*text < '0' || *text > '9' || *end != '\0') {
    Usage((std::string(flag) + " needs a whole number, not " + text).c_str());
  }
  return value;
}

Options Parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i];
    if (i + 1 == argc) Usage((flag + " needs a value").c_str());
    const char* value = argv[i + 1];
    if (flag == "--rank") {
      options.rank = static_cast<uint32_t>(Number("--rank", value));
    } else if (flag == "--world-size") {
      options.world_size = static_cast<uint32_t>(Number("--world-size", value));
    } else if (flag == "--address") {
      options.address = value;
    } else if (flag == "--job") {
      options.job = value;
    } else if (flag == "--steps") {
      options.steps = Number("--steps", value);
    } else if (flag == "--seed") {
      options.seed = Number("--seed", value);
    } else if (flag == "--report") {
      options.report = value;
    } else if (flag == "--step-ms") {
      options.step_ms = static_cast<int64_t>(Number("--step-ms", value));
    } else if (flag == "--patience") {
      options.patience_polls = static_cast<int64_t>(Number("--patience", value));
    } else {
      Usage(("unknown flag " + flag).c_str());
    }
  }
  return options;
}

// Repeats a call while all that is wrong is that somebody else is not there yet.
template <typename Call>
auto Patiently(const Options& options, Call&& call) {
  for (int64_t left = options.patience_polls;; --left) {
    try {
      return call();
    } catch (const dmuon::Error& e) {
      if (e.status() != DMUON_DEADLINE_EXCEEDED || left <= 0) throw;
    }
  }
}

class Trainer {
 public:
  explicit Trainer(const Options& options)
      : options_(options), model_(options.seed), client_(MakeConfig(options)) {
    const uint32_t matrices = client_.add_group(dmuon::Group("matrices", DMUON_MUON));
    const uint32_t biases = client_.add_group(dmuon::Group("biases", DMUON_ADAMW));
    for (const example::Parameter& p : model_.parameters()) {
      std::vector<int64_t> shape = {p.rows};
      if (p.is_matrix) shape.push_back(p.cols);
      dmuon::WholeTensor tensor(p.name.c_str(), shape, p.is_matrix ? matrices : biases);
      tensor.reduced = 0;  // every worker has a gradient of its own; the service takes the mean
      client_.add_tensor(tensor);
    }
  }

  Outcome Run() {
    Patiently(options_, [&] { return client_.register_tensors(kPollMs); });
    for (uint32_t t = 0; t < count(); ++t) CopyOut(client_.param_buffer(t), parameter(t).value);
    const auto position = Patiently(options_, [&] { return client_.begin(kPollMs); });
    if (position.resumed) TakeParameters();
    Outcome outcome;
    outcome.first_step = position.last_step + 1;
    for (uint64_t step = outcome.first_step; step <= options_.steps; ++step) {
      const double loss = Step(step, outcome);
      if (step == outcome.first_step) outcome.loss_first = loss;
      outcome.loss_last = loss;
    }
    return outcome;
  }

  [[nodiscard]] const example::Mlp& model() const { return model_; }

 private:
  static dmuon::Config MakeConfig(const Options& options) {
    dmuon::Config config;
    config.address = options.address.empty() ? nullptr : options.address.c_str();
    config.job_id = options.job.c_str();
    config.rank = options.rank;
    config.world_size = options.world_size;
    return config;
  }

  static void CopyOut(const dmuon::Buffer& to, const std::vector<float>& from) {
    std::memcpy(to.data, from.data(), to.bytes);
  }

  [[nodiscard]] uint32_t count() const { return static_cast<uint32_t>(model_.parameters().size()); }
  example::Parameter& parameter(uint32_t index) { return model_.parameters()[index]; }

  void TakeParameters() {
    for (uint32_t t = 0; t < count(); ++t) {
      const dmuon::Buffer buffer = client_.param_buffer(t);
      std::memcpy(parameter(t).value.data(), buffer.data, buffer.bytes);
    }
  }

  double Step(uint64_t step, Outcome& outcome) {
    const double loss = model_.LossAndGradients(
        example::MakeBatch(options_.seed, step, options_.rank, kSamplesPerStep));
    std::this_thread::sleep_for(std::chrono::milliseconds(options_.step_ms));
    for (uint32_t t = 0; t < count(); ++t) {
      CopyOut(client_.grad_buffer(t), parameter(t).grad);
      client_.submit(t, step);
    }
    client_.step(step, {{0.02, 0.01, 0.95, 0.0}, {0.003, 0.0, 0.9, 0.95}});
    const auto result = Patiently(options_, [&] { return client_.wait(step, kPollMs); });
    TakeParameters();
    outcome.newton_schulz_calls = result.newton_schulz_calls;
    outcome.skipped += result.skipped != 0 ? 1 : 0;
    if (step % 20 == 0 || step == options_.steps) {
      std::printf("rank %u step %" PRIu64 " loss %.6f\n", options_.rank, step, loss);
      std::fflush(stdout);
    }
    return loss;
  }

  const Options options_;
  example::Mlp model_;
  dmuon::Client client_;
};

void Report(const Options& options, const Outcome& outcome, uint64_t checksum) {
  std::printf("rank %u finished %" PRIu64 " steps, checksum %016" PRIx64 "\n", options.rank,
              options.steps, checksum);
  if (options.report.empty()) return;
  char text[512];
  std::snprintf(
      text, sizeof(text),
      "{\"rank\": %u, \"world_size\": %u, \"steps\": %" PRIu64 ", \"first_step\": %" PRIu64
      ", \"loss_first\": %.9g, \"loss_last\": %.9g, \"newton_schulz_calls\": %" PRIu64
      ", \"skipped\": %" PRIu64 ", \"checksum\": \"%016" PRIx64 "\"}\n",
      options.rank, options.world_size, options.steps, outcome.first_step, outcome.loss_first,
      outcome.loss_last, outcome.newton_schulz_calls, outcome.skipped, checksum);
  std::ofstream file(options.report);
  file << text;
  file.close();
  if (!file) throw std::runtime_error("cannot write " + options.report);
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = Parse(argc, argv);
  try {
    Trainer trainer(options);
    const Outcome outcome = trainer.Run();
    Report(options, outcome, example::Checksum(trainer.model()));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "train_mlp, rank %u: %s\n", options.rank, e.what());
    return 1;
  }
  return 0;
}
