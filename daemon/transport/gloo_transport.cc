// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/transport/gloo_transport.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/base/clock.h"
#include "daemon/base/sha256.h"
#include "daemon/transport/checks.h"
#include "daemon/transport/gloo_pulse.h"
#include "gloo/context.h"
#include "gloo/transport/context.h"
#include "gloo/transport/device.h"
#include "gloo/transport/tcp/device.h"
#include "gloo/transport/unbound_buffer.h"
#include "wire/error.h"
#include "wire/mutex.h"

namespace dmuon::transport {
namespace {

using gloo::transport::UnboundBuffer;

// "[file:line] text" without the place.
std::string Reason(const std::exception& e) {
  const std::string text = e.what();
  const size_t place = text.find("] ");
  return place == std::string::npos ? text : text.substr(place + 2);
}

// Calls into Gloo: what it throws becomes UNAVAILABLE "node 'b' <what>: ...".
template <typename Call>
absl::Status Guarded(const Mesh& mesh, uint32_t peer, absl::string_view what, Call&& call) {
  try {
    call();
    return absl::OkStatus();
  } catch (const std::exception& e) {
    return PeerError(absl::StatusCode::kUnavailable, mesh, peer,
                     absl::StrCat(what, ": ", Reason(e)));
  }
}

// Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators" (2014), the finalizer.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Gloo pairs messages by slot, takes one that is too short without a word, and ends the process for
// one that is too long. So the size is part of the slot.
uint64_t SlotOf(uint64_t tag, uint64_t bytes) { return Mix(tag ^ Mix(bytes)); }

// No message has this slot, because none is empty.
const uint64_t kNeverSent = SlotOf(0, 0);

}  // namespace

class GlooDevice {
 public:
  explicit GlooDevice(std::shared_ptr<gloo::transport::Device> tcp) : io(std::move(tcp)) {}
  const std::shared_ptr<gloo::transport::Device> io;
  Pulse pulse;
};

namespace {

// One TCP connection to each peer.
class Connections final : public gloo::Context {
 public:
  // Listens for every peer.
  Connections(const Mesh& mesh, std::shared_ptr<gloo::transport::Device> device,
              absl::Duration timeout)
      : gloo::Context(static_cast<int>(mesh.self), static_cast<int>(mesh.nodes.size())) {
    device_ = std::move(device);
    transportContext_ = device_->createContext(rank, size);
    // Gloo waits five times as long for a connection; 0 would mean for ever.
    transportContext_->setTimeout(
        std::chrono::milliseconds(absl::ToInt64Milliseconds(timeout) / 5 + 1));
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      const std::vector<char> address = transportContext_->createPair(peer)->address().bytes();
      addresses_.append(address.begin(), address.end());
    }
  }

  // Where each peer shall connect to: addresses of one length, in node order, without the own.
  [[nodiscard]] const std::string& addresses() const { return addresses_; }

  // `theirs` are the addresses of `peer`. Blocks.
  void Connect(uint32_t peer, const std::string& theirs) {
    if (theirs.size() != addresses_.size()) {
      throw std::length_error("its addresses have another length");
    }
    const size_t length = theirs.size() / static_cast<size_t>(size - 1);
    const int index = static_cast<int>(peer);
    const size_t begin = length * static_cast<size_t>(rank < index ? rank : rank - 1);
    const std::string_view mine = std::string_view(theirs).substr(begin, length);
    getPair(index)->connect(std::vector<char>(mine.begin(), mine.end()));
  }

 private:
  std::string addresses_;
};

struct Message {
  uint32_t peer;
  bool incoming;
  std::unique_ptr<UnboundBuffer> buffer;
};

class GlooTransport final : public Transport {
 public:
  GlooTransport(const Mesh& mesh, Options options, std::shared_ptr<GlooDevice> device)
      : mesh_(mesh), options_(options), device_(std::move(device)), watches_(mesh.nodes.size()) {
    traffic_.peers.resize(mesh_.nodes.size());
  }

  // Once, before anything else.
  absl::Status Connect(KeyValueStore& store, absl::Time deadline);

  absl::StatusOr<std::unique_ptr<Exchange>> Start(Batch batch) override {
    DMUON_RETURN_IF_ERROR(CheckBatch(mesh_, options_, batch));
    return Launch(batch);
  }
  void Cancel() override {
    (void)Fail(absl::CancelledError(absl::StrCat(mesh_.prefix, ": cancelled")));
  }
  [[nodiscard]] Traffic traffic() const override {
    wire::MutexLock lock(mu_);
    return traffic_;
  }
  [[nodiscard]] std::string_view name() const override { return "gloo"; }

