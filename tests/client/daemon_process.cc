// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "tests/client/daemon_process.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <utility>

namespace dmuon::client {

DaemonProcess::DaemonProcess(std::string program, std::vector<std::string> flags)
    : program_(std::move(program)), flags_(std::move(flags)) {
  char name[] = "/tmp/dmuon-client-XXXXXX";
  if (::mkdtemp(name) == nullptr) throw std::runtime_error("cannot make a temporary directory");
  directory_ = name;
  std::filesystem::create_directory(directory_ + "/state");
  Start();
}

DaemonProcess::~DaemonProcess() {
  Kill();
  std::filesystem::remove_all(directory_);
}

void DaemonProcess::Start() {
  std::vector<std::string> words = {program_,      "--standalone",        "--listen",
                                    address(),     "--metrics",           "127.0.0.1:0",
                                    "--state-dir", directory_ + "/state", "--slots",
                                    "2",           "--threads-per-slot",  "1"};
  words.insert(words.end(), flags_.begin(), flags_.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const std::string log = directory_ + "/log";
  pid_ = ::fork();
  if (pid_ < 0) throw std::runtime_error("cannot fork");
  if (pid_ > 0) return;
  // Only async-signal-safe calls until exec: the test may have threads.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int fd = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  ::dup2(fd, STDOUT_FILENO);
  ::dup2(fd, STDERR_FILENO);
  ::execv(program_.c_str(), argv.data());
  ::_exit(127);
}

void DaemonProcess::Kill() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(std::exchange(pid_, -1), nullptr, 0);
}

int DaemonProcess::Stop() {
  int status = 0;
  ::kill(pid_, SIGTERM);
  ::waitpid(std::exchange(pid_, -1), &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace dmuon::client
