// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/channel_server.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "wire/error.h"

namespace dmuon::node {
namespace {

constexpr uint64_t kListenerKey = 0;
constexpr uint64_t kWakeKey = 1;
constexpr size_t kMaxChannels = 8192;
constexpr absl::Duration kHelloTimeout = absl::Seconds(5);

// A process by descriptor: readable when it has died. -1 where the pid is not visible from here.
wire::ScopedFd OpenPidfd(pid_t pid) {
  return wire::ScopedFd(pid > 0 ? static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)) : -1);
}

bool PeerOf(int socket, ucred& peer) {
  socklen_t size = sizeof(peer);
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChannelServer>> ChannelServer::Start(const std::string& path,
                                                                    ChannelOwner* owner) {
  DMUON_ASSIGN_OR_RETURN(wire::ScopedFd listener, wire::ListenChannel(path));
  wire::ScopedFd wake(::eventfd(0, EFD_CLOEXEC));
  wire::ScopedFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!wake.valid() || !epoll.valid()) {
    return absl::ResourceExhaustedError(absl::StrCat("epoll: ", std::strerror(errno)));
  }
  return std::unique_ptr<ChannelServer>(new ChannelServer(path, owner, std::move(listener),
                                                          std::move(wake), std::move(epoll)));
}

ChannelServer::ChannelServer(std::string path, ChannelOwner* owner, wire::ScopedFd listener,
                             wire::ScopedFd wake, wire::ScopedFd epoll)
    : path_(std::move(path)),
      owner_(owner),
      listener_(std::move(listener)),
      wake_(std::move(wake)),
      epoll_(std::move(epoll)) {
  Watch(listener_.get(), kListenerKey);
  Watch(wake_.get(), kWakeKey);
  thread_ = std::thread([this] { Loop(); });
}

ChannelServer::~ChannelServer() {
  const uint64_t one = 1;
  while (::write(wake_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
  }
  thread_.join();
  ::unlink(path_.c_str());
}

bool ChannelServer::Watch(int fd, uint64_t key) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP;
  event.data.u64 = key;
  return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

void ChannelServer::Loop() {
  std::array<epoll_event, 64> events{};
  while (true) {
    const int ready = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                   1000);
    for (int i = 0; i < ready; ++i) {
      const uint64_t key = events[static_cast<size_t>(i)].data.u64;
      if (key == kWakeKey) return;
      if (key == kListenerKey) {
        Accept();
        continue;
      }
      // Socket and pidfd of a channel share its key; a channel dropped by one event is gone for the
      // next. Nothing to read is the pidfd's event.
      const auto it = channels_.find(key);
      if (it != channels_.end() && !Read(key, it->second)) Drop(key);
    }
    DropSilent();
  }
}

void ChannelServer::Accept() {
  wire::ScopedFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!socket.valid()) return;
  ucred peer{};
  const bool known = PeerOf(socket.get(), peer);
  if (!known || (peer.uid != ::geteuid() && peer.uid != 0) || channels_.size() >= kMaxChannels) {
    LogWarning("arena channel refused: user ", peer.uid, ", ", channels_.size(), " channels of ",
               kMaxChannels);
    return;
  }
  const uint64_t key = next_key_++;
  Channel& channel = channels_[key];
  channel.pidfd = OpenPidfd(peer.pid);
  channel.socket = std::move(socket);
  channel.accepted = MonotonicNow();
  if (!Watch(channel.socket.get(), key)) channels_.erase(key);
}

bool ChannelServer::Read(uint64_t key, Channel& channel) {
  absl::StatusOr<wire::ReceivedFrame> received = wire::ReceiveFrame(channel.socket.get(), absl::ZeroDuration());
  if (!received.ok()) return false;  // the end, or the death of the process
  const absl::Status status = Handle(key, channel, *std::move(received));
  if (!status.ok()) LogWarning("arena channel refused: ", status.message());
  return status.ok();
}

absl::Status ChannelServer::Handle(uint64_t key, Channel& channel, wire::ReceivedFrame received) {
  const wire::FrameType type = received.frame.type;
  if (channel.session_id == 0) {
    if (type == wire::FrameType::kHello) return Greet(key, channel, received);
  } else if (type == wire::FrameType::kStep) {
    return owner_->Ring(channel.session_id, received);
  } else if (type == wire::FrameType::kGradients) {
    return owner_->ExpectGradients(channel.session_id, received.frame);
  } else if (type == wire::FrameType::kOffer && received.fd.valid()) {
    return owner_->Offer(channel.session_id, std::move(received.fd));
  } else if (type == wire::FrameType::kRelease) {
    return owner_->Release(channel.session_id);
  }
  return wire::InvalidField("an unexpected frame");
}

absl::Status ChannelServer::Greet(uint64_t key, Channel& channel,
                                  const wire::ReceivedFrame& hello) {
  if (hello.fd.valid()) return wire::InvalidField("a hello with a descriptor");
  DMUON_RETURN_IF_ERROR(owner_->Hello(hello.frame, channel.socket.get(), channel.pidfd.get()));
  channel.session_id = hello.frame.session_id;
  if (channel.pidfd.valid()) Watch(channel.pidfd.get(), key);
  wire::ChannelFrame welcome;
  welcome.type = wire::FrameType::kWelcome;
  welcome.session_id = channel.session_id;
  return wire::SendFrame(channel.socket.get(), welcome);
}

void ChannelServer::Drop(uint64_t key) {
  const auto it = channels_.find(key);
  if (it->second.session_id != 0) owner_->ChannelGone(it->second.session_id);
  channels_.erase(it);
}

// A peer that connects and says nothing holds a descriptor only this long.
void ChannelServer::DropSilent() {
  const absl::Time oldest = MonotonicNow() - kHelloTimeout;
  std::vector<uint64_t> silent;
  for (const auto& [key, channel] : channels_) {
    if (channel.session_id == 0 && channel.accepted < oldest) silent.push_back(key);
  }
  for (const uint64_t key : silent) Drop(key);
}

}  // namespace dmuon::node
