// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/transport/local_transport.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/clock.h"
#include "daemon/transport/checks.h"
#include "daemon/transport/steady.h"
#include "wire/error.h"

namespace dmuon::transport {
namespace {

// One end of a message, in one exchange.
struct End {
  uint32_t peer;
  std::span<const std::byte> source;  // of an outgoing one
  std::span<std::byte> target;        // of an incoming one
  bool incoming;
  Traffic::Flow* flow;
  bool done = false;

  [[nodiscard]] uint64_t bytes() const { return incoming ? target.size() : source.size(); }
};

using Route = std::pair<uint32_t, uint32_t>;  // from, to

}  // namespace

// All connections of one prefix.
class Room {
 public:
  explicit Room(std::vector<std::string> nodes)
      : nodes_(std::move(nodes)), states_(nodes_.size()) {}
  [[nodiscard]] const std::vector<std::string>& nodes() const { return nodes_; }

  // False when the node was here before.
  bool Enter(uint32_t node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    if (states_[node] != State::kAbsent) return false;
    states_[node] = State::kOpen;
    return true;
  }
  void Close(uint32_t node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    states_[node] = State::kClosed;
    changed.NotifyAll();
  }
  [[nodiscard]] bool closed(uint32_t node) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    return states_[node] == State::kClosed;
  }
  void Cut(Route route, uint64_t passing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { passing_[route] = passing; }

  // Finishes the message if its other end waits here; else `end` waits until that comes.
  void Meet(uint32_t self, uint64_t tag, End* end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    const Route route = end->incoming ? Route(end->peer, self) : Route(self, end->peer);
    const auto passing = passing_.find(route);
    const bool cut = passing != passing_.end() && passing->second == 0;
    if (cut || closed(self) || closed(end->peer)) return;
    const auto other = waiting_.find(Key(!end->incoming, route, tag, end->bytes()));
    if (other == waiting_.end()) {
      waiting_.emplace(Key(end->incoming, route, tag, end->bytes()), end);
      return;
    }
    Finish(end->incoming ? *other->second : *end, end->incoming ? *end : *other->second);
    waiting_.erase(other);
    if (passing != passing_.end()) --passing->second;
    changed.NotifyAll();
  }
  void Forget(const End* end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    std::erase_if(waiting_, [end](const auto& entry) { return entry.second == end; });
  }

  wire::Mutex mu;  // leaf lock
  wire::CondVar changed;

 private:
  enum class State { kAbsent, kOpen, kClosed };
  using Key = std::tuple<bool, Route, uint64_t, uint64_t>;  // incoming, route, tag, bytes

  static void Finish(End& sender, End& receiver) {
    std::memcpy(receiver.target.data(), sender.source.data(), sender.source.size());
    for (End* end : {&sender, &receiver}) {
      end->done = true;
      ++end->flow->messages;
      end->flow->bytes += end->bytes();
    }
  }

  const std::vector<std::string> nodes_;
  std::vector<State> states_ ABSL_GUARDED_BY(mu);
  std::map<Route, uint64_t> passing_ ABSL_GUARDED_BY(mu);  // before a route is cut
  std::multimap<Key, End*> waiting_ ABSL_GUARDED_BY(mu);
};

namespace {

class LocalTransport final : public Transport {
 public:
  LocalTransport(const Mesh& mesh, Options options, std::shared_ptr<Room> room)
      : mesh_(mesh), options_(options), room_(std::move(room)) {
    traffic_.peers.resize(mesh_.nodes.size());
  }
  ~LocalTransport() override {
    wire::MutexLock lock(room_->mu);
    room_->Close(mesh_.self);
  }

  absl::StatusOr<std::unique_ptr<Exchange>> Start(Batch batch) override;
  void Cancel() override {
    wire::MutexLock lock(room_->mu);
    (void)Fail(absl::CancelledError(absl::StrCat(mesh_.prefix, ": cancelled")));
  }
  [[nodiscard]] Traffic traffic() const override {
    wire::MutexLock lock(room_->mu);
    return traffic_;
  }
  [[nodiscard]] std::string_view name() const override { return "local"; }

 private:
  friend class LocalExchange;

  absl::Status Fail(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(room_->mu) {
    error_.Update(status);  // keeps the first
    room_->Close(mesh_.self);
    return error_;
  }

  const Mesh mesh_;
  const Options options_;
  const std::shared_ptr<Room> room_;
  absl::Status error_ ABSL_GUARDED_BY(room_->mu);
  Traffic traffic_ ABSL_GUARDED_BY(room_->mu);
};

class LocalExchange final : public Exchange {
 public:
  LocalExchange(LocalTransport* transport, const Batch& batch)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(transport->room_->mu)
      : transport_(transport), tag_(batch.tag) {
    std::vector<Traffic::Peer>& flows = transport->traffic_.peers;
    for (const Incoming& in : batch.in) {
      ends_.push_back({in.peer, {}, in.bytes, true, &flows[in.peer].received});
    }
    for (const Outgoing& out : batch.out) {
      ends_.push_back({out.peer, out.bytes, {}, false, &flows[out.peer].sent});
    }
    std::erase_if(ends_, [](const End& end) { return end.bytes() == 0; });
    for (End& end : ends_) transport->room_->Meet(transport->mesh_.self, tag_, &end);
  }
  ~LocalExchange() override {
    wire::MutexLock lock(transport_->room_->mu);
    if (FirstOpen() == nullptr) return;
    (void)Fail(absl::CancelledError(
        absl::StrCat(transport_->mesh_.prefix, ": batch ", tag_, " was given up")));
  }

