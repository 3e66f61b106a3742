// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/mail_exchange.h"

#include <utility>

#include "daemon/base/clock.h"

namespace dmuon::node {

MailExchange::MailExchange(transport::Transport* transport, Mail& mail, uint32_t buckets,
                           uint64_t first_tag)
    : transport_(transport), cargo_(mail.cargo), buckets_(buckets) {
  std::vector<transport::Batch> in(buckets);
  std::vector<transport::Batch> out(buckets);
  for (Message& message : mail.in) in[message.bucket].in.push_back({message.peer, message.bytes});
  for (const Message& message : mail.out) {
    out[message.bucket].out.push_back({message.peer, message.bytes});
  }
  for (uint32_t b = 0; b < buckets; ++b) {
    in[b].tag = out[b].tag = first_tag + b;
    {
      wire::MutexLock lock(buckets_[b].out.mu);
      buckets_[b].out.batch = std::move(out[b]);
    }
    {
      wire::MutexLock lock(buckets_[b].in.mu);
      buckets_[b].in.batch = std::move(in[b]);
    }
    Start(buckets_[b].in);
  }
}

void MailExchange::Expect(absl::Time deadline) {
  expected_ = MonotonicNow();
  deadline_ = deadline;
}

// At most once, and nothing where there is no message.
void MailExchange::Start(Way& way) {
  wire::MutexLock lock(way.mu);
  const transport::Batch batch = std::exchange(way.batch, {});
  if (transport_ == nullptr) way.status = absl::AbortedError("the nodes are not connected");
  if (!way.status.ok() || (batch.out.empty() && batch.in.empty())) return;
  auto started = transport_->Start(batch);
  if (started.ok()) {
    way.exchange = *std::move(started);
  } else {
    way.status = started.status();
  }
}

absl::Status MailExchange::Finish(Way& way) {
  wire::MutexLock lock(way.mu);
  if (const auto exchange = std::move(way.exchange); exchange != nullptr) {
    way.status = exchange->Wait(deadline_);
    way.finished = MonotonicNow();
  }
  return way.status;
}

void MailExchange::NoteArrival(Way& way) {
  wire::MutexLock lock(way.mu);
  if (way.finished == absl::InfinitePast()) return;  // nothing came
  arrivals_.push_back({cargo_, absl::ToDoubleSeconds(way.finished - expected_)});
}

void MailExchange::Send(uint32_t bucket) { Start(buckets_[bucket].out); }

absl::Status MailExchange::Receive(uint32_t bucket) { return Finish(buckets_[bucket].in); }

void MailExchange::SendRest() {
  for (Bucket& bucket : buckets_) Start(bucket.out);
}

absl::Status MailExchange::Close() {
  SendRest();
  absl::Status first;
  for (Bucket& bucket : buckets_) {
    for (Way* way : {&bucket.in, &bucket.out}) {
      if (first.ok()) first = Finish(*way);
    }
    if (first.ok()) NoteArrival(bucket.in);
  }
  buckets_.clear();  // after an error, what is still in flight
  return first;
}

}  // namespace dmuon::node
