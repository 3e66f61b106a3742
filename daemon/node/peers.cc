// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/peers.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "wire/error.h"

namespace dmuon::node {
namespace {

// One try to connect: as long as a node may be behind the others without costing them a new try.
constexpr absl::Duration kAttempt = absl::Seconds(10);
constexpr absl::Duration kFirstLook = absl::Milliseconds(2);
constexpr absl::Duration kLongestLook = absl::Milliseconds(50);
constexpr absl::Duration kNoCoordinatorPause = absl::Milliseconds(100);

// A report, or its beginning: a length and as much of the report as fits.
constexpr size_t kBlockBytes = 1'024;
constexpr size_t kBlockRoom = kBlockBytes - sizeof(uint32_t);
constexpr uint32_t kMaxReportBytes = uint32_t{64} << 20;
using Block = std::array<std::byte, kBlockBytes>;

Block BlockOf(const std::string& report) {
  Block block{};
  const auto size = static_cast<uint32_t>(report.size());
  std::memcpy(block.data(), &size, sizeof(size));
  std::memcpy(block.data() + sizeof(size), report.data(), std::min(report.size(), kBlockRoom));
  return block;
}

uint32_t SizeOf(const Block& block) {
  uint32_t size = 0;
  std::memcpy(&size, block.data(), sizeof(size));
  return size;
}

// The keys of one attempt, at the coordinator. Asks again and again: nodes come within moments of
// each other, and only then.
class CoordinatorStore final : public transport::KeyValueStore {
 public:
  CoordinatorStore(CoordinatorLink* link, v1::Meeting meeting)
      : link_(link), meeting_(std::move(meeting)) {}

  absl::Status Set(const std::string& key, const std::string& value) override {
    return link_->SetKey(meeting_, key, value);
  }

  absl::StatusOr<std::string> Get(const std::string& key, absl::Time deadline) override {
    absl::Duration pause = kFirstLook;
    while (true) {
      DMUON_ASSIGN_OR_RETURN(const auto value, link_->GetKey(meeting_, key));
      if (value.has_value()) return *value;
      if (MonotonicNow() + pause >= deadline) {
        return absl::DeadlineExceededError(absl::StrCat("nobody has set '", key, "'"));
      }
      absl::SleepFor(pause);
      pause = std::min(2 * pause, kLongestLook);
    }
  }