  absl::Status Wait(absl::Time deadline) override {
    wire::MutexLock lock(transport_->room_->mu);
    for (const End* open = FirstOpen(); open != nullptr; open = FirstOpen()) {
      const absl::Status failed = Look(*open, MonotonicNow() >= deadline);
      if (!failed.ok()) return Fail(failed);
      transport_->room_->changed.WaitUntil(transport_->room_->mu, SteadyTime(deadline));
    }
    return absl::OkStatus();
  }

 private:
  // The first unfinished end, or null.
  const End* FirstOpen() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(transport_->room_->mu) {
    const auto open =
        std::find_if(ends_.begin(), ends_.end(), [](const End& end) { return !end.done; });
    return open == ends_.end() ? nullptr : &*open;
  }

  // Why `first`, the first unfinished end, or one after it will never be finished; OK while all may
  // be.
  absl::Status Look(const End& first, bool late) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(transport_->room_->mu) {
    const Mesh& mesh = transport_->mesh_;
    DMUON_RETURN_IF_ERROR(transport_->error_);
    if (transport_->room_->closed(mesh.self)) {
      return PeerError(absl::StatusCode::kUnavailable, mesh, mesh.self, "was dropped");
    }
    for (const End& end : ends_) {
      if (!end.done && transport_->room_->closed(end.peer)) {
        return PeerError(absl::StatusCode::kUnavailable, mesh, end.peer, "closed its connections");
      }
    }
    return late ? LateError(mesh, first.peer, first.incoming, first.bytes(), tag_)
                : absl::OkStatus();
  }

  // Lets go of the buffers.
  absl::Status Fail(const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(transport_->room_->mu) {
    for (const End& end : ends_) transport_->room_->Forget(&end);
    return transport_->Fail(status);
  }

  LocalTransport* const transport_;
  const uint64_t tag_;
  std::vector<End> ends_;  // their `done` is guarded by the room's lock
};

absl::StatusOr<std::unique_ptr<Exchange>> LocalTransport::Start(Batch batch) {
  DMUON_RETURN_IF_ERROR(CheckBatch(mesh_, options_, batch));
  wire::MutexLock lock(room_->mu);
  DMUON_RETURN_IF_ERROR(error_);
  return std::make_unique<LocalExchange>(this, batch);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> Switchboard::Connect(const Mesh& mesh, Options options) {
  DMUON_RETURN_IF_ERROR(CheckMesh(mesh));
  wire::MutexLock lock(mu_);
  std::erase_if(rooms_, [](const auto& entry) { return entry.second.expired(); });
  std::shared_ptr<Room> room = rooms_[mesh.prefix].lock();
  if (room == nullptr) rooms_[mesh.prefix] = room = std::make_shared<Room>(mesh.nodes);
  if (room->nodes() != mesh.nodes) {
    return wire::InvalidField(absl::StrCat(mesh.prefix, ": other nodes than those that node '",
                                           mesh.nodes[mesh.self], "' names"));
  }
  wire::MutexLock room_lock(room->mu);
  if (!room->Enter(mesh.self)) {
    return absl::AlreadyExistsError(
        absl::StrCat(mesh.prefix, ": node '", mesh.nodes[mesh.self], "' was connected before"));
  }
  return std::make_unique<LocalTransport>(mesh, options, room);
}

void Switchboard::Drop(const std::string& node) {
  wire::MutexLock lock(mu_);
  for (const auto& [prefix, weak] : rooms_) {
    const std::shared_ptr<Room> room = weak.lock();
    if (room == nullptr) continue;
    wire::MutexLock room_lock(room->mu);
    for (uint32_t i = 0; i < room->nodes().size(); ++i) {
      if (room->nodes()[i] == node) room->Close(i);
    }
  }
}

void Switchboard::Cut(const std::string& from, const std::string& to, uint64_t passing) {
  wire::MutexLock lock(mu_);
  for (const auto& [prefix, weak] : rooms_) {
    const std::shared_ptr<Room> room = weak.lock();
    if (room == nullptr) continue;
    wire::MutexLock room_lock(room->mu);
    const std::vector<std::string>& nodes = room->nodes();
    const auto index = [&nodes](const std::string& node) {
      return static_cast<uint32_t>(std::find(nodes.begin(), nodes.end(), node) - nodes.begin());
    };
    room->Cut({index(from), index(to)}, passing);
  }
}

}  // namespace dmuon::transport
