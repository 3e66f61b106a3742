// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "wire/step_word.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <new>
#include <thread>

namespace dmuon::wire {
namespace {

using std::chrono::seconds;

TEST(StepWordTest, StepAndStateComeBack) {
  const uint64_t word = MakeWord(77, WordState::kMissing);
  EXPECT_EQ(WordStep(word), 77U);
  EXPECT_EQ(StateOf(word), WordState::kMissing);
}

TEST(StepWordTest, ASleeperInAnotherProcessIsWoken) {
  void* memory =
      ::mmap(nullptr, sizeof(WaitableWord), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* word = new (memory) WaitableWord;
  const pid_t child = ::fork();
  if (child == 0) {
    while (word->Load() == 0) word->Sleep(0, seconds(60));
    ::_exit(word->Load() == 5 ? 0 : 1);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // long enough to fall asleep
  const auto stored = std::chrono::steady_clock::now();
  word->Store(5);
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_LT(std::chrono::steady_clock::now() - stored, seconds(30));  // not by the end of its sleep
  ::munmap(memory, sizeof(WaitableWord));
}

TEST(StepWordTest, NoWakeIsLostBetweenTwoThatTakeTurns) {
  WaitableWord ping;
  WaitableWord pong;
  constexpr uint64_t kTurns = 20'000;
  std::thread other([&] {
    for (uint64_t turn = 1; turn <= kTurns; ++turn) {
      while (ping.Load() != turn) ping.Sleep(turn - 1, seconds(60));
      pong.Store(turn);
    }
  });
  for (uint64_t turn = 1; turn <= kTurns; ++turn) {
    ping.Store(turn);
    while (pong.Load() != turn) pong.Sleep(turn - 1, seconds(60));
  }
  other.join();
}

TEST(StepWordTest, ASleepEndsByItsLimitAndNotWhenTheWordHasChanged) {
  WaitableWord word;
  word.Sleep(0, std::chrono::milliseconds(5));
  word.Sleep(0, seconds(-1));
  word.Store(3);
  word.Sleep(0, seconds(3600));
  EXPECT_EQ(word.Load(), 3U);
}

}  // namespace
}  // namespace dmuon::wire
