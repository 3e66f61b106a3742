// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/base/signals.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <string>

#include "wire/scoped_fd.h"

namespace dmuon {
namespace {

// A child process that watches its signals, reports that it drains, and drains for ever.
class Watched {
 public:
  Watched() {
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) ::abort();
    reports_ = wire::ScopedFd(ends[0]);
    pid_ = ::fork();
    if (pid_ == 0) Child(ends[1]);
    ::close(ends[1]);
  }
  ~Watched() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

  // The next report; 'E' at the child's end.
  char Next() {
    char c = 'E';
    return ::read(reports_.get(), &c, 1) == 1 ? c : 'E';
  }
  void Send(int signal) { ::kill(pid_, signal); }
  int ExitStatus() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  [[noreturn]] static void Report(int fd, char c) {
    if (::write(fd, &c, 1) != 1) ::_exit(98);
    for (;;) ::pause();
  }
  [[noreturn]] static void Child(int fd) {
    BlockShutdownSignals();
    const char ready = 'r';
    ShutdownWatch watch;
    if (::write(fd, &ready, 1) != 1) ::_exit(97);
    watch.Wait();
    Report(fd, 'd');
  }

  wire::ScopedFd reports_;
  pid_t pid_ = -1;
};

TEST(SignalsTest, TheFirstSignalDrainsTheSecondEnds) {
  Watched child;
  ASSERT_EQ(child.Next(), 'r');
  child.Send(SIGTERM);
  EXPECT_EQ(child.Next(), 'd');
  child.Send(SIGINT);
  EXPECT_EQ(child.Next(), 'E');
  EXPECT_EQ(child.ExitStatus(), 128 + SIGINT);
}

TEST(SignalsTest, ASignalBeforeTheWatchIsNotLost) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    BlockShutdownSignals();
    ::kill(::getpid(), SIGTERM);
    ShutdownWatch watch;
    watch.Wait();
    ::_exit(7);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

TEST(SignalsTest, TriggerEndsTheWaitAndTheWatchStops) {
  ShutdownWatch watch;
  watch.Trigger();
  watch.Wait();
}

}  // namespace
}  // namespace dmuon