 private:
  CoordinatorLink* const link_;
  const v1::Meeting meeting_;
};

absl::Status NotConnected() { return absl::AbortedError("the nodes are not connected"); }

}  // namespace

Peers::Peers(const v1::Plan& plan, uint32_t self, CoordinatorLink* link, ConnectPeers connect)
    : job_id_(plan.job_id()),
      generation_(plan.generation()),
      buckets_(BucketsOf(plan)),
      self_(self),
      link_(link),
      connect_(std::move(connect)) {
  mesh_.nodes.assign(plan.nodes().begin(), plan.nodes().end());
  mesh_.self = self;
}

v1::Meeting Peers::Meeting(uint64_t attempt) const {
  v1::Meeting meeting;
  meeting.set_job_id(job_id_);
  meeting.set_generation(generation_);
  meeting.set_attempt(attempt);
  return meeting;
}

absl::Status Peers::Connect(absl::Time deadline) {
  absl::Status last;
  while (transport_ == nullptr) {
    const absl::Time now = MonotonicNow();
    if (Cancelled()) return wire::Draining("the daemon");
    if (now >= deadline) {
      return wire::Error(absl::StatusCode::kDeadlineExceeded, v1::ERROR_REASON_PEER_LOST,
                         absl::StrCat("job '", job_id_, "' cannot connect its nodes (",
                                      absl::StrJoin(mesh_.nodes, ", "), "): ", last.message()));
    }
    const absl::StatusOr<uint64_t> attempt = link_->NextAttempt(Meeting(attempt_));
    // No coordinator, or one that has forgotten this node: the link joins again by itself.
    if (absl::IsUnavailable(attempt.status()) ||
        wire::ReasonOf(attempt.status()) == v1::ERROR_REASON_UNKNOWN_NODE) {
      last = attempt.status();
      absl::SleepFor(std::min(kNoCoordinatorPause, deadline - now));
      continue;
    }
    DMUON_RETURN_IF_ERROR(attempt.status());
    attempt_ = *attempt;
    mesh_.prefix = absl::StrCat(job_id_, "/", generation_, "/", *attempt);
    CoordinatorStore store(link_, Meeting(attempt_));
    auto transport = connect_(mesh_, store, std::min(deadline, now + kAttempt));
    if (!transport.ok()) {
      last = transport.status();
      LogInfo("job ", job_id_, ": attempt ", *attempt, " to connect: ", last.message());
      continue;
    }
    wire::MutexLock lock(mu_);
    transport_ = *std::move(transport);
    next_tag_ = 0;
    if (cancelled_) transport_->Cancel();
  }
  return absl::OkStatus();
}

void Peers::TakeNodes(const v1::Plan& plan) {
  Drop();
  generation_ = plan.generation();
  mesh_.nodes.assign(plan.nodes().begin(), plan.nodes().end());
}

bool Peers::Leave(uint64_t attempt) {
  if (attempt <= attempt_) return false;
  Drop();
  return true;
}

void Peers::Drop() {
  mail_.reset();
  copies_.reset();
  if (transport_ == nullptr) return;
  CountTraffic();
  ++traffic_.broken;
  counted_ = transport::Traffic();
  wire::MutexLock lock(mu_);
  transport_.reset();
}

void Peers::Cancel() {
  wire::MutexLock lock(mu_);
  cancelled_ = true;
  if (transport_ != nullptr) transport_->Cancel();
}

void Peers::Interrupt(uint64_t attempt) {
  wire::MutexLock lock(mu_);
  if (transport_ != nullptr && attempt > attempt_) transport_->Cancel();
}

bool Peers::Cancelled() {
  wire::MutexLock lock(mu_);
  return cancelled_;
}

void Peers::CountTraffic() {
  if (transport_ == nullptr) return;
  transport::Traffic now = transport_->traffic();
  counted_.peers.resize(now.peers.size());
  traffic_.peers.resize(now.peers.size());
  const auto add = [](transport::Traffic::Flow& to, const transport::Traffic::Flow& flow,
                      const transport::Traffic::Flow& former) {
    to.bytes += flow.bytes - former.bytes;
    to.messages += flow.messages - former.messages;
  };
  for (size_t peer = 0; peer < now.peers.size(); ++peer) {
    add(traffic_.peers[peer].sent, now.peers[peer].sent, counted_.peers[peer].sent);
    add(traffic_.peers[peer].received, now.peers[peer].received, counted_.peers[peer].received);
  }
  counted_ = std::move(now);
}

Peers::Traffic Peers::TakeTraffic() {
  CountTraffic();
  if (transport_ != nullptr) traffic_.transport = std::string(transport_->name());
  const std::string transport = traffic_.transport;
  Traffic taken = std::exchange(traffic_, Traffic());
  traffic_.transport = transport;
  return taken;
}

absl::Status Peers::Broken(const absl::Status& status) {
  if (status.ok()) return status;
  Drop();
  if (Cancelled()) return wire::Draining("the daemon");
  const bool late = absl::IsDeadlineExceeded(status);
  return wire::Error(late ? absl::StatusCode::kDeadlineExceeded : absl::StatusCode::kAborted,
                     v1::ERROR_REASON_PEER_LOST, status.message());
}

absl::Status Peers::Exchange(transport::Batch batch, absl::Time deadline) {
  if (transport_ == nullptr) return NotConnected();
  auto exchange = transport_->Start(std::move(batch));
  return exchange.ok() ? (*exchange)->Wait(deadline) : exchange.status();
}

absl::StatusOr<std::vector<v1::PeerReport>> Peers::Tell(const v1::PeerReport& mine,
                                                        absl::Time deadline) {
  const std::string bytes = mine.SerializeAsString();
  const Block block = BlockOf(bytes);
  std::vector<Block> blocks(mesh_.nodes.size());
  transport::Batch batch{next_tag_++, {}, {}};
  for (uint32_t node = 0; node < blocks.size(); ++node) {
    if (node == self_) continue;
    batch.out.push_back({node, block});
    batch.in.push_back({node, blocks[node]});
  }
  DMUON_RETURN_IF_ERROR(Broken(Exchange(std::move(batch), deadline)));
  std::vector<std::string> texts(blocks.size());
  for (uint32_t node = 0; node < blocks.size(); ++node) {
    if (node == self_) continue;
    const uint32_t size = SizeOf(blocks[node]);
    if (size > kMaxReportBytes) {
      return Broken(absl::InternalError(absl::StrCat("node ", name(node), " reports ", size,
                                                     " bytes, at most ", kMaxReportBytes)));
    }
    texts[node].resize(size);
    std::memcpy(texts[node].data(), blocks[node].data() + sizeof(uint32_t),
                std::min<size_t>(size, kBlockRoom));
  }
  DMUON_RETURN_IF_ERROR(Broken(TellRest(bytes, texts, deadline)));
  std::vector<v1::PeerReport> reports(blocks.size());
  for (uint32_t node = 0; node < blocks.size(); ++node) {
    if (node == self_) {
      reports[node] = mine;
    } else if (!reports[node].ParseFromString(texts[node])) {
      return Broken(absl::InternalError(absl::StrCat("the report of node ", name(node),
                                                     " cannot be read")));
    }
  }
  return reports;
}

// What did not fit the blocks. Everybody knows all sizes by now.
absl::Status Peers::TellRest(const std::string& mine, std::vector<std::string>& theirs,
                             absl::Time deadline) {
  transport::Batch batch{next_tag_++, {}, {}};
  for (uint32_t node = 0; node < theirs.size(); ++node) {
    if (node == self_) continue;
    if (mine.size() > kBlockRoom) {
      batch.out.push_back({node, std::as_bytes(std::span(mine)).subspan(kBlockRoom)});
    }
    if (theirs[node].size() > kBlockRoom) {
      const std::span<char> text(theirs[node]);
      batch.in.push_back({node, std::as_writable_bytes(text).subspan(kBlockRoom)});
    }
  }
  if (batch.out.empty() && batch.in.empty()) return absl::OkStatus();
  return Exchange(std::move(batch), deadline);
}

absl::Status Peers::Move(std::vector<transport::Outgoing> out, std::vector<transport::Incoming> in, absl::Time deadline) {
  transport::Batch batch{next_tag_++, std::move(out), std::move(in)};
  if (batch.out.empty() && batch.in.empty()) return absl::OkStatus();
  return Broken(Exchange(std::move(batch), deadline));
}

std::unique_ptr<MailExchange> Peers::OpenMail(Mail& mail) {
  const uint64_t first_tag = std::exchange(next_tag_, next_tag_ + buckets_);
  return std::make_unique<MailExchange>(transport_.get(), mail, buckets_, first_tag);
}

absl::Status Peers::CloseMail(std::unique_ptr<MailExchange>& mail) {
  const absl::Status status = mail->Close();
  const auto& arrivals = mail->arrivals();
  traffic_.arrivals.insert(traffic_.arrivals.end(), arrivals.begin(), arrivals.end());
  mail.reset();
  return Broken(status);
}

void Peers::Open(Mail& mail) { mail_ = OpenMail(mail); }

absl::Status Peers::Close() { return CloseMail(mail_); }

void Peers::OpenCopies(Mail& mail) { copies_ = OpenMail(mail); }

absl::Status Peers::CloseCopies() { return CloseMail(copies_); }

}  // namespace dmuon::node
