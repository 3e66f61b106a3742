// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Deaths and forks: a worker that goes without a word, a daemon that restarts, children of a
// worker.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <sstream>

#include "tests/client/daemon_process.h"
#include "tests/client/worker.h"

namespace {
bool forked_child = false;
}

// Asked by LeakSanitizer when a process exits. In a forked child the stacks of the parent's threads
// are gone, and what only they pointed to looks leaked.
extern "C" int __lsan_is_turned_off() { return forked_child ? 1 : 0; }

namespace dmuon::client {
namespace {

using ::testing::HasSubstr;

// Open sockets of this process.
int CountSockets() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const auto target = std::filesystem::read_symlink(entry.path(), gone);
    if (!gone && target.string().starts_with("socket:")) ++count;
  }
  return count;
}

// Exit code of a forked child that runs fn; fn may not return.
int InChild(const std::function<void()>& fn) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    forked_child = true;
    fn();
    ::_exit(99);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

class LifetimeTest : public ::testing::Test {
 protected:
  LifetimeTest() : daemon_(DMUOND) {}

  std::unique_ptr<Worker> Attach(uint32_t rank = 0, uint32_t world_size = 1) {
    auto worker = std::make_unique<Worker>(daemon_.address(), "job", rank, world_size);
    worker->AddTensors();
    position_ = worker->Join(1.0F);
    return worker;
  }

  DaemonProcess daemon_;
  Position position_;
};

TEST_F(LifetimeTest, AForkedChildCannotUseTheClientAndTheParentGoesOn) {
  auto worker = Attach();
  worker->Run(1, 1.0F);
  EXPECT_EQ(InChild([&] {
              const Failure failure = FailureOf([&] { worker->client().submit(0, 2); });
              const bool named =
                  failure.message.find(std::to_string(::getppid())) != std::string::npos;
              ::_exit(failure.status == DMUON_NOT_READY && named ? 0 : 1);
            }),
            0);
  EXPECT_EQ(worker->Run(2, 1.0F).skipped, 0);
}

TEST_F(LifetimeTest, AForkedChildMayCloseAndExitNormally) {
  auto worker = Attach();
  EXPECT_EQ(InChild([&] {
              worker.reset();  // dmuon_close in the child
              ::exit(0);       // with all destructors
            }),
            0);
  EXPECT_EQ(worker->Run(1, 1.0F).skipped, 0);
}

TEST_F(LifetimeTest, AForkedChildDoesNotKeepTheArenaChannelOpen) {
  auto worker = Attach();
  const int before = CountSockets();
  EXPECT_EQ(InChild([&] { ::_exit(before - CountSockets()); }), 1);
}

TEST_F(LifetimeTest, ADaemonThatRestartsWithoutStateIsReported) {
  auto worker = Attach();
  worker->Run(1, 1.0F);
  const std::vector<float> parameters = worker->Parameters();
  daemon_.Kill();
  daemon_.Start();
  worker->Submit(2, 1.0F);
  worker->Start(2);
  const Failure failure = FailureOf([&] { worker->Wait(2); });
  EXPECT_EQ(failure.status, DMUON_STATE_LOST);
  EXPECT_THAT(failure.message, HasSubstr("job"));
  EXPECT_EQ(worker->Parameters(), parameters);
}

TEST_F(LifetimeTest, ADrainingDaemonExitsWithZeroWhileAWorkerIsAttached) {
  auto worker = Attach();
  worker->Run(1, 1.0F);
  EXPECT_EQ(daemon_.Stop(), 0);
}

