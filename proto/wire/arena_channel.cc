// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "wire/arena_channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "wire/error.h"

namespace dmuon::wire {
namespace {

constexpr int kBacklog = 128;
constexpr size_t kMaxPassedFds = 8;  // one is expected; room to see and close a surplus

absl::StatusOr<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return InvalidField(absl::StrCat("socket path of ", path.size(), " bytes, allowed are ",
                                     sizeof(address.sun_path) - 1, ": ", path));
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

absl::Status SystemError(absl::string_view what, const std::string& path) {
  return absl::UnavailableError(
      absl::StrCat(what, " ", path, ": ", std::strerror(errno)));
}

// Takes the descriptors out of a received message; keeps the first, closes the rest.
ScopedFd TakeFirstFd(msghdr& message, bool& surplus) {
  ScopedFd first;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      ScopedFd owned(fd);
      if (first.valid()) {
        surplus = true;
      } else {
        first = std::move(owned);
      }
    }
  }
  return first;
}

absl::Status WaitReadable(int socket, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (true) {
    const auto left =
        std::max<int64_t>(0, absl::ToInt64Milliseconds(deadline - absl::Now()));
    pollfd poll_fd{socket, POLLIN, 0};
    const int ready = ::poll(&poll_fd, 1, static_cast<int>(std::min<int64_t>(left, 3'600'000)));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return SystemError("poll", "arena channel");
    if (ready == 0 && absl::Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("nothing on the arena channel within ", absl::FormatDuration(timeout)));
    }
  }
}

}  // namespace

absl::StatusOr<ScopedFd> ListenChannel(const std::string& path) {
  DMUON_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  ScopedFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return SystemError("socket for", path);
  ::unlink(path.c_str());
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      ::chmod(path.c_str(), 0600) != 0 || ::listen(fd.get(), kBacklog) != 0) {
    return SystemError("cannot listen on", path);
  }
  return fd;
}

absl::StatusOr<ScopedFd> ConnectChannel(const std::string& path) {
  DMUON_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  ScopedFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return SystemError("socket for", path);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return SystemError("cannot connect to", path);
  }
  return fd;
}

absl::Status SendFrame(int socket, const ChannelFrame& frame, int passed_fd,
                       absl::string_view payload) {
  std::array data = {iovec{const_cast<ChannelFrame*>(&frame), sizeof(frame)},
                     iovec{const_cast<char*>(payload.data()), payload.size()}};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = data.data();
  message.msg_iovlen = payload.empty() ? 1 : 2;
  if (passed_fd >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &passed_fd, sizeof(int));
  }
  ssize_t sent = 0;
  do {
    // A peer that does not read must not block the sender: its queue is far larger than our frames.
    sent = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent != static_cast<ssize_t>(sizeof(frame) + payload.size())) {
    return SystemError("cannot send on", "the arena channel");
  }
  return absl::OkStatus();
}

absl::StatusOr<ReceivedFrame> ReceiveFrame(int socket, absl::Duration timeout) {
  DMUON_RETURN_IF_ERROR(WaitReadable(socket, timeout));
  ReceivedFrame received;
  // One byte more than allowed, so that a longer packet is seen as one.
  constexpr size_t kRoom = kMaxFramePayload + 1;
  const auto payload = std::make_unique_for_overwrite<char[]>(kRoom);
  std::array data = {iovec{&received.frame, sizeof(ChannelFrame)},
                     iovec{payload.get(), kRoom}};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMaxPassedFds)> control{};
  msghdr message{};
  message.msg_iov = data.data();
  message.msg_iovlen = data.size();
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t got = 0;
  do {
    got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  bool surplus = (message.msg_flags & MSG_CTRUNC) != 0;
  if (got > 0) received.fd = TakeFirstFd(message, surplus);
  if (got < 0 && errno != ECONNRESET) return SystemError("cannot receive on", "the arena channel");
  if (got <= 0) return absl::UnavailableError("the other end of the arena channel is gone");
  const auto bytes = static_cast<size_t>(got);
  if (bytes >= sizeof(ChannelFrame) && received.frame.magic != kChannelMagic) {
    return InvalidField("a packet on the arena channel does not begin with its magic number");
  }
  const size_t room = received.frame.type == FrameType::kStep ? kMaxFramePayload : 0;
  if (bytes < sizeof(ChannelFrame) || bytes > sizeof(ChannelFrame) + room || surplus) {
    return InvalidField(absl::StrCat("a packet of ", bytes, " bytes",
                                     surplus ? " with surplus descriptors" : "",
                                     " on the arena channel; frames have ", sizeof(ChannelFrame)));
  }
  received.payload.assign(payload.get(), bytes - sizeof(ChannelFrame));
  return received;
}

}  // namespace dmuon::wire
