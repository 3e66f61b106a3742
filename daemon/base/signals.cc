// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/base/signals.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "wire/mutex.h"
#include "wire/scoped_fd.h"

namespace dmuon {
namespace {

sigset_t ShutdownSet() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

// Descriptors are as good as memory here: without one there is no orderly end.
wire::ScopedFd OrDie(int fd, const char* what) {
  if (fd < 0) {
    std::perror(what);
    std::abort();
  }
  return wire::ScopedFd(fd);
}

}  // namespace

void BlockShutdownSignals() {
  const sigset_t set = ShutdownSet();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  // A peer that goes away is an error code of write(), not a reason to die.
  signal(SIGPIPE, SIG_IGN);
}

struct ShutdownWatch::Impl {
  Impl()
      : stop(OrDie(eventfd(0, EFD_CLOEXEC), "eventfd")),
        signals(OrDie(MakeSignalFd(), "signalfd")) {
    thread = std::thread([this] { Read(); });
  }

  static int MakeSignalFd() {
    const sigset_t set = ShutdownSet();
    return signalfd(-1, &set, SFD_CLOEXEC);
  }

  void Read() {
    std::array<pollfd, 2> fds = {{{signals.get(), POLLIN, 0}, {stop.get(), POLLIN, 0}}};
    for (bool draining = false;;) {
      if (poll(fds.data(), fds.size(), -1) < 0) {
        if (errno == EINTR) continue;
        return;
      }
      if (fds[1].revents != 0) return;
      signalfd_siginfo info{};
      if (read(signals.get(), &info, sizeof info) != sizeof info) continue;
      if (draining) _exit(128 + static_cast<int>(info.ssi_signo));
      draining = true;
      Trigger();
    }
  }

  void Trigger() {
    const wire::MutexLock lock(mu);
    triggered = true;
    changed.NotifyAll();
  }

  const wire::ScopedFd stop;
  const wire::ScopedFd signals;

  wire::Mutex mu;
  wire::CondVar changed;
  bool triggered ABSL_GUARDED_BY(mu) = false;

  std::thread thread;  // last: everything it uses is above
};

ShutdownWatch::ShutdownWatch() : impl_(std::make_unique<Impl>()) {}

ShutdownWatch::~ShutdownWatch() {
  const uint64_t one = 1;
  if (write(impl_->stop.get(), &one, sizeof one) != sizeof one) std::abort();
  impl_->thread.join();
}

void ShutdownWatch::Wait() {
  const wire::MutexLock lock(impl_->mu);
  while (!impl_->triggered) impl_->changed.Wait(impl_->mu);
}

void ShutdownWatch::Trigger() { impl_->Trigger(); }

}  // namespace dmuon