// Workers of the example trainer, which has neither PyTorch nor anything of ours but the ABI.
class ExampleTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kWorldSize = 2;

  ExampleTest() : daemon_(DMUOND) {
    char name[] = "/tmp/dmuon-example-XXXXXX";
    directory_ = ::mkdtemp(name);
  }
  ~ExampleTest() override {
    for (const pid_t pid : workers_) {
      if (pid > 0) {
        ::kill(pid, SIGKILL);
        ::waitpid(pid, nullptr, 0);
      }
    }
    std::filesystem::remove_all(directory_);
  }

  std::string ReportPath(const std::string& job, uint32_t rank) const {
    return directory_ + "/" + job + "." + std::to_string(rank) + ".json";
  }
  void Spawn(const std::string& job, uint32_t rank, int steps, int step_ms = 0) {
    std::vector<std::string> words = {TRAIN_MLP,
                                      "--rank",
                                      std::to_string(rank),
                                      "--world-size",
                                      std::to_string(kWorldSize),
                                      "--address",
                                      daemon_.address(),
                                      "--job",
                                      job,
                                      "--steps",
                                      std::to_string(steps),
                                      "--report",
                                      ReportPath(job, rank),
                                      "--step-ms",
                                      std::to_string(step_ms)};
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const pid_t pid = ::fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      ::execv(TRAIN_MLP, argv.data());
      ::_exit(127);
    }
    workers_[rank] = pid;
  }
  int Join(uint32_t rank) {
    int status = 0;
    ::waitpid(std::exchange(workers_[rank], -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  std::string Report(const std::string& job, uint32_t rank) const {
    std::ifstream file(ReportPath(job, rank));
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  // The value after "key": in a report.
  static std::string Field(const std::string& report, const std::string& key) {
    const size_t at = report.find("\"" + key + "\": ");
    if (at == std::string::npos) return "";
    const size_t begin = at + key.size() + 4;
    return report.substr(begin, report.find_first_of(",}", begin) - begin);
  }
  void Train(const std::string& job, int steps) {
    for (uint32_t rank = 0; rank < kWorldSize; ++rank) Spawn(job, rank, steps);
    for (uint32_t rank = 0; rank < kWorldSize; ++rank) EXPECT_EQ(Join(rank), 0);
  }

  DaemonProcess daemon_;
  std::string directory_;
  std::vector<pid_t> workers_ = std::vector<pid_t>(kWorldSize, -1);
};

TEST_F(ExampleTest, LossFallsAndBothWorkersEndWithTheSameBits) {
  Train("learns", 120);
  const std::string report = Report("learns", 0);
  EXPECT_LT(std::stod(Field(report, "loss_last")), 0.5 * std::stod(Field(report, "loss_first")))
      << report;
  EXPECT_EQ(Field(report, "newton_schulz_calls"), "360");  // 3 matrices, 120 steps
  EXPECT_EQ(Field(report, "checksum"), Field(Report("learns", 1), "checksum"));
  Train("again", 120);
  EXPECT_EQ(Field(report, "checksum"), Field(Report("again", 0), "checksum"));
}

TEST_F(ExampleTest, AWorkerKilledAtRandomMomentsChangesNoBit) {
  constexpr int kSteps = 300;
  const unsigned seed = std::random_device()();
  RecordProperty("seed", static_cast<int>(seed));
  SCOPED_TRACE("seed " + std::to_string(seed));
  Train("undisturbed", kSteps);
  // Ten kills take at most 1.2 s; the steps alone take 3 s, so none comes too late.
  constexpr int kStepMs = 10;
  std::mt19937 random(seed);
  for (uint32_t rank = 0; rank < kWorldSize; ++rank) Spawn("disturbed", rank, kSteps, kStepMs);
  for (int kills = 0; kills < 10; ++kills) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20 + random() % 100));
    const uint32_t victim = random() % kWorldSize;
    ::kill(workers_[victim], SIGKILL);
    EXPECT_EQ(Join(victim), -SIGKILL);
    Spawn("disturbed", victim, kSteps, kStepMs);
  }
  for (uint32_t rank = 0; rank < kWorldSize; ++rank) EXPECT_EQ(Join(rank), 0);
  EXPECT_EQ(Field(Report("disturbed", 0), "checksum"), Field(Report("undisturbed", 0), "checksum"));
  EXPECT_EQ(Field(Report("disturbed", 1), "checksum"), Field(Report("undisturbed", 1), "checksum"));
}

}  // namespace
}  // namespace dmuon::client