 private:
  friend class GlooExchange;

  [[nodiscard]] std::string KeyOf(uint32_t node) const {
    return absl::StrCat(mesh_.prefix, "/", mesh_.nodes[node]);
  }
  // Calls `fn(peer)` for every peer, until one fails.
  template <typename Fn>
  absl::Status ForEachPeer(Fn&& fn) const {
    for (uint32_t peer = 0; peer < mesh_.nodes.size(); ++peer) {
      if (peer != mesh_.self) DMUON_RETURN_IF_ERROR(fn(peer));
    }
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<std::string>> Collect(KeyValueStore& store, absl::Time deadline) const;
  // Each node tells each other its name, under the mesh's: who connected is not known before.
  absl::Status Greet(absl::Time deadline);

  absl::StatusOr<std::unique_ptr<Exchange>> Launch(const Batch& batch);
  // Posts one message: what Gloo makes of it goes on without us.
  absl::StatusOr<Message> Post(uint64_t tag, uint32_t peer, bool incoming, std::byte* data,
                               size_t bytes);
  // Blocks for a tick, or until the message is through (true; counted); or fails the transport.
  absl::StatusOr<bool> Await(const Message& message, uint64_t tag, absl::Time deadline);
  // UNAVAILABLE when the connection to `peer` is gone.
  absl::Status CheckConnection(uint32_t peer);
  // Keeps the first error, closes the connections, and returns the one that is kept.
  absl::Status Fail(const absl::Status& status);
  absl::Status error() const {
    wire::MutexLock lock(mu_);
    return error_;
  }

  const Mesh mesh_;
  const Options options_;
  const std::shared_ptr<GlooDevice> device_;
  std::unique_ptr<Connections> connections_;  // constant after Connect, as are the watches
  mutable wire::Mutex mu_;                    // held while a watch's own lock is taken
  // By peer: a receive that nobody sends to. Its wait throws once the connection is gone.
  std::vector<std::unique_ptr<UnboundBuffer>> watches_ ABSL_GUARDED_BY(mu_);
  absl::Status error_ ABSL_GUARDED_BY(mu_);
  Traffic traffic_ ABSL_GUARDED_BY(mu_);
};

class GlooExchange final : public Exchange {
 public:
  GlooExchange(GlooTransport* transport, uint64_t tag) : transport_(transport), tag_(tag) {}
  ~GlooExchange() override {
    if (messages_.empty()) return;
    (void)transport_->Fail(absl::CancelledError(
        absl::StrCat(transport_->mesh_.prefix, ": batch ", tag_, " was given up")));
  }

  absl::Status Post(const Batch& batch) {
    for (const Incoming& in : batch.in) {
      DMUON_RETURN_IF_ERROR(Post(in.peer, true, in.bytes.data(), in.bytes.size()));
    }
    for (const Outgoing& out : batch.out) {
      // Gloo has one kind of buffer; it only reads those that it sends.
      auto* data = const_cast<std::byte*>(out.bytes.data());
      DMUON_RETURN_IF_ERROR(Post(out.peer, false, data, out.bytes.size()));
    }
    return absl::OkStatus();
  }

  absl::Status Wait(absl::Time deadline) override {
    while (result_.ok() && !messages_.empty()) {
      const absl::StatusOr<bool> done = transport_->Await(messages_.front(), tag_, deadline);
      if (!done.ok()) {
        result_ = done.status();
      } else if (*done) {
        messages_.erase(messages_.begin());
      } else {
        // A message whose connection broke is through already or never will be: it comes next.
        const auto broken =
            std::find_if(messages_.begin(), messages_.end(), [this](const Message& message) {
              return !transport_->CheckConnection(message.peer).ok();
            });
        if (broken != messages_.end()) std::iter_swap(broken, messages_.begin());
      }
    }
    messages_.clear();  // what is still under way has lost its buffer now
    return result_;
  }

 private:
  absl::Status Post(uint32_t peer, bool incoming, std::byte* data, size_t bytes) {
    if (bytes == 0) return absl::OkStatus();
    DMUON_ASSIGN_OR_RETURN(Message message, transport_->Post(tag_, peer, incoming, data, bytes));
    messages_.push_back(std::move(message));
    return absl::OkStatus();
  }

