// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "client/src/fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "wire/arena_channel.h"

namespace dmuon::client {
namespace {

// Plain pthread mutex: the fork handlers lock it in one function and unlock it in another. Never
// destroyed, so that a fork during exit finds it whole.
pthread_mutex_t channels_mu = PTHREAD_MUTEX_INITIALIZER;

std::vector<int>& Channels() {
  static auto* channels = new std::vector<int>;
  return *channels;
}

void BeforeFork() { pthread_mutex_lock(&channels_mu); }
void AfterForkInParent() { pthread_mutex_unlock(&channels_mu); }
void AfterForkInChild() {
  for (const int fd : Channels()) ::close(fd);
  Channels().clear();
  pthread_mutex_unlock(&channels_mu);
}

}  // namespace

absl::StatusOr<ChannelSocket> ChannelSocket::Connect(const std::string& path) {
  static const int installed = pthread_atfork(BeforeFork, AfterForkInParent, AfterForkInChild);
  if (installed != 0) return absl::ResourceExhaustedError("no memory for fork handlers");
  // Held over the connect: a fork between it and the entry would copy an unknown descriptor.
  pthread_mutex_lock(&channels_mu);
  absl::StatusOr<wire::ScopedFd> fd = wire::ConnectChannel(path);
  if (fd.ok()) Channels().push_back(fd->get());
  pthread_mutex_unlock(&channels_mu);
  if (!fd.ok()) return fd.status();
  return ChannelSocket(*std::move(fd));
}

ChannelSocket::~ChannelSocket() {
  if (!fd_.valid()) return;
  pthread_mutex_lock(&channels_mu);
  std::vector<int>& channels = Channels();
  channels.erase(std::remove(channels.begin(), channels.end(), fd_.get()), channels.end());
  fd_.Reset();
  pthread_mutex_unlock(&channels_mu);
}

}  // namespace dmuon::client
