// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "tests/sim/lane.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/sim/node_link.h"
#include "wire/error.h"

namespace dmuon::sim {
namespace {

constexpr absl::Duration kFirstLook = absl::Milliseconds(2);
constexpr absl::Duration kLongestLook = absl::Milliseconds(50);
constexpr absl::Duration kNoCoordinatorPause = absl::Milliseconds(100);

}  // namespace

struct Mesh::End {
  struct Peer {
    std::weak_ptr<End> end;
    absl::Time last = absl::InfinitePast();  // of what was sent to it
    bool here = false;                       // it has found this end
    bool gone = false;
    std::map<uint64_t, std::string> inbox;   // by tag
  };
  End(World* world, Process* of) : process(of), life(of->life), changed(world, of) {}

  Process* const process;
  const uint64_t life;
  std::vector<Peer> peers;  // by node
  Signal changed;
};

Mesh::Mesh(Cluster* cluster, Process* process, const v1::Plan* plan, uint32_t self)
    : cluster_(cluster), process_(process), plan_(plan), self_(self) {
  end_ = std::make_shared<End>(&cluster->world, process);
  end_->peers.resize(static_cast<size_t>(plan->nodes_size()));
}

Mesh::~Mesh() { Break(); }

void Mesh::Break() {
  for (uint32_t node = 0; node < end_->peers.size(); ++node) {
    End::Peer& peer = end_->peers[node];
    const std::shared_ptr<End> other = peer.end.lock();
    peer.gone = true;
    if (other == nullptr || process_->silent) continue;
    cluster_->network.Stream(*process_, *other->process, peer.last, [other, self = self_] {
      other->peers[self].gone = true;
      other->changed.Notify();
    });
  }
  end_->changed.Notify();
}

void Mesh::Send(uint32_t node, uint64_t tag, std::string bytes) {
  End::Peer& peer = end_->peers[node];
  const std::shared_ptr<End> other = peer.end.lock();
  if (other == nullptr) {
    peer.gone = true;
    return;
  }
  cluster_->network.Stream(*process_, *other->process, peer.last,
                           [weak = std::weak_ptr<End>(other), self = self_, tag, bytes = std::move(bytes)] {
                             const std::shared_ptr<End> to = weak.lock();
                             if (to == nullptr || to->peers[self].gone) return;
                             to->peers[self].inbox[tag] = bytes;
                             to->changed.Notify();
                           });
}

Task<absl::Status> Mesh::Receive(uint64_t tag, char kind, std::vector<bool> from, absl::Time until,
                                 std::vector<std::string>* messages) {
  messages->assign(end_->peers.size(), {});
  std::vector<bool> have = std::move(from);
  have.flip();
  while (true) {
    bool all = true;
    for (uint32_t node = 0; node < have.size(); ++node) {
      if (have[node]) continue;
      End::Peer& peer = end_->peers[node];
      auto message = peer.inbox.extract(tag);
      if (!message.empty()) {
        const std::string& bytes = message.mapped();
        if (bytes.front() != kind) {
          Event event;
          event.what = What::kMistaken;
          event.who = process_->name;
          event.text = absl::StrCat("a message of kind ", bytes.substr(0, 1), " for one of kind ", std::string(1, kind));
          cluster_->Record(std::move(event));
          co_return absl::AbortedError("a message of another kind");
        }
        (*messages)[node] = bytes.substr(1);
        have[node] = true;
      } else if (peer.gone) {
        co_return absl::AbortedError(absl::StrCat("node ", plan_->nodes(static_cast<int>(node)), " is gone"));
      } else {
        all = false;
      }
    }
    if (all) co_return absl::OkStatus();
    if (cluster_->world.now() >= until) co_return absl::DeadlineExceededError("a node does not answer");
    co_await end_->changed.Until(until);
  }
}

// Leaves the own end's address, looks for the others', and waits for them to have found this one.
Task<absl::Status> Mesh::Connect(NodeLink* link, v1::Meeting meeting, absl::Time until) {
  cluster_->addresses.push_back(end_);
  const size_t address = cluster_->addresses.size() - 1;
  std::string key = absl::StrCat(self_);
  std::string value = absl::StrCat(address);
  absl::Status set = co_await link->SetKey(meeting, std::move(key), std::move(value));
  if (!set.ok()) co_return set;
  for (uint32_t node = 0; node < end_->peers.size(); ++node) {
    if (node == self_) continue;
    absl::Duration pause = kFirstLook;
    while (true) {
      std::string of = absl::StrCat(node);
      const auto found = co_await link->GetKey(meeting, std::move(of));
      if (!found.ok()) co_return found.status();
      if (found->has_value()) {
        size_t at = 0;
        if (!absl::SimpleAtoi(**found, &at)) co_return absl::InternalError("not an address");
        const std::shared_ptr<End> other = std::static_pointer_cast<End>(cluster_->addresses.at(at).lock());
        // A process that has died since does not listen any more.
        if (other == nullptr || !other->process->up || other->process->life != other->life) {
          co_return absl::UnavailableError("nobody listens there");
        }
        end_->peers[node].end = other;
        cluster_->network.Stream(*process_, *other->process, end_->peers[node].last, [other, self = self_] {
          other->peers[self].here = true;
          other->changed.Notify();
        });
        break;
      }
      if (cluster_->world.now() + pause >= until) co_return absl::DeadlineExceededError("nobody has set the key");
      co_await link->Sleep(pause);
      pause = std::min(2 * pause, kLongestLook);
    }
  }
  const auto here = [this](const End::Peer& peer) { return peer.here || &peer == &end_->peers[self_]; };
  while (!std::all_of(end_->peers.begin(), end_->peers.end(), here)) {
    if (cluster_->world.now() >= until) co_return absl::DeadlineExceededError("a node does not connect");
    co_await end_->changed.Until(until);
  }
  co_return absl::OkStatus();
}

Peers::Peers(Cluster* cluster, Process* process, NodeLink* link, const v1::Plan* plan, uint32_t self)
    : cluster_(cluster), process_(process), link_(link), plan_(plan), self_(self) {}

v1::Meeting Peers::Meeting() const {
  v1::Meeting meeting;
  meeting.set_job_id(plan_->job_id());
  meeting.set_generation(plan_->generation());
  meeting.set_attempt(attempt_);
  return meeting;
}

Task<absl::Status> Peers::Connect(absl::Time until) {
  absl::Status last;
  while (mesh_ == nullptr) {
    const absl::Time now = cluster_->world.now();
    if (cancelled_) co_return wire::Draining("the daemon");
    if (now >= until) {
      co_return wire::Error(absl::StatusCode::kDeadlineExceeded, v1::ERROR_REASON_PEER_LOST,
                            absl::StrCat("cannot connect: ", last.message()));
    }
    absl::StatusOr<uint64_t> attempt = attempt_;
    v1::Meeting meeting = Meeting();
    if (attempt_ == 0 || !cluster_->Planted(Plant::kNoReconnect)) attempt = co_await link_->NextAttempt(std::move(meeting));
    if (absl::IsUnavailable(attempt.status()) ||
        wire::ReasonOf(attempt.status()) == v1::ERROR_REASON_UNKNOWN_NODE) {
      last = attempt.status();
      co_await link_->Sleep(std::min(kNoCoordinatorPause, until - now));
      continue;
    }
    if (!attempt.ok()) co_return attempt.status();
    attempt_ = *attempt;
    auto mesh = std::make_unique<Mesh>(cluster_, process_, plan_, self_);
    const absl::Time give_up = std::min(until, now + cluster_->timeouts.attempt);
    v1::Meeting here = Meeting();
    const absl::Status met = co_await mesh->Connect(link_, std::move(here), give_up);
    cluster_->world.Trace(process_->name, "attempt ", attempt_, " to connect: ", met.ToString());
    if (!met.ok()) {
      last = met;
      if (cluster_->Planted(Plant::kNoReconnect)) co_await link_->Sleep(until - cluster_->world.now());
      continue;
    }
    mesh_ = std::move(mesh);
    next_tag_ = 0;
  }
  co_return absl::OkStatus();
}

bool Peers::Leave(uint64_t attempt) {
  if (attempt <= attempt_) return false;
  Drop();
  return true;
}

void Peers::Cancel() {
  cancelled_ = true;
  Break();
}

void Peers::Drop() {
  mail_ = copies_ = 0;
  mesh_.reset();
}

absl::Status Peers::Broken(const absl::Status& status) {
  if (status.ok()) return status;
  cluster_->world.Trace(process_->name, "gives up its connections: ", status.ToString());
  Drop();
  if (cancelled_) return wire::Draining("the daemon");
  const bool late = absl::IsDeadlineExceeded(status);
  return wire::Error(late ? absl::StatusCode::kDeadlineExceeded : absl::StatusCode::kAborted,
                     v1::ERROR_REASON_PEER_LOST, status.message());
}

Task<absl::StatusOr<node::Reports>> Peers::Tell(v1::PeerReport mine, absl::Time until) {
  if (mesh_ == nullptr) co_return Broken(absl::AbortedError("the nodes are not connected"));
  const std::string bytes = absl::StrCat("r", mine.SerializeAsString());
  const uint64_t tag = next_tag_++;
  for (uint32_t node = 0; node < static_cast<uint32_t>(plan_->nodes_size()); ++node) {
    if (node != self_) mesh_->Send(node, tag, bytes);
  }
  std::vector<std::string> texts;
  const absl::Status received = co_await mesh_->Receive(tag, 'r', Others(), until, &texts);
  if (!received.ok()) co_return Broken(received);
  ++next_tag_;  // of what does not fit a block
  node::Reports reports(texts.size());
  for (uint32_t node = 0; node < texts.size(); ++node) {
    if (node == self_) {
      reports[node] = mine;
    } else if (!reports[node].ParseFromString(texts[node])) {
      co_return Broken(absl::InternalError("a report cannot be read"));
    }
  }
  co_return reports;
}

std::vector<bool> Peers::Others() const {
  std::vector<bool> others(static_cast<size_t>(plan_->nodes_size()), true);
  others[self_] = false;
  return others;
}

void Peers::Open() { mail_ = mesh_ == nullptr ? 0 : ++next_tag_; }

Task<absl::Status> Peers::Close(char kind, std::vector<std::string> out, absl::Time until,
                                std::vector<std::string>* in) {
  if (mesh_ == nullptr || mail_ == 0) co_return Broken(absl::AbortedError("the nodes are not connected"));
  const uint64_t tag = std::exchange(mail_, 0) - 1;
  for (uint32_t node = 0; node < out.size(); ++node) {
    if (node != self_) mesh_->Send(node, tag, absl::StrCat(std::string(1, kind), out[node]));
  }
  const absl::Status received = co_await mesh_->Receive(tag, kind, Others(), until, in);
  co_return Broken(received);
}

void Peers::OpenCopies() { copies_ = mesh_ == nullptr ? 0 : ++next_tag_; }

void Peers::SendCopy(char kind, uint32_t node, const std::string& bytes) {
  if (mesh_ != nullptr && copies_ != 0) mesh_->Send(node, copies_ - 1, absl::StrCat(std::string(1, kind), bytes));
}

Task<absl::Status> Peers::CloseCopies(char kind, std::vector<bool> from, absl::Time until,
                                      std::vector<std::string>* in) {
  if (mesh_ == nullptr || copies_ == 0) co_return Broken(absl::AbortedError("the nodes are not connected"));
  const uint64_t tag = std::exchange(copies_, 0) - 1;
  const absl::Status received = co_await mesh_->Receive(tag, kind, std::move(from), until, in);
  co_return Broken(received);
}

}  // namespace dmuon::sim