  GlooTransport* const transport_;
  const uint64_t tag_;
  std::vector<Message> messages_;  // until Wait is through
  absl::Status result_;
};

absl::Status GlooTransport::Connect(KeyValueStore& store, absl::Time deadline) {
  const absl::Time now = MonotonicNow();
  const absl::Duration left = std::clamp(deadline - now, absl::ZeroDuration(), absl::Hours(24));
  const absl::Duration quarter = left / 4;
  DMUON_RETURN_IF_ERROR(Guarded(mesh_, mesh_.self, "cannot listen", [&] {
    connections_ = std::make_unique<Connections>(mesh_, device_->io, quarter);
  }));
  DMUON_RETURN_IF_ERROR(store.Set(KeyOf(mesh_.self), connections_->addresses()));
  DMUON_ASSIGN_OR_RETURN(const std::vector<std::string> addresses,
                         Collect(store, now + 3 * quarter));
  DMUON_RETURN_IF_ERROR(ForEachPeer([&](uint32_t peer) {
    const absl::Time began = MonotonicNow();
    const absl::Status status = Guarded(mesh_, peer, "cannot be reached",
                                        [&] { connections_->Connect(peer, addresses[peer]); });
    if (status.ok() || MonotonicNow() - began < quarter) return status;
    return PeerError(absl::StatusCode::kDeadlineExceeded, mesh_, peer, "did not connect in time");
  }));
  return Greet(deadline);
}

absl::StatusOr<std::vector<std::string>> GlooTransport::Collect(KeyValueStore& store,
                                                                absl::Time deadline) const {
  std::vector<std::string> addresses(mesh_.nodes.size());
  std::vector<std::string> missing;
  DMUON_RETURN_IF_ERROR(ForEachPeer([&](uint32_t peer) {
    absl::StatusOr<std::string> found = store.Get(KeyOf(peer), deadline);
    if (found.ok()) {
      addresses[peer] = *std::move(found);
    } else if (absl::IsDeadlineExceeded(found.status())) {
      missing.push_back(absl::StrCat("'", mesh_.nodes[peer], "'"));
    } else {
      return found.status();
    }
    return absl::OkStatus();
  }));
  if (missing.empty()) return addresses;
  return absl::DeadlineExceededError(
      absl::StrCat(mesh_.prefix, ": ", missing.size(), " of ", mesh_.nodes.size(),
                   " nodes did not come in time: ", absl::StrJoin(missing, ", ")));
}

absl::Status GlooTransport::Greet(absl::Time deadline) {
  std::vector<std::string> said(mesh_.nodes.size());
  std::vector<std::string> heard(mesh_.nodes.size());
  for (uint32_t node = 0; node < mesh_.nodes.size(); ++node) {
    std::vector<std::string> name = {mesh_.prefix, mesh_.nodes[node]};
    name.insert(name.end(), mesh_.nodes.begin(), mesh_.nodes.end());
    said[node] = Sha256Hex(name);
    heard[node].resize(said[node].size());
  }
  Batch batch;
  DMUON_RETURN_IF_ERROR(ForEachPeer([&](uint32_t peer) {
    batch.out.push_back({peer, std::as_bytes(std::span(said[mesh_.self]))});
    batch.in.push_back({peer, std::as_writable_bytes(std::span(heard[peer]))});
    wire::MutexLock lock(mu_);
    std::unique_ptr<UnboundBuffer>& watch = watches_[peer];
    return Guarded(mesh_, peer, "is gone", [&] {
      watch = connections_->createUnboundBuffer(nullptr, 0);
      watch->recv(static_cast<int>(peer), kNeverSent);
    });
  }));
  DMUON_ASSIGN_OR_RETURN(const std::unique_ptr<Exchange> exchange, Launch(batch));
  DMUON_RETURN_IF_ERROR(exchange->Wait(deadline));
  DMUON_RETURN_IF_ERROR(ForEachPeer([&](uint32_t peer) {
    if (heard[peer] == said[peer]) return absl::OkStatus();
    return wire::Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_STALE_GENERATION,
                       absl::StrCat(mesh_.prefix, ": who connected as node '", mesh_.nodes[peer],
                                    "' is of another mesh"));
  }));
  wire::MutexLock lock(mu_);
  traffic_.peers.assign(mesh_.nodes.size(), {});
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Exchange>> GlooTransport::Launch(const Batch& batch) {
  DMUON_RETURN_IF_ERROR(error());
  auto exchange = std::make_unique<GlooExchange>(this, batch.tag);
  if (const absl::Status posted = exchange->Post(batch); !posted.ok()) return Fail(posted);
  return exchange;
}

absl::StatusOr<Message> GlooTransport::Post(uint64_t tag, uint32_t peer, bool incoming,
                                            std::byte* data, size_t bytes) {
  Message message{peer, incoming, nullptr};
  DMUON_RETURN_IF_ERROR(Guarded(mesh_, peer, "is gone", [&] {
    message.buffer = connections_->createUnboundBuffer(data, bytes);
    const int rank = static_cast<int>(peer);
    incoming ? message.buffer->recv(rank, SlotOf(tag, bytes))
             : message.buffer->send(rank, SlotOf(tag, bytes));
  }));
  return message;
}

absl::StatusOr<bool> GlooTransport::Await(const Message& message, uint64_t tag,
                                          absl::Time deadline) {
  DMUON_RETURN_IF_ERROR(error());
  const absl::Status lost = CheckConnection(message.peer);
  const bool late = MonotonicNow() >= deadline;
  // What was through by then counts. A tick may come before the wait has looked, but not twice.
  const int looks = !lost.ok() || late ? 2 : 1;
  bool done = false;
  absl::Status status = Guarded(mesh_, message.peer, "is gone", [&] {
    for (int look = 0; look < looks && !done; ++look) {
      done = device_->pulse.Wait(*message.buffer, message.incoming);
    }
  });
  if (status.ok() && !done) status = lost;
  if (status.ok() && !done && late) {
    status = LateError(mesh_, message.peer, message.incoming, message.buffer->size, tag);
  }
  if (!status.ok()) return Fail(status);
  if (!done) return false;
  wire::MutexLock lock(mu_);
  Traffic::Peer& peer = traffic_.peers[message.peer];
  Traffic::Flow& flow = message.incoming ? peer.received : peer.sent;
  ++flow.messages;
  flow.bytes += message.buffer->size;
  return true;
}

absl::Status GlooTransport::CheckConnection(uint32_t peer) {
  wire::MutexLock lock(mu_);
  UnboundBuffer& watch = *watches_[peer];
  return Guarded(mesh_, peer, "is gone", [&watch] {
    watch.abortWaitRecv();  // so that the wait looks, and ends at once
    (void)watch.waitRecv(nullptr, Pulse::kForever);
  });
}

absl::Status GlooTransport::Fail(const absl::Status& status) {
  {
    wire::MutexLock lock(mu_);
    if (!error_.ok()) return error_;
    error_ = status;
  }
  (void)Guarded(mesh_, mesh_.self, "cannot close", [this] { connections_->closeConnections(); });
  return status;
}

}  // namespace

absl::StatusOr<std::shared_ptr<GlooDevice>> OpenGlooDevice(const GlooAddress& address) {
  gloo::transport::tcp::attr attr;
  attr.hostname = address.host;
  attr.iface = address.interface;
  std::signal(SIGPIPE, SIG_IGN);
  try {
    return std::make_shared<GlooDevice>(gloo::transport::tcp::CreateDevice(attr));
  } catch (const std::exception& e) {
    return wire::InvalidField(absl::StrCat(
        "cannot listen on '", address.interface.empty() ? address.host : address.interface,
        "': ", Reason(e)));
  }
}

absl::StatusOr<std::unique_ptr<Transport>> ConnectGloo(std::shared_ptr<GlooDevice> device,
                                                       KeyValueStore& store, const Mesh& mesh,
                                                       Options options, absl::Time deadline) {
  DMUON_RETURN_IF_ERROR(CheckMesh(mesh));
  auto transport = std::make_unique<GlooTransport>(mesh, options, std::move(device));
  DMUON_RETURN_IF_ERROR(transport->Connect(store, deadline));
  return transport;
}

}  // namespace dmuon::transport

// Gloo's own thread asks for the name of whoever has connected, and throws, which ends the process, when
// that one has hung up in the meantime. In place of the C library's, for the programs that link this file:
// a TCP peer that is gone is 0.0.0.0:0. Whoever uses the connection finds its end. Visible, or Gloo's
// library would not find it.
extern "C" [[gnu::visibility("default")]] int getpeername(int socket, sockaddr* __restrict address,
                                                          socklen_t* __restrict length) noexcept {
  const auto result = static_cast<int>(::syscall(SYS_getpeername, socket, address, length));
  int domain = 0;
  socklen_t domain_length = sizeof(domain);
  if (result == 0 || errno != ENOTCONN || *length < sizeof(sockaddr_in) ||
      ::getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &domain, &domain_length) != 0 ||
      (domain != AF_INET && domain != AF_INET6)) {
    return result;
  }
  sockaddr_in nobody{};
  nobody.sin_family = AF_INET;
  std::memcpy(address, &nobody, sizeof(nobody));
  *length = sizeof(nobody);
  return 0;
}
